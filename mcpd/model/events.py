"""Types for what happened: live events, history entries, finished calls, and tapped messages."""

from __future__ import annotations

import enum

import attrs
import msgspec

from mcpd.model.record import Record
from mcpd.model.status import FailureKind, ServerState, ServerStatus


class EventKind(enum.Enum):
    SNAPSHOT = "snapshot"
    """A server's status when the stream starts. mcpd sends one such event for each server."""
    STATUS = "status"
    """The state or the details of a server changed."""
    REMOVED = "removed"
    """A server was removed."""
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    """mcpd fetched a server's list again, and the list has changed."""
    CONFIG = "config"
    """A new set of servers is active, or mcpd rejected a configuration. If `server` is set, its definition
    changed."""
    LOGIN = "login"
    """A login to a server began, ended or failed, was renewed, or is needed again. The message says which."""
    APPROVAL = "approval"
    """A call started or stopped waiting for a person's approval. The message says which."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Event(Record):
    """The parameters of `mcpd/event`."""

    kind: EventKind
    at: str
    server: str | None = None
    message: str = ""
    status: ServerStatus | None = None
    by: str = ""
    """The program and process of the client that caused the event, such as `mcpctl (pid 4711)`, or a
    signal."""


class HistoryEventKind(enum.Enum):
    STATE = "state"
    """A server's state changed."""
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    """mcpd fetched a server's list again, and the list has changed. The message lists the differences."""
    REMOVED = "removed"
    """A server was removed."""
    CONFIG = "config"
    """A new set of servers became active, or mcpd rejected a configuration."""
    LOGIN = "login"
    """A login to a server began, ended or failed, was renewed, or is needed again. The message says which."""
    DAEMON = "daemon"
    """mcpd started or stopped, or the mcpd before it had ended without stopping."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HistoryEntry(Record):
    """One event in the history."""

    at: str
    what: HistoryEventKind
    server: str | None = None
    """The server's name. This is null if the event concerns the daemon or the whole set of servers."""
    state: ServerState | None = None
    """The new state of the server if `what` is `state`."""
    message: str = ""
    """The cause of the event."""
    by: str = ""
    """The program and process of the client that caused the event, or a signal. This is empty if neither
    applies."""
    kind: FailureKind | None = None
    exit_code: int | None = None
    signal: str | None = None
    times: int = 1
    """The number of times this event has happened since the server was last connected for ten minutes, or
    changed by a client. If an event repeats, mcpd keeps only the 1st, 2nd, 4th, 8th, … time and the last."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HistoryParams(Record):
    server: str | None = None
    """If this is null, the events of all servers and of the daemon are returned."""
    limit: int = 100
    """The maximum number of entries. If there are more, mcpd returns the newest ones."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class History(Record):
    """The result of `mcpd/history`, oldest entry first. The history is kept when mcpd restarts. It has up to
    200 entries for each server, and 5,000 in total."""

    entries: tuple[HistoryEntry, ...]
    dropped: int = 0
    """The number of entries that mcpd could not write to disk since it started. They are lost when mcpd
    stops."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TapParams(Record):
    server: str
    methods: tuple[str, ...] = ()
    """The methods whose messages and responses are reported, at most 100. You can use the wildcards `*` and
    `?`. If the list is empty, mcpd reports all messages."""
    limit: int = 65_536
    """The maximum number of bytes per message, up to 262144. mcpd truncates longer messages."""


class MessageDirection(enum.Enum):
    TO_SERVER = "to-server"
    FROM_SERVER = "from-server"
    NOTE = "note"
    """A note from mcpd about the connection or the tap. This is not a message."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TapFrame(Record):
    """The parameters of `mcpd/frame`, which contain a message that was sent or received. Secrets are
    masked."""

    at: str
    server: str
    direction: MessageDirection
    method: str = ""
    """The method of the message. For a response, this is the method of its request, or empty if the tap
    started after the request."""
    id: str = ""
    """The ID as JSON text. This is empty for a notification."""
    bytes: int = 0
    """The length of the complete message in bytes."""
    message: msgspec.Raw | None = None
    """The message. This is null if the message is not valid JSON or was truncated."""
    text: str = ""
    """The text if `message` is null. It contains a note, invalid output, or the start of a truncated
    message."""
    cut: bool = False
    dropped: int = 0
    """The number of messages before this one that were dropped because the client read too slowly."""


class CallLogLevel(enum.Enum):
    """What the call log contains (`callLog` in the settings)."""

    OFF = "off"
    CALLS = "calls"
    """Who called what, when, for how long, and how it ended."""
    CONTENTS = "contents"
    """Also the first 4096 bytes of the arguments and of the result, with secrets masked."""


class CallOutcome(enum.Enum):
    OK = "ok"
    TOOL_ERROR = "tool-error"
    """The tool reported an error in its result."""
    INPUT_REQUIRED = "input-required"
    """The server asked for input. The client answers with another request."""
    ERROR = "error"
    """The server returned an error."""
    FAILED = "failed"
    """mcpd returned an error, for example because the call timed out."""
    DENIED = "denied"
    """A rule, its limit, or the person whom it asked, refused the call."""
    CANCELLED = "cancelled"
    OMITTED = "omitted"
    """Stands for `count` calls of which mcpd kept no records because there were too many in one second."""


FAILURES = frozenset({CallOutcome.TOOL_ERROR, CallOutcome.ERROR, CallOutcome.FAILED})


@attrs.define(kw_only=True, eq=False, repr=False)
class CallRecord(Record):
    """A finished call."""

    # Not frozen, because one is made for each call, and making a frozen one takes five times as long.
    at: str
    """When the call ended."""
    outcome: CallOutcome
    client: str = ""
    """The name that the client provided, or the name of its program."""
    pid: int | None = None
    """The client's process ID. This is null if the client is connected over TCP."""
    via: str = ""
    """How the client is connected: `socket`, `bridge`, `http`, or `control` for the control API."""
    person: str = ""
    """The person whose access token the client used. This is empty for the person who runs mcpd."""
    server: str = ""
    """The name of the server. For `mcpctl try`, its URL or command, in which secrets are masked."""
    method: str = ""
    name: str = ""
    """The name of the tool or prompt, or the URI of the resource."""
    duration_ms: float = 0.0
    """The time from the arrival of the request to the response."""
    request_bytes: int = 0
    """The length of the request's parameters."""
    response_bytes: int = 0
    """The length of the server's response."""
    cached: bool = False
    """Whether mcpd used the result of an equal request, and did not send this one to the server."""
    digest: str = ""
    """Identifies the request's parameters: the start of the SHA-256 digest of their first 16384 bytes."""
    code: str = ""
    """The error code: one of mcpd's own, such as `timeout`, or the number in the server's error."""
    message: str = ""
    """The error message. Secrets are masked."""
    trace: str = ""
    """The trace ID, if the client sent a trace context."""
    arguments: str = ""
    """The request's parameters as JSON text, if `callLog` is `contents`."""
    result: str = ""
    """The result as JSON text, if `callLog` is `contents`."""
    count: int = 1
    replica: str = ""
    """The address of the replica that had the call. This is empty if replicas do not share the call log."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CallsParams(Record):
    limit: int = 100
    """The maximum number of records. If there are more, mcpd returns the newest ones."""
    since: str = ""
    """Return only calls that ended after this time (RFC 3339)."""
    client: str = ""
    """Return only calls of clients whose name contains this text."""
    server: str = ""
    """Return only calls of this server."""
    name: str = ""
    """Return only calls of this tool, prompt or resource."""
    failed: bool = False
    """Return only calls that failed. A denied call is none of these."""
    follow: bool = False
    """Also stream new records."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CallRecords(Record):
    """The result of `mcpd/calls`, oldest record first. The call log is limited in size and is kept when mcpd
    restarts."""

    calls: tuple[CallRecord, ...]
    dropped: int = 0
    """The number of calls that mcpd could not write to disk since it started."""
    problem: str = ""
    """Why calls of other replicas are missing."""
