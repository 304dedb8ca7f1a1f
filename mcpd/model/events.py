"""What mcpd reports about servers as it happens: events, history entries, and tapped messages."""

from __future__ import annotations

import enum

import attrs
import msgspec

from mcpd.model.status import FailureKind, ServerState, ServerStatus


class EventKind(enum.Enum):
    SNAPSHOT = "snapshot"
    """The status of a server when the stream begins; one event for each server."""
    STATUS = "status"
    """The state of a server, or its details, changed."""
    REMOVED = "removed"
    """A server was removed from the set."""
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    """A server's list was fetched again and differs."""
    CONFIG = "config"
    """A new set is in force, or a configuration was rejected; with a server: its definition changed."""


@attrs.frozen(kw_only=True)
class Event:
    """The parameters of `mcpd/event`."""

    kind: EventKind
    at: str
    server: str | None = None
    message: str = ""
    status: ServerStatus | None = None
    by: str = ""
    """Who caused it: the program and process of a client (`mcpctl (pid 4711)`), or a signal."""


class HistoryEventKind(enum.Enum):
    STATE = "state"
    """A server's state changed."""
    TOOLS = "tools"
    RESOURCES = "resources"
    PROMPTS = "prompts"
    """A server's list was fetched again and differs; the message names the differences."""
    REMOVED = "removed"
    """A server was removed from the set."""
    CONFIG = "config"
    """A new set came into force, or a configuration was rejected."""
    DAEMON = "daemon"
    """mcpd started or stopped."""


@attrs.frozen(kw_only=True)
class HistoryEntry:
    """One event in the history."""

    at: str
    what: HistoryEventKind
    server: str | None = None
    """null: the event concerns the daemon, or the set as a whole."""
    state: ServerState | None = None
    """The new state, if `what` is `state`."""
    message: str = ""
    """The cause."""
    by: str = ""
    """Who caused it: the program and process of a client, or a signal. Empty: nobody."""
    kind: FailureKind | None = None
    exit_code: int | None = None
    signal: str | None = None
    times: int = 1
    """How often this has happened since the server was last connected. Of repeated events, only the 1st, 2nd,
    4th, 8th … are recorded."""


@attrs.frozen(kw_only=True)
class HistoryParams:
    server: str | None = None
    """null: everything."""
    limit: int = 100
    """The maximum number of entries; the newest are returned."""


@attrs.frozen(kw_only=True)
class History:
    """The result of `mcpd/history`, oldest first. The history is bounded and survives restarts of mcpd."""

    entries: tuple[HistoryEntry, ...]
    dropped: int = 0
    """Entries that could not be written to disk since mcpd started. They are lost when it stops."""


@attrs.frozen(kw_only=True)
class TapParams:
    server: str
    methods: tuple[str, ...] = ()
    """Report only messages of these methods and their responses; `*` and `?` allowed. Empty: all."""
    limit: int = 65_536
    """Longer messages are cut after this many bytes."""


class MessageDirection(enum.Enum):
    TO_SERVER = "to-server"
    FROM_SERVER = "from-server"
    NOTE = "note"
    """A remark of mcpd about the connection or the tap, not a message."""


@attrs.frozen(kw_only=True)
class TapFrame:
    """The parameters of `mcpd/frame`: one message as sent or received, with secrets masked."""

    at: str
    server: str
    direction: MessageDirection
    method: str = ""
    """For a response, the method of its request; empty if the tap did not see the request."""
    id: str = ""
    """The JSON text of the id; empty for a notification."""
    bytes: int = 0
    """The length of the whole message."""
    message: msgspec.Raw | None = None
    """The message; null if it is not JSON, or was cut."""
    text: str = ""
    """The text if `message` is null: a remark, unparsable output, or the beginning of a cut message."""
    cut: bool = False
    dropped: int = 0
    """How many messages before this one are missing because the client read too slowly."""
