"""One server's desired, actual and reported state.

`DesiredState` is what its definition, its users and its clients want it to be, and `StateTracker` what it is
now. `build_status` puts everything known about the server into the status that users and scripts see.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import attrs
import trio

from mcpd.model import advice
from mcpd.model.errors import NotReady
from mcpd.model.policy import uncached_tools
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import (
    ConnectionStatus,
    Failure,
    FailureKind,
    ServerInfo,
    ServerState,
    ServerStatus,
    format_time,
    rfc3339,
)
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream
from mcpd.state.state_file import StateFile
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.connect import TransportKind
from mcpd.supervision.server_log import ServerLog
from mcpd.supervision.supervisor_context import WaitingReport
from mcpd.transports.base import Channel
from mcpd.transports.child_process import Child

_RETRY_SOON = 5.0
"""Seconds: a call waits for a retry that is due within this time instead of failing immediately."""
_EARLY_RETRY_INTERVAL = 5.0
"""Minimum seconds between the end of an attempt and the next one that a call triggers."""
_UNSTABLE_RESTARTS, _UNSTABLE_PERIOD = 3, 600.0
"""This many restarts within these seconds make a server unstable, however often it is connected."""


class StateTracker:
    """The state, its reason and the next attempt. Only `set_state` changes the state; anybody may wait."""

    def __init__(self) -> None:
        self.state = ServerState.PENDING
        self.reason = "queued"
        self.since = time.time()
        self._down_since: float | None = None
        """When it failed first, since it was last connected or a user acted."""
        self.failure: Failure | None = None
        """Why the last connection or attempt ended; kept until a user acts."""
        self.retry_at: float | None = None
        """When the next attempt starts (wall clock), for display."""
        self.retry_due = math.inf
        """The same as `trio.current_time()`."""
        self._early_retry_from = math.inf
        """When a call may trigger the next attempt (`trio.current_time()`)."""
        self.connections = 0
        """How often the server has been connected."""
        self.restarts = 0
        """How often it was started again, or connected to again if it is remote, after it had failed."""
        self._has_failed = False
        """The last connection or attempt failed, and no user has acted since."""
        self._restarts_process = False
        """The attempt in progress starts a process again after a failure."""
        self._restart_times: deque[float] = deque(maxlen=100)
        """When the server was connected again after a failure (`trio.current_time()`)."""
        self._changed = trio.Event()

    def set_state(self, state: ServerState, reason: str) -> bool:
        """Change the state; the only place that does. Return whether it differs from the previous one."""
        assert self.state.may_become(state), f"{self.state} may not become {state}"
        another = state is not self.state
        if another:
            has_failed = state in (ServerState.FAILED, ServerState.NEEDS_AUTH)
            self.since = self._down_since if has_failed and self._down_since is not None else time.time()
        self.state, self.reason = state, reason
        return another

    def notify(self) -> None:
        """Wake everybody in `wait_changed`."""
        moved, self._changed = self._changed, trio.Event()
        moved.set()

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def record_failure(self, failure: Failure, pause: float | None, requested_delay: float) -> None:
        """Record that an attempt or connection ended now, and schedule the next one in `pause` seconds.

        `pause`: None if something has to change first. `requested_delay`: the server's `Retry-After`, which
        also applies to attempts that calls trigger.
        """
        now = trio.current_time()
        self.failure = failure
        if self._restarts_process:
            self._restarts_process = False
            self.restarts += 1
        self._has_failed = True
        if self._down_since is None:
            self._down_since = time.time()
        self._early_retry_from = now + max(requested_delay, _EARLY_RETRY_INTERVAL)
        if pause is not None:
            self.retry_at, self.retry_due = time.time() + pause, now + pause

    def record_start(self) -> None:
        self._restarts_process = self._has_failed

    def record_connected(self) -> None:
        self.connections += 1
        is_back = self._has_failed and self.connections > 1
        if is_back or self._restarts_process:
            self.restarts += 1
        if is_back:
            self._restart_times.append(trio.current_time())
        self._has_failed = self._restarts_process = False
        self._down_since = None

    def forget_failures(self) -> None:
        """Start over, because a user acted or the definition changed."""
        self.failure = self._down_since = None
        self._has_failed = self._restarts_process = False
        self._restart_times.clear()
        self.clear_retry()

    @property
    def instability(self) -> str:
        """Why it is unstable, such as `it restarted 6 times in the last 2 minutes`; empty if it is not."""
        now = trio.current_time()
        recent = [time for time in self._restart_times if now - time < _UNSTABLE_PERIOD]
        if len(recent) < _UNSTABLE_RESTARTS:
            return ""
        minutes = math.ceil((now - recent[0]) / 60)
        span = f"{minutes} minutes" if minutes > 1 else "minute"
        return f"it restarted {len(recent)} times in the last {span}"

    def clear_retry(self) -> None:
        self.retry_at, self.retry_due = None, math.inf

    @property
    def not_retrying_soon(self) -> bool:
        """Whether waiting for a connection is pointless: off, or failed with no attempt due soon."""
        if self.state in (ServerState.PENDING, ServerState.IDLE):
            return False
        if self.state is ServerState.FAILED:
            return self.retry_due - trio.current_time() > _RETRY_SOON
        return True

    def may_retry_early(self, *, may_regain_access: bool) -> bool:
        """Return whether a call may trigger the next attempt instead of waiting for the scheduled one.

        `may_regain_access`: see `ServerSpec`.
        """
        return (
            (self.state is ServerState.FAILED or (may_regain_access and self.state is ServerState.NEEDS_AUTH))
            and self.not_retrying_soon
            and trio.current_time() >= self._early_retry_from
        )

    def not_ready(self, name: str, *, is_closed: bool = False) -> NotReady:
        """Return the error that says why nothing can be sent now and what to do."""
        back = "connect" if self.reason == DISCONNECTED else "enable"
        explanation = self.explain(name, is_closed=is_closed)
        what_to_do = {
            ServerState.DISABLED: advice.to_enable(name, back),
            ServerState.NEEDS_AUTH: "" if "`mcpctl login " in explanation else advice.to_explain(name),
            ServerState.FAILED: advice.to_retry(name, retries=self.retry_at is not None),
        }.get(self.state, "try again in a moment")
        outcome = f"Nothing was sent; {what_to_do}" if what_to_do else "Nothing was sent"
        return NotReady(
            f"{explanation}. {outcome}",
            server=name,
            state=self.state.value,
            retry_at=None if self.retry_at is None else rfc3339(self.retry_at),
        )

    def explain(self, name: str, *, is_closed: bool = False, brief: bool = False) -> str:
        """Return why nothing can be sent now: `git has failed: exited (1): no token; next attempt in 5 s`.

        `brief`: leave out details of the failure, such as where a program was looked for.
        """
        if is_closed or self.state is ServerState.CONNECTED:  # the end of a removed server is not announced
            return f"{name} is stopping because it was removed or its definition changed"
        why = self.reason
        if self.failure is not None and self.state in (ServerState.FAILED, ServerState.NEEDS_AUTH):
            # For a process that ended, the summary has the line of stderr that explains it.
            ended = self.failure.kind in (FailureKind.EXITED, FailureKind.KILLED) and self.failure.stderr
            why = self.failure.summary if ended or brief else self.failure.message
        when = ""
        if self.retry_at is not None:
            when = f"; next attempt in {max(0, self.retry_at - time.time()):.0f} s"
        return f"{name} {self.state.phrase}: {why}{when}"


def build_status(
    *,
    spec: ServerSpec,
    tracker: StateTracker,
    kind: TransportKind,
    upstream: Upstream | None,
    link: Channel | None,
    catalog: Catalog | None,
    child: Child | None,
    log: ServerLog,
    mask: Callable[[str], str],
    attempts: int,
    last_received: float | None,
    degraded: str,
    off_until: float | None,
    waiting: WaitingReport,
) -> ServerStatus:
    """`link` is the connection, also during the handshake. `last_received` and `off_until` are wall clock
    times."""
    warnings = [] if catalog is None else list(catalog.warnings)
    if spec.cache and catalog is not None:
        warnings += uncached_tools(spec, catalog.raw_tool, [tool.name for tool in catalog.tools])
    if link is not None and (unparsable := unparsable_output(link, kind, mask)):
        warnings.append(unparsable)
    if upstream is not None:
        warnings += [f"{count} {what}" for what, count in upstream.link.deviations.counts.items()]
    if log.dropped:
        warnings.append(f"{log.dropped} log lines could not be written to {log.path}")
    status = ServerStatus(
        name=spec.name,
        status=tracker.state,
        since=rfc3339(tracker.since),
        transport=kind,
        reason=tracker.reason,
        pid=None if child is None else child.pid,
        containers=() if child is None or child.containers is None else child.containers.describe(),
        degraded=degraded,
        restarts=tracker.restarts,
        attempts=attempts,
        last_error=tracker.failure,
        last_ok=_optional_time(last_received),
        retry_at=_optional_time(tracker.retry_at),
        off_until=_optional_time(off_until),
        lazy=spec.lazy,
        questions=waiting[0],
        waiting=waiting[1],
        waiting_calls=waiting[2],
        warnings=tuple(map(mask, warnings)),
    )
    if catalog is not None:
        status = attrs.evolve(
            status,
            tools=len(catalog.tools),
            resources=len(catalog.resources),
            prompts=len(catalog.prompts),
            updated=catalog.fetched_at or None,
        )
    if upstream is not None:
        session = upstream.link.session
        status = attrs.evolve(
            status,
            protocol_version=upstream.version,
            era=upstream.era,
            session=None if session is None else bool(session),
            server_info=ServerInfo(
                **{name: mask(text) for name, text in attrs.asdict(upstream.info).items()}
            ),
            capabilities=tuple(sorted(upstream.capabilities)),
            in_flight=upstream.link.requests.in_flight,
        )
    return status


def _optional_time(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(seconds)


def add_connections(status: ServerStatus, companion: ServerStatus | None) -> ServerStatus:
    """Return the status of a server together with that of its second connection, if it has one."""
    if companion is None:
        return attrs.evolve(status, connections=(_connection(status),))
    warnings = [*status.warnings, *companion.warnings]
    if companion.status is ServerState.FAILED and companion.last_error is not None:
        failure = companion.last_error.summary
        warnings.append(
            f"the second connection failed: {failure}; until it is back, all clients use the first"
        )
    return attrs.evolve(
        status,
        in_flight=status.in_flight + companion.in_flight,
        questions=(*status.questions, *companion.questions),
        waiting=(*status.waiting, *companion.waiting),
        waiting_calls=status.waiting_calls + companion.waiting_calls,
        warnings=tuple(dict.fromkeys(warnings)),
        connections=(_connection(status), _connection(companion)),
    )


def _connection(status: ServerStatus) -> ConnectionStatus:
    return ConnectionStatus(
        status=status.status,
        revision=status.protocol_version,
        era=status.era,
        pid=status.pid,
        since=status.since,
        restarts=status.restarts,
        in_flight=status.in_flight,
        last_error=status.last_error,
    )


def unparsable_output(channel: Channel, kind: TransportKind, mask: Callable[[str], str]) -> str:
    """Describe the output that was not JSON-RPC, with a sample; empty if there was none."""
    count, first = channel.deviations.unparsable_lines, shorten(mask(channel.deviations.unparsable_sample))
    what, where = ("line", " on its stdout") if kind == "stdio" else ("frame", "")
    if count == 1:
        return f"1 {what}{where} was not JSON-RPC: {first}"
    return f"{count} {what}s{where} were not JSON-RPC; the first: {first}" if count else ""


DISCONNECTED = "disconnected by hand"
"""The reason of a server that is off because a user disconnected it, as opposed to a disabled one."""


class DesiredState:
    """Each setter returns whether it changed anything, so that unchanged servers are left alone."""

    def __init__(self, spec: ServerSpec, store: StateFile) -> None:
        self._name, self._store = spec.name, store
        self._default = spec.enabled
        self.enabled = self._wanted
        """The persistent setting if there is one, otherwise `enabled` of the definition."""
        self.disconnected = False
        """Set by the user; lasts until the next connect or until the daemon restarts."""
        self.start_requested = not spec.lazy
        """False for a lazy server that nobody has used yet."""

    @property
    def is_off(self) -> bool:
        return not self.enabled or self.disconnected

    @property
    def off_until(self) -> float | None:
        """When a timed disable ends (seconds since the epoch); None if on, or off without a limit."""
        return None if self.enabled else self._store.disabled_until(self._name)

    @property
    def seconds_until_enabled(self) -> float:
        """Seconds by the wall clock until a timed disable ends: ≤ 0 once it has, infinite without a limit."""
        return math.inf if (until := self.off_until) is None else until - time.time()

    @property
    def off_reason(self) -> str:
        """Why the server is off, for its status."""
        if self.enabled:
            return DISCONNECTED
        if (until := self.off_until) is not None:
            return f"switched off until {format_time(until)}"
        return "switched off" if self._is_toggled else "switched off in its definition"

    @property
    def _is_toggled(self) -> bool:
        return self._store.is_enabled(self._name) is not None

    def connect(self) -> None:
        """Connect, unless the server is disabled."""
        self.disconnected, self.start_requested = False, True

    def disconnect(self) -> bool:
        changed = not self.disconnected
        self.disconnected = True
        return changed

    def set_enabled(self, on: bool, until: float | None = None) -> bool:
        """Enable (which also takes back a disconnect) or disable persistently, or disable `until` then."""
        another_end = not on and until != self._store.disabled_until(self._name)
        self._store.set_toggle(self._name, on if until is None else until)
        if on == self.enabled and not (on and self.disconnected):
            return another_end
        self.enabled, self.disconnected = on, False
        return True

    def end_timed_disable(self) -> None:
        """Return to what held before: the persistent setting or the definition. A disconnected server stays
        disconnected.
        """
        self._store.end_timed_disable(self._name)
        self.enabled = self._wanted

    def set_default(self, enabled: bool) -> bool:
        """Apply `enabled` of a changed definition, unless a persistent setting overrides it."""
        self._default = enabled
        if self._is_toggled:
            return False
        self.enabled = enabled
        return True

    @property
    def _wanted(self) -> bool:
        toggled = self._store.is_enabled(self._name)
        return self._default if toggled is None else toggled

    def request_start(self) -> bool:
        changed = not self.start_requested
        self.start_requested = True
        return changed
