"""Types for the call log: `mcpd/calls`."""

from __future__ import annotations

import enum

import attrs

from mcpd.model.record import Record


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
    """Return only calls that did not succeed."""
    follow: bool = False
    """Also stream new records."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CallRecords(Record):
    """The result of `mcpd/calls`, oldest record first. The call log is limited in size and is kept when mcpd
    restarts."""

    calls: tuple[CallRecord, ...]
    dropped: int = 0
    """The number of calls that mcpd could not write to disk since it started."""
