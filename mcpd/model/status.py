"""What a server's state means, which moves between states are legal, and the evidence each one carries.

No status without evidence: who says `failed` says why, since when, and when the next attempt is.
Times on the wire are RFC 3339 in UTC; they are for display, never for arithmetic (that is monotonic).
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime

import attrs


class ServerState(enum.Enum):
    """DESIGN D2. `settled` states stay until somebody or something acts; the others are under way."""

    PENDING = "pending"
    """Wanted; an attempt is running or queued."""
    CONNECTED = "connected"
    """Handshake done, lists fetched."""
    FAILED = "failed"
    """The last attempt or connection ended; `retry_at` says when the next starts, null: a person must act."""
    DISABLED = "disabled"
    """Switched off, or disconnected by hand."""
    NEEDS_AUTH = "needs-auth"
    """A person must log in."""
    IDLE = "idle"
    """Wanted, lazily not running; starts on first use."""

    @property
    def is_settled(self) -> bool:
        return self is not ServerState.PENDING

    def may_become(self, other: ServerState) -> bool:
        """Whether this move is legal; announcing the same state again (new evidence) always is."""
        return other is self or other in _TRANSITIONS[self]


_S = ServerState
_TRANSITIONS: dict[ServerState, frozenset[ServerState]] = {
    _S.PENDING: frozenset({_S.CONNECTED, _S.FAILED, _S.NEEDS_AUTH, _S.DISABLED, _S.IDLE}),
    _S.CONNECTED: frozenset({_S.PENDING, _S.FAILED, _S.NEEDS_AUTH, _S.DISABLED, _S.IDLE}),
    _S.FAILED: frozenset({_S.PENDING, _S.DISABLED, _S.IDLE}),
    _S.NEEDS_AUTH: frozenset({_S.PENDING, _S.DISABLED}),
    _S.IDLE: frozenset({_S.PENDING, _S.DISABLED}),
    _S.DISABLED: frozenset({_S.PENDING, _S.IDLE}),
}


class FailureKind(enum.Enum):
    """Why an attempt or a connection ended; stable words for scripts."""

    SPAWN = "spawn"
    """The process could not be started: not found, not executable, bad directory."""
    SECRET = "secret"  # noqa: S105 - a word, no password
    """A secret that its definition refers to cannot be had."""
    EXITED = "exited"
    KILLED = "killed"
    """Ended by a signal that we did not send."""
    CLOSED = "closed"
    """Closed its stdout, or stopped listening, while still running."""
    TIMEOUT = "timeout"
    WEDGED = "wedged"
    """Alive, but answers no liveness request."""
    PROTOCOL = "protocol"
    VERSION = "version"
    """No protocol revision in common."""
    RESOURCES = "resources"
    """The machine has no process, descriptor or memory left for it."""
    UNSUPPORTED = "unsupported"
    """This build has no transport for it."""
    UNREACHABLE = "unreachable"
    """No connection to a remote server: its name, the network, its certificate, or nobody listens."""
    HTTP = "http"
    """It answered with an HTTP status that is no answer."""
    AUTH = "auth"
    """It does not let us in (401 or 403)."""
    INTERNAL = "internal"
    """A bug of ours, contained; the log has the traceback."""


@attrs.frozen(kw_only=True)
class Failure:
    """What went wrong with a server, for a person and for a script."""

    kind: FailureKind
    message: str
    """What, and what to do next; without the server's name, which stands beside it."""
    at: str
    exit_code: int | None = None
    signal: str | None = None
    http_status: int | None = None
    """What a remote server answered instead of an answer."""
    stderr: tuple[str, ...] = ()
    """The last lines (at most 20) the process wrote to stderr in that life."""
    noise: str = ""
    """How much it wrote to stdout that was no message, with the first line of it; empty for nothing."""
    crash_loop: bool = False


@attrs.frozen(kw_only=True)
class ServerInfo:
    """What the server says of itself. Untrusted text, for display only."""

    name: str = ""
    version: str = ""
    title: str = ""
    instructions: str = ""


@attrs.frozen(kw_only=True)
class ServerStatus:
    """How one server is: one row of `mcpctl status`, and its evidence."""

    name: str
    status: ServerState
    since: str
    transport: str
    reason: str = ""
    """Why it is in this state, in a few words ("switched off", "connecting", "crash loop: …")."""
    pid: int | None = None
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    restarts: int = 0
    """Connections after the first one since the daemon started."""
    attempts: int = 0
    """Failed attempts in a row."""
    last_error: Failure | None = None
    """Why the last connection or attempt ended; kept after it came back, until a person acts."""
    last_ok: str | None = None
    """When the server last answered anything."""
    retry_at: str | None = None
    off_until: str | None = None
    """It is switched off until then, and comes back by itself; null while it is on, or off for good."""
    updated: str | None = None
    """When its lists were last fetched."""
    protocol_version: str | None = None
    era: str | None = None
    session: bool | None = None
    """Whether a server over HTTP keeps a session for us; null where there are none. Its id is a secret."""
    server_info: ServerInfo | None = None
    capabilities: tuple[str, ...] = ()
    lazy: bool = False
    in_flight: int = 0
    warnings: tuple[str, ...] = ()


def rfc3339(timestamp: float) -> str:
    """Seconds since the epoch → `2026-11-21T06:30:00.123Z`."""
    moment = datetime.fromtimestamp(timestamp, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_time(timestamp: float) -> str:
    """The same for a sentence: `2026-11-21 06:30:00 UTC`."""
    return f"{rfc3339(timestamp)[:19].replace('T', ' ')} UTC"


def parse_timestamp(text: str) -> float:
    """Back from RFC 3339, in whatever zone. Raises ValueError for what is none, or names no zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.timestamp()
