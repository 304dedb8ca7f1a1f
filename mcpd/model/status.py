"""The states of a server, the legal transitions, and the status that explains each state.

Times are RFC 3339 in UTC. They are for display only; mcpd computes durations with a monotonic clock.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime

import attrs


class ServerState(enum.Enum):
    """A settled state lasts until something happens; `pending` is in progress."""

    PENDING = "pending"
    """Enabled; a connection attempt is running or queued."""
    CONNECTED = "connected"
    """The handshake is done and the lists are fetched."""
    FAILED = "failed"
    """The last attempt or connection ended. `retry_at`: time of the next attempt; null: the user must act."""
    DISABLED = "disabled"
    """Disabled, or disconnected by the user."""
    NEEDS_AUTH = "needs-auth"
    """The user must log in."""
    IDLE = "idle"
    """Lazy and not running; it starts on first use."""

    @property
    def is_settled(self) -> bool:
        return self is not ServerState.PENDING

    def may_become(self, other: ServerState) -> bool:
        """Return whether this transition is legal. Staying in the same state always is."""
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
    """Why an attempt or connection ended; stable names for scripts."""

    SPAWN = "spawn"
    """The process could not be started: not found, not executable, or its directory is invalid."""
    SECRET = "secret"  # noqa: S105 - a word, no password
    """A secret in the definition is not available."""
    EXITED = "exited"
    KILLED = "killed"
    """The process was ended by a signal that mcpd did not send."""
    CLOSED = "closed"
    """The process closed stdout while it was running, or a remote server closed the connection."""
    TIMEOUT = "timeout"
    WEDGED = "wedged"
    """The process runs, but does not respond to health checks."""
    PROTOCOL = "protocol"
    VERSION = "version"
    """No protocol revision in common."""
    RESOURCES = "resources"
    """The machine is out of processes, descriptors or memory."""
    UNSUPPORTED = "unsupported"
    """mcpd does not support the transport."""
    UNREACHABLE = "unreachable"
    """No connection to a remote server: name resolution, network, certificate, or connection refused."""
    HTTP = "http"
    """The server returned an HTTP status without an MCP response."""
    AUTH = "auth"
    """The server refused access (HTTP 401 or 403)."""
    INTERNAL = "internal"
    """A bug in mcpd; its log contains the traceback."""


@attrs.frozen(kw_only=True)
class Failure:
    """Why a server failed."""

    kind: FailureKind
    message: str
    """What failed and what to do, without the name of the server."""
    at: str
    exit_code: int | None = None
    signal: str | None = None
    http_status: int | None = None
    """The HTTP status of a remote server."""
    stderr: tuple[str, ...] = ()
    """The last lines (at most 20) that this process wrote to stderr."""
    noise: str = ""
    """A summary of the output on stdout that was not a message, with its first line; empty if none."""
    crash_loop: bool = False


@attrs.frozen(kw_only=True)
class ServerInfo:
    """What the server reports about itself. Untrusted text, for display only."""

    name: str = ""
    version: str = ""
    title: str = ""
    instructions: str = ""


@attrs.frozen(kw_only=True)
class ServerStatus:
    """The status of one server, as in `mcpctl status`."""

    name: str
    status: ServerState
    since: str
    transport: str
    reason: str = ""
    """The reason for the state in a few words ("connecting", "crash loop: …")."""
    pid: int | None = None
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    restarts: int = 0
    """The number of connections since mcpd started, without the first."""
    attempts: int = 0
    """The number of failed attempts in a row."""
    last_error: Failure | None = None
    """Why the last connection or attempt ended. It is kept after the server recovers."""
    last_ok: str | None = None
    """The time of the last response of the server."""
    retry_at: str | None = None
    off_until: str | None = None
    """The server is disabled until this time; null if it is enabled, or disabled permanently."""
    updated: str | None = None
    """The time at which its lists were last fetched."""
    protocol_version: str | None = None
    era: str | None = None
    session: bool | None = None
    """Whether an HTTP server keeps a session for mcpd; null if not applicable. The session id is secret."""
    server_info: ServerInfo | None = None
    capabilities: tuple[str, ...] = ()
    lazy: bool = False
    in_flight: int = 0
    warnings: tuple[str, ...] = ()


def rfc3339(timestamp: float) -> str:
    """Format seconds since the epoch as `2026-11-21T06:30:00.123Z`."""
    moment = datetime.fromtimestamp(timestamp, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_time(timestamp: float) -> str:
    """Format seconds since the epoch for a sentence: `2026-11-21 06:30:00 UTC`."""
    return f"{rfc3339(timestamp)[:19].replace('T', ' ')} UTC"


def parse_timestamp(text: str) -> float:
    """Parse RFC 3339. Raises ValueError if the text is invalid or has no time zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()
