"""What happens when a server fails: the failure, the verdict, the backoff, the next state."""

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
import trio

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
from mcpd.model.status import Failure, FailureKind, ServerState, rfc3339
from mcpd.protocol.negotiate import NotStreamableHttp, ServerDiedDuringProbe
from mcpd.transports.child_environment import CannotStart

REMOTE_BACKOFF_CAP = 120.0
"""Seconds between attempts at most: connecting costs a remote server more, and nobody sees it try."""
_NO_LIMIT = 1 << 62


class Verdict(enum.Enum):
    """What a failure asks for."""

    RETRY = "retry"
    """It may pass: try again after a pause."""
    WAIT = "wait"
    """It would fail the same way: wait for a person, or for another definition."""
    LOGIN = "login"
    """The server wants to know who we are: wait for a person to say it."""


class Wedged(Exception):
    """Alive, but it answers no liveness request."""


class SecretUnavailable(Exception):
    """A secret that the definition refers to cannot be had, or is useless where it stands."""


class UnsupportedTransport(Exception):
    """This build cannot reach such a server."""


@attrs.frozen(kw_only=True)
class Evidence:
    """What the process left behind."""

    returncode: int | None = None
    """Its own exit status; None when we ended it, or when there was no process."""
    stderr: tuple[str, ...] = ()
    unparsable_output: str = ""
    is_remote: bool = False
    """Whether there is a network between, and no process of ours."""


def requested_delay(error: BaseException) -> float:
    """Seconds that the server wants us to stay away; 0 when it said nothing of the kind."""
    asked = [leaf.retry_after for leaf in leaf_exceptions(error) if isinstance(leaf, HttpRefused)]
    return max((seconds for seconds in asked if seconds is not None), default=0.0)


def leaf_exceptions(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside a group, however nested."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_exceptions(inner)
    else:
        yield error


def is_bug(error: BaseException) -> bool:
    """Whether something in there is no expected way to fail."""
    return any(_precedence(leaf) == len(_PRECEDENCE) for leaf in leaf_exceptions(error))


def classify_failure(error: BaseException, evidence: Evidence) -> tuple[Failure, Verdict]:
    """Never raises. Of several exceptions the one that explains most is taken."""
    cause = min(leaf_exceptions(error), key=_precedence)
    kind, message, verdict = _classify_leaf(cause, evidence)
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
            message=message,
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


_PRECEDENCE: tuple[type[BaseException], ...] = (
    CannotStart,
    SecretUnavailable,
    UnsupportedTransport,
    NeedsAuth,
    NotStreamableHttp,
    NoCommonVersion,
    Wedged,
    UpstreamRefused,
    HttpRefused,
    ProtocolViolation,
    LinkLost,
    ServerDiedDuringProbe,
    trio.TooSlowError,
    McpdError,
    OSError,
)

_NOT_AN_ENDPOINT = (301, 302, 303, 307, 308, 310, 400, 404, 405, 406, 410, 415, 422)
"""Statuses of a URL that is not, or no longer, an MCP endpoint: asking again changes nothing."""
_EXHAUSTED = {
    errno.EAGAIN: "processes (RLIMIT_NPROC)",
    errno.EMFILE: "file descriptors (RLIMIT_NOFILE)",
    errno.ENFILE: "file descriptors (of the whole system)",
    errno.ENOMEM: "memory",
}


def _precedence(error: BaseException) -> int:
    return next((rank for rank, kind in enumerate(_PRECEDENCE) if isinstance(error, kind)), len(_PRECEDENCE))


def _classify_leaf(error: BaseException, evidence: Evidence) -> tuple[FailureKind, str, Verdict]:
    match error:
        case CannotStart():
            return FailureKind.SPAWN, str(error), Verdict.WAIT
        case SecretUnavailable():
            return FailureKind.SECRET, str(error), Verdict.WAIT
        case UnsupportedTransport():
            return FailureKind.UNSUPPORTED, str(error), Verdict.WAIT
        case NoCommonVersion():
            return FailureKind.VERSION, _without_server_name(error), Verdict.WAIT
        case Wedged():
            return FailureKind.WEDGED, str(error), Verdict.RETRY
        case NeedsAuth():
            return FailureKind.AUTH, _without_server_name(error), Verdict.LOGIN
        case NotStreamableHttp():
            verdict = Verdict.RETRY if error.may_be_temporary else Verdict.WAIT
            return FailureKind.HTTP, f"no MCP server answers at its URL ({error})", verdict
        case HttpRefused():
            wrong_place = error.status in _NOT_AN_ENDPOINT
            return (
                FailureKind.HTTP,
                _without_server_name(error),
                Verdict.WAIT if wrong_place else Verdict.RETRY,
            )
        case LinkLost() if evidence.is_remote and not error.may_have_run:
            return FailureKind.UNREACHABLE, _without_server_name(error), Verdict.RETRY
        case LinkLost():
            return _exit_kind(evidence), _without_server_name(error), Verdict.RETRY
        case ServerDiedDuringProbe():
            return _exit_kind(evidence), "it ended when asked server/discover", Verdict.RETRY
        case UpstreamRefused() | ProtocolViolation():
            return FailureKind.PROTOCOL, _without_server_name(error), Verdict.RETRY
        case trio.TooSlowError():
            return FailureKind.TIMEOUT, str(error) or "it took too long to start", Verdict.RETRY
        case McpdError():
            kind = FailureKind.TIMEOUT if error.code == "timeout" else FailureKind.PROTOCOL
            return kind, _without_server_name(error), Verdict.RETRY
        case OSError() if error.errno in _EXHAUSTED:
            return FailureKind.RESOURCES, f"the machine has no {_EXHAUSTED[error.errno]} left", Verdict.RETRY
        case OSError():
            return FailureKind.SPAWN, f"it could not be started: {error.strerror or error}", Verdict.RETRY
        case _:
            return FailureKind.INTERNAL, f"an error in mcpd itself: {error!r}; see its log", Verdict.RETRY


def _exit_kind(evidence: Evidence) -> FailureKind:
    if evidence.returncode is None:
        return FailureKind.CLOSED
    return FailureKind.KILLED if evidence.returncode < 0 else FailureKind.EXITED


def _without_server_name(error: McpdError) -> str:
    """The server's name stands beside a Failure already."""
    prefix = f"{error.server}: "
    return error.message.removeprefix(prefix)


def effective_restart_policy(spec: ServerSpec) -> RestartPolicy:
    """The restart policy as it applies: a server that is merely not reachable is in no crash loop."""
    policy, usual = spec.restart, RestartPolicy()
    if isinstance(spec, StdioSpec):
        return policy
    return attrs.evolve(
        policy,
        cap=REMOTE_BACKOFF_CAP if policy.cap == usual.cap else policy.cap,
        intensity=_NO_LIMIT if policy.intensity == usual.intensity else policy.intensity,
    )


@attrs.frozen
class Pause:
    """How long to wait before the next start, and whether that is because of a crash loop."""

    seconds: float
    crash_loop: bool


@attrs.define
class Backoff:
    """One server's record of ended starts. `chance` gives numbers in [0, 1)."""

    policy: RestartPolicy
    random: Callable[[], float]
    _attempts: int = 0
    _end_times: deque[float] = attrs.field(factory=deque)
    _in_crash_loop: bool = False

    @property
    def attempts(self) -> int:
        """Starts in a row that ended before they had proved themselves."""
        return self._attempts

    def reset(self) -> None:
        """It proved itself, or a person asked for a fresh start."""
        self._attempts = 0
        self._end_times.clear()
        self._in_crash_loop = False

    def record_end(self, now: float) -> Pause:
        """A start has ended at `now` (seconds of any clock); how long to wait."""
        policy = self.policy
        self._attempts += 1
        self._end_times.append(now)
        while self._end_times and self._end_times[0] <= now - policy.period:
            self._end_times.popleft()
        if self._in_crash_loop or len(self._end_times) >= policy.intensity:
            self._in_crash_loop = True
            spread = policy.probe * policy.probe_spread * (2 * self.random() - 1)
            return Pause(policy.probe + spread, crash_loop=True)
        # The exponent is bounded: 2.0 ** 5000 overflows long after the cap has made it pointless.
        ceiling = min(policy.cap, policy.base * policy.factor ** min(self._attempts - 1, 64))
        return Pause(max(policy.floor, self.random() * ceiling), crash_loop=False)


@attrs.frozen(kw_only=True)
class RecoveryPlan:
    state: ServerState
    reason: str
    """For the status: what is waited for."""
    level: int
    log_suffix: str = ""
    """For the log, behind what has failed."""
    pause: float | None = None
    """Seconds until the next attempt; None where something has to change first."""
    crash_loop: bool = False


def plan_recovery(
    name: str, verdict: Verdict, requested_delay: float, backoff: Backoff, policy: RestartPolicy
) -> RecoveryPlan:
    """`asked` are the seconds that the server itself wants to be left alone. Counts as an attempt."""
    pause = backoff.record_end(trio.current_time())
    # A line for each step of the backoff, the last of them for the crash loop; then silence.
    level = logging.DEBUG if backoff.attempts > policy.intensity else logging.WARNING
    if verdict is Verdict.LOGIN:
        reason = f"give it an `Authorization` header, or `mcpctl reconnect {name}`"
        return RecoveryPlan(state=ServerState.NEEDS_AUTH, reason=reason, level=level)
    if verdict is Verdict.WAIT:
        return RecoveryPlan(
            state=ServerState.FAILED,
            reason=f"correct its definition, or `mcpctl reconnect {name}`",
            level=level,
            log_suffix="; not tried again until something changes",
        )
    seconds = max(pause.seconds, requested_delay)
    looping = pause.crash_loop
    return RecoveryPlan(
        state=ServerState.FAILED,
        reason="crash loop: probed slowly" if looping else "will be tried again",
        level=level,
        log_suffix=f"; {'crash loop, next probe' if looping else 'next attempt'} in {seconds:.1f} s",
        pause=seconds,
        crash_loop=looping,
    )
