"""The states of a server, the legal transitions, and the status that explains each state.

Times are RFC 3339 in UTC. They are for display only; mcpd computes durations with a monotonic clock.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import attrs

from mcpd.model.record import Record
from mcpd.model.text import shorten

MAX_LENGTH = 200
"""Characters of a summary."""
NOT_MCP = "it does not speak MCP"
"""The beginning of a failure's message if a process writes something else to stdout, and nothing in MCP."""

_NOISE = re.compile(
    r"at \S+|Node\.js v\d|Traceback \(|File \"|[\W_]*$|npm (?:notice|warn)\b"
    r"|npm (?:error|ERR!)(?: (?:A complete log|code |errno|syscall|path |dest )|\s*$)"
    r"|(?:\w+ )?\[?(?:INFO|DEBUG)\b"
    r"|[^\w/]*/\S*$"
    r"|(?!err|message|reason)(?-i:[a-z])\w*: (?:undefined|null|true|false|-?\d+n?|'.*'|\".*\"|\[.*|\{.*),?$",
    re.IGNORECASE,
)
"""Lines that explain nothing: frames of a trace, versions, punctuation, progress, paths, and the properties
that node shows after the trace of an error."""
_CAUSE = re.compile(
    r"error|exception|required|missing|must|not |cannot|can't|unable|fail|invalid|denied|refused|in use"
    r"|no such|unknown|unset|undefined|fatal|panic",
    re.IGNORECASE,
)
_NPM = re.compile(r"npm (?:error|ERR!)\s*", re.IGNORECASE)
_TIMESTAMP = re.compile(r"[\[(]?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?[\])]?[\s:|-]*")


def informative_line(stderr: Sequence[str], *, only_causes: bool = False) -> str:
    """Return the line of stderr that most likely names the cause, without a timestamp; empty if none does.

    npm reports the cause first, all others report it last. If no line looks like a cause, it is the last one,
    unless `only_causes`.
    """
    place = _informative_place(stderr, only_causes=only_causes)
    return "" if place is None else _NPM.sub("", _TIMESTAMP.sub("", stderr[place].strip(), count=1))


def _informative_place(stderr: Sequence[str], *, only_causes: bool = False) -> int | None:
    stripped = [_TIMESTAMP.sub("", line.strip(), count=1) for line in stderr]
    lines = {place: line for place, line in enumerate(stripped) if line and not _NOISE.match(line)}
    causes = [place for place, line in lines.items() if _CAUSE.search(line)]
    if npm := [place for place in causes if _NPM.match(lines[place])]:
        return npm[0]
    found = causes or ([] if only_causes else list(lines))
    return found[-1] if found else None


def lines_with_cause(stderr: Sequence[str], count: int) -> tuple[str, ...]:
    """Return `count` successive lines of stderr: the last ones, unless the line that names the cause is
    before them. Then they begin with it, because a long trace may follow it.
    """
    place = _informative_place(stderr, only_causes=True)
    start = max(0, len(stderr) - count)
    return tuple(stderr[start if place is None else min(place, start) :][:count])


def summarize(
    message: str, exit_code: int | None, signal: str | None, stderr: Sequence[str], *, process_ended: bool
) -> str:
    """Return for example `exited (1): MY_API_KEY is required`, in at most MAX_LENGTH characters.

    `process_ended`: the process exited or was killed, so that its status replaces the first clause of
    `message`. While it runs, or if a signal ended it, stderr may just be a log, so that only a line that
    looks like a cause counts.
    """
    how = message.partition("\n")[0].partition("; ")[0]
    line = informative_line(stderr, only_causes=not process_ended or exit_code is None)
    if process_ended and line:
        how = f"killed ({signal})" if signal else f"exited ({exit_code})" if exit_code is not None else how
    return shorten(f"{how}: {line}" if line and line not in how else how, MAX_LENGTH)


CONNECTION_LOST = "its connection was lost"
"""The reason of the state `pending` from the end of a connection until its cause is known."""


class ServerState(enum.Enum):
    """The state of a server. Every state except `pending` is settled and does not change until an event
    occurs."""

    PENDING = "pending"
    """The server is enabled, and a connection attempt is running or queued."""
    CONNECTED = "connected"
    """The handshake is complete, and mcpd has fetched the lists."""
    FAILED = "failed"
    """The last attempt or connection failed. mcpd retries at `retry_at`. If this is null, the user must
    act."""
    DISABLED = "disabled"
    """The server is disabled, or the user has disconnected it."""
    NEEDS_AUTH = "needs-auth"
    """The user must log in."""
    IDLE = "idle"
    """The server is lazy and is not running. It starts on first use."""

    @property
    def phrase(self) -> str:
        """The state as the rest of a sentence that begins with the server's name."""
        return _PHRASES.get(self.value, f"is {self.value}")

    @property
    def is_settled(self) -> bool:
        return self is not ServerState.PENDING

    def may_become(self, other: ServerState) -> bool:
        """Return whether this transition is legal. Staying in the same state always is."""
        return other is self or other in _TRANSITIONS[self]


_PHRASES = {"pending": "is not connected yet", "failed": "has failed", "needs-auth": "needs a login"}


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
    """The reason why an attempt or connection ended. Scripts can rely on these names."""

    SPAWN = "spawn"
    """mcpd could not start the process because the program was not found, was not executable, or its
    directory was invalid."""
    CONFIG = "config"
    """The definition has errors, so mcpd cannot start the server."""
    SECRET = "secret"  # noqa: S105 - a word, no password
    """A secret in the definition is not available."""
    EXITED = "exited"
    KILLED = "killed"
    """A signal that mcpd did not send ended the process."""
    CLOSED = "closed"
    """The process closed stdout while it was running, or a remote server closed the connection."""
    TIMEOUT = "timeout"
    WEDGED = "wedged"
    """The process is running but does not respond to health checks."""
    PROTOCOL = "protocol"
    VERSION = "version"
    """mcpd and the server do not support a common protocol revision."""
    RESOURCES = "resources"
    """The machine is out of processes, descriptors, or memory."""
    UNREACHABLE = "unreachable"
    """mcpd cannot connect to a remote server because of a problem with name resolution, the network, or a
    certificate, or because the connection was refused."""
    HTTP = "http"
    """The server returned an HTTP status without an MCP response."""
    AUTH = "auth"
    """The server refused access (HTTP 401 or 403)."""
    INTERNAL = "internal"
    """mcpd has a bug. mcpd's log contains the traceback."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Failure(Record):
    """The reason why a server failed."""

    kind: FailureKind
    message: str
    """A message that explains what failed and what to do. It does not contain the server's name."""
    at: str
    exit_code: int | None = None
    signal: str | None = None
    http_status: int | None = None
    """The HTTP status that a remote server returned."""
    stderr: tuple[str, ...] = ()
    """At most 20 lines that this process wrote to stderr: the last ones, or, if the line that explains the
    failure came earlier, those from that line on. If a signal ended the process, only lines of its last two
    seconds, because earlier ones do not explain it."""
    noise: str = ""
    """The first line and a summary of the output on stdout that was not a message. Empty if there is none."""
    crash_loop: bool = False
    summary: str = ""
    """The failure in one phrase, with the line of stderr that explains it:
    `exited (1): MY_API_KEY is required`. Always computed from the other fields."""

    def __attrs_post_init__(self) -> None:
        """Compute the summary, also for a copy by `attrs.evolve`, whose message may be masked."""
        ended = self.kind in (FailureKind.EXITED, FailureKind.KILLED)
        summary = summarize(self.message, self.exit_code, self.signal, self.stderr, process_ended=ended)
        object.__setattr__(self, "summary", summary)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class OpenQuestion(Record):
    """A question that the server asked during a call, and that the client has not answered yet."""

    client: str
    """The client that was asked: `cursor (pid 4711)`."""
    call: str
    """The call during which the server asked: `tool 'deploy'`."""
    method: str
    """`elicitation/create`, `sampling/createMessage` or `roots/list`."""
    text: str
    """What the server wants to know, in its own words, at most 200 characters. Untrusted."""
    since: str
    client_is_connected: bool = True
    """Whether the question can reach the client now. If it cannot, and other calls wait, mcpd drops the
    question after a few seconds."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WaitingCall(Record):
    """A call that mcpd has not sent yet, because it must not overlap with the calls of another client."""

    client: str
    call: str
    since: str
    server: str = ""
    waits_for: str = ""
    """The call that it waits for, and the client of that call. This is empty if that call ends just now."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerInfo(Record):
    """Information that the server provides about itself. This text is untrusted and is intended only for
    display."""

    name: str = ""
    version: str = ""
    title: str = ""
    instructions: str = ""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConnectionStatus(Record):
    """One of a server's connections. A server that speaks both eras may have a second one, for clients of
    the legacy era."""

    status: ServerState
    revision: str | None = None
    """The protocol revision. This is null until it has been negotiated."""
    era: str | None = None
    pid: int | None = None
    since: str = ""
    restarts: int = 0
    in_flight: int = 0
    last_error: Failure | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerStatus(Record):
    """A server's status, as shown by `mcpctl status`."""

    name: str
    status: ServerState
    state: ServerState = ServerState.PENDING
    """The same as `status`, for scripts that use this name. Always set from `status`."""
    since: str
    transport: str
    reason: str = ""
    """A short reason for the state, such as "connecting" or "crash loop: …"."""
    pid: int | None = None
    containers: tuple[str, ...] = ()
    """The containers that its command has started, such as `docker 3f2a9c1b7d04`. They end with it."""
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    degraded: str = ""
    """Why nobody can rely on a server although it is connected, such as `it restarted 6 times in the last 2
    minutes` or `its process is stopped (SIGSTOP)`. This is empty if mcpd knows of nothing. Only `mcpd/server`
    says that the server still uses a secret that was changed or removed in the built-in store."""
    restarts: int = 0
    """How often mcpd started the server again after it had failed, since mcpd started. For a remote server,
    how often mcpd connected again. What a user requested, such as with `mcpctl reconnect` or `enable`, does
    not count."""
    attempts: int = 0
    """The number of failed attempts in a row."""
    last_error: Failure | None = None
    """The reason why the last connection or attempt ended. mcpd keeps it after the server recovers."""
    last_ok: str | None = None
    """The time of the server's last response."""
    retry_at: str | None = None
    off_until: str | None = None
    """The time at which mcpd enables a disabled server again. This is null if the server is enabled, or if it
    is disabled permanently."""
    updated: str | None = None
    """The time at which mcpd last fetched the server's lists."""
    protocol_version: str | None = None
    era: str | None = None
    session: bool | None = None
    """Whether an HTTP server has a session for mcpd. This is null if it does not apply. The session ID is
    secret."""
    server_info: ServerInfo | None = None
    capabilities: tuple[str, ...] = ()
    lazy: bool = False
    in_flight: int = 0
    """The number of requests in progress on all of the server's connections."""
    questions: tuple[OpenQuestion, ...] = ()
    """The questions that clients have not answered yet, the oldest first, at most 10."""
    waiting: tuple[WaitingCall, ...] = ()
    """The calls that wait for other calls to end, the next one first, at most 10."""
    waiting_calls: int = 0
    """The number of calls that wait for other calls to end."""
    warnings: tuple[str, ...] = ()
    connections: tuple[ConnectionStatus, ...] = ()
    """The server's connections. The other fields describe the first one."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "state", self.status)


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
