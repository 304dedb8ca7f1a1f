"""The restart policy: what happens after a server's connection or start attempt ends.

    exception ── classify_failure ──> Failure + NextTry ── plan_recovery ──> next state, delay, log line

    NextTry                                Next state   Next attempt
    RETRY, below the restart intensity     FAILED       after base · 1.5^(attempts-1) s, at most
                                                        `cap`; a random half of it is left out
    RETRY, `intensity` ends in 600 s       FAILED       crash loop: about every 300 s
    WAIT   (would fail in the same way)    FAILED       when the definition changes or a user reconnects
    LOGIN  (credentials are missing)       NEEDS_AUTH   when the definition changes or a user reconnects; if
                                                        it refers to secrets, also with the next call

A `Retry-After` of the server extends the delay. A connection that was stable for a minute, or that answered
a call ten seconds after it was ready, resets the count (`was_stable`), as does every user request. A call to
a FAILED server ends the delay, whatever the verdict, unless the last attempt ended just now
(`StateTracker.may_retry_early`). Remote servers have a longer cap and no crash loop
(`effective_restart_policy`).

What `ManagedServer` does with it:

    PENDING ── connected, lists fetched ──> CONNECTED
    PENDING ── failed, `ConnectStrategy.next_fallback` knows another way ──> PENDING
    PENDING, CONNECTED ── RETRY or WAIT ──> FAILED ── delay over, or request ──> PENDING
    PENDING, CONNECTED ── LOGIN ──> NEEDS_AUTH ── request ──> PENDING
    any ── disabled or disconnected ──> DISABLED ── enabled or connect ──> PENDING
"""

from __future__ import annotations

import enum
import errno
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import attrs
import msgspec
import trio

from mcpd.model import advice
from mcpd.model.errors import (
    HttpRefused,
    LinkLost,
    McpdError,
    NeedsAuth,
    NoCommonVersion,
    ProtocolViolation,
    UpstreamRefused,
)
from mcpd.model.server_spec import RestartPolicy, ServerSpec, StdioSpec
from mcpd.model.status import NOT_MCP, Failure, FailureKind, ServerState, rfc3339
from mcpd.protocol.negotiate import NotStreamableHttp, ServerDiedDuringProbe
from mcpd.transports.child_process import CannotStart

REMOTE_BACKOFF_CAP = 120.0
"""Default maximum of seconds between attempts to reach a remote server."""
_FACTOR = 1.5
"""Less than 2, so that a pause is never much longer than the server has already been failing."""
_FLOOR = 0.25
"""The minimum of seconds between two starts, unless `base` is smaller."""
_STABLE = 60.0
"""A connection that lasted this many seconds resets the backoff."""
_PROOF = 10.0
"""A successful call this many seconds after connecting also resets the backoff."""
_PERIOD = 600.0
"""Seconds within which `intensity` failures are a crash loop."""
PROBE, _PROBE_SPREAD = 300.0, 0.2
"""Seconds between two starts in a crash loop, and the random part of them."""
LOGGED_FAILURES = 5
"""Consecutive failures that are logged as warnings, besides the beginning of a crash loop."""
_NO_LIMIT = 1 << 62


class NextTry(enum.Enum):
    """What to do after a failure."""

    RETRY = "retry"
    """The failure may be temporary: try again after a delay."""
    WAIT = "wait"
    """Another attempt would fail in the same way: wait for a user or for a changed definition."""
    LOGIN = "login"
    """The server requires credentials: wait for a user to provide them."""


class Wedged(Exception):
    """The server runs but does not answer health checks."""


class SecretUnavailable(Exception):
    """A secret that the definition refers to cannot be resolved, or its value is unusable."""


class InvalidDefinition(Exception):
    """The definition has errors."""


class NotMcpOutput(Exception):
    """A process did not finish the handshake, and wrote only lines on stdout that are not JSON-RPC."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a process left behind."""

    returncode: int | None = None
    """The exit status; None if mcpd ended it, or if there was no process."""
    stderr: tuple[str, ...] = ()
    unparsable_output: str = ""
    unparsable_sample: str = ""
    """The beginning of the first line on stdout that was not JSON-RPC, masked."""
    is_remote: bool = False
    """The server is reached over a network; there is no process of ours."""


def requested_delay(error: BaseException) -> float:
    """Return the longest `Retry-After` in seconds; 0 if the server did not send one."""
    delays = [leaf.retry_after or 0.0 for leaf in leaf_exceptions(error) if isinstance(leaf, HttpRefused)]
    return max(delays, default=0.0)


def leaf_exceptions(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside nested exception groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_exceptions(inner)
    else:
        yield error


def is_bug(error: BaseException) -> bool:
    """Return whether the error contains an exception that is not an expected way to fail."""
    return any(_precedence(leaf) == len(_KINDS) for leaf in leaf_exceptions(error))


def classify_failure(error: BaseException, evidence: Evidence) -> tuple[Failure, NextTry]:
    """Return a Failure and a verdict for the exception that explains the most. Never raises."""
    cause = min(leaf_exceptions(error), key=_precedence)
    kind, verdict = _classify_leaf(cause, evidence)
    code, name = None, None
    if evidence.returncode is not None:
        if evidence.returncode >= 0:
            code = evidence.returncode
        else:
            with suppress(ValueError):
                name = signal.Signals(-evidence.returncode).name
    return (
        Failure(
            kind=kind,
            message=_describe(cause, evidence),
            at=rfc3339(time.time()),
            exit_code=code,
            signal=name,
            http_status=cause.status
            if isinstance(cause, HttpRefused | NeedsAuth | NotStreamableHttp)
            else None,
            stderr=evidence.stderr,
            noise=evidence.unparsable_output,
        ),
        verdict,
    )


_KINDS: tuple[tuple[type[BaseException], FailureKind, NextTry], ...] = (
    (InvalidDefinition, FailureKind.CONFIG, NextTry.WAIT),
    (CannotStart, FailureKind.SPAWN, NextTry.WAIT),
    (SecretUnavailable, FailureKind.SECRET, NextTry.WAIT),
    (NeedsAuth, FailureKind.AUTH, NextTry.LOGIN),
    (NotStreamableHttp, FailureKind.HTTP, NextTry.WAIT),
    (NoCommonVersion, FailureKind.VERSION, NextTry.WAIT),
    (Wedged, FailureKind.WEDGED, NextTry.RETRY),
    (UpstreamRefused, FailureKind.PROTOCOL, NextTry.RETRY),
    (HttpRefused, FailureKind.HTTP, NextTry.RETRY),
    (ProtocolViolation, FailureKind.PROTOCOL, NextTry.RETRY),
    (LinkLost, FailureKind.CLOSED, NextTry.RETRY),
    (ServerDiedDuringProbe, FailureKind.CLOSED, NextTry.RETRY),
    (NotMcpOutput, FailureKind.PROTOCOL, NextTry.RETRY),
    (trio.TooSlowError, FailureKind.TIMEOUT, NextTry.RETRY),
    (McpdError, FailureKind.PROTOCOL, NextTry.RETRY),
    (OSError, FailureKind.SPAWN, NextTry.RETRY),
)
"""What each exception usually means; of several exceptions, the first in this order explains the most."""

_PERMANENT = (301, 302, 303, 307, 308, 310, 400, 403, 404, 405, 406, 410, 415, 422)
"""HTTP statuses of a URL that is not, or no longer, an MCP endpoint for this user: retrying is pointless."""
_EXHAUSTED = {
    errno.EAGAIN: "processes (RLIMIT_NPROC or TasksMax)",
    errno.EMFILE: "file descriptors (RLIMIT_NOFILE)",
    errno.ENFILE: "file descriptors (system-wide limit)",
    errno.ENOMEM: "memory",
}


def _precedence(error: BaseException) -> int:
    return next((rank for rank, row in enumerate(_KINDS) if isinstance(error, row[0])), len(_KINDS))


def _classify_leaf(error: BaseException, evidence: Evidence) -> tuple[FailureKind, NextTry]:
    rank = _precedence(error)
    if rank == len(_KINDS):
        return FailureKind.INTERNAL, NextTry.RETRY
    _, kind, verdict = _KINDS[rank]
    match error:
        case NotStreamableHttp() if error.may_be_temporary:
            verdict = NextTry.RETRY
        case HttpRefused() if error.status in _PERMANENT:
            verdict = NextTry.WAIT
        case LinkLost() if evidence.is_remote and not error.may_have_run:
            kind = FailureKind.UNREACHABLE
        case LinkLost() | ServerDiedDuringProbe() if evidence.returncode is not None:
            kind = FailureKind.KILLED if evidence.returncode < 0 else FailureKind.EXITED
        case McpdError() if error.code == "timeout":
            kind = FailureKind.TIMEOUT
        case OSError() if error.errno in _EXHAUSTED:
            kind = FailureKind.RESOURCES
    return kind, verdict


def _describe(error: BaseException, evidence: Evidence) -> str:
    match error:
        case NotStreamableHttp():
            return f"no MCP server answers at its URL ({error})"
        case ServerDiedDuringProbe():
            return "it exited at the first message from mcpd"
        case NotMcpOutput():
            return f"{NOT_MCP} on stdout: its first line is {evidence.unparsable_sample!r} ({error})"
        case trio.TooSlowError():
            return str(error) or "it took too long to start"
        case McpdError():
            return _without_server_name(error)
        case OSError() if error.errno in _EXHAUSTED:
            return f"out of {_EXHAUSTED[error.errno]}"
        case OSError():
            return f"it could not be started: {error.strerror or error}"
        case _ if _precedence(error) == len(_KINDS):  # its text may quote a value that a library refused
            return f"an error in mcpd itself ({type(error).__name__}); see its log"
        case _:
            return str(error)


def _without_server_name(error: McpdError) -> str:
    """Strip the server's name, which is displayed next to every Failure."""
    return error.message.removeprefix(f"{error.server}: ")


def effective_restart_policy(spec: ServerSpec) -> RestartPolicy:
    """Return the restart policy that applies; the defaults of a remote server have no crash loop."""
    policy, usual = spec.restart, RestartPolicy()
    if isinstance(spec, StdioSpec):
        return policy
    return attrs.evolve(
        policy,
        cap=REMOTE_BACKOFF_CAP if policy.cap == usual.cap else policy.cap,
        intensity=_NO_LIMIT if policy.intensity == usual.intensity else policy.intensity,
    )


def floor(policy: RestartPolicy) -> float:
    """Return the least number of seconds between two starts."""
    return min(_FLOOR, policy.base or _FLOOR)


def was_stable(ready_at: float | None, last_success_at: float) -> bool:
    """Return whether a connection that was ready at `ready_at` lasted or worked long enough to reset the
    backoff."""
    return ready_at is not None and (
        trio.current_time() - ready_at >= _STABLE or last_success_at - ready_at >= _PROOF
    )


class Pause(msgspec.Struct, frozen=True):
    """The delay before the next start, and whether the server is in a crash loop."""

    seconds: float
    crash_loop: bool


class Backoff(msgspec.Struct):
    """Counts a server's failed starts and computes the delays; `random` draws from [0, 1)."""

    policy: RestartPolicy
    random: Callable[[], float]
    attempts: int = 0
    """Consecutive starts that failed or ended before they were stable."""
    in_crash_loop: bool = False
    _end_times: deque[float] = msgspec.field(default_factory=deque)

    def reset(self) -> None:
        """Start over, because a connection was stable or a user asked for a new attempt."""
        self.attempts = 0
        self._end_times.clear()
        self.in_crash_loop = False

    def record_end(self, now: float) -> Pause:
        """Record that a start ended at `now` (seconds of any clock); return the delay before the next one.

        Half of the delay is random, so that servers that failed together do not start together.
        """
        policy = self.policy
        self.attempts += 1
        self._end_times.append(now)
        while self._end_times and self._end_times[0] <= now - _PERIOD:
            self._end_times.popleft()
        if self.in_crash_loop or len(self._end_times) >= policy.intensity:
            self.in_crash_loop = True
            return Pause(PROBE + PROBE * _PROBE_SPREAD * (2 * self.random() - 1), crash_loop=True)
        # The exponent is bounded because 2.0 ** 5000 overflows.
        ceiling = min(policy.cap, policy.base * _FACTOR ** min(self.attempts - 1, 64))
        return Pause(max(floor(policy), ceiling * (1 + self.random()) / 2), crash_loop=False)


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What follows a failure."""

    state: ServerState
    reason: str
    """For the status: what the server is waiting for."""
    level: int
    log_suffix: str = ""
    """Appended to the failure in the log."""
    pause: float | None = None
    """Seconds until the next attempt; None if something has to change first."""
    crash_loop: bool = False


def plan_recovery(name: str, verdict: NextTry, requested_delay: float, backoff: Backoff) -> RecoveryPlan:
    """Decide what follows a failure, and count it; `requested_delay` is the server's `Retry-After`."""
    was_looping = backoff.in_crash_loop
    pause = backoff.record_end(trio.current_time())
    loud = backoff.attempts <= LOGGED_FAILURES or backoff.in_crash_loop > was_looping
    level = logging.WARNING if loud else logging.DEBUG
    if verdict is NextTry.LOGIN:
        # What to do depends on the definition: the failure and the next step say it.
        return RecoveryPlan(state=ServerState.NEEDS_AUTH, reason="it refuses access", level=level)
    if verdict is NextTry.WAIT:
        reason = advice.to_fix(name)
        suffix = "; not retrying until something changes"
        return RecoveryPlan(state=ServerState.FAILED, reason=reason, level=level, log_suffix=suffix)
    seconds = max(pause.seconds, requested_delay)
    looping = pause.crash_loop
    return RecoveryPlan(
        state=ServerState.FAILED,
        reason="crash loop: retrying slowly" if looping else "retrying",
        level=level,
        log_suffix=f"; {'crash loop, next attempt' if looping else 'next attempt'} in {seconds:.1f} s",
        pause=seconds,
        crash_loop=looping,
    )
