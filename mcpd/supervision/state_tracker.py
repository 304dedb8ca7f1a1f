"""The state of one server, its reason, and when the next attempt to connect starts."""

from __future__ import annotations

import math
import time
from collections import deque

import trio

from mcpd.model import advice
from mcpd.model.errors import NotReady
from mcpd.model.status import (
    Failure,
    FailureKind,
    ServerState,
    rfc3339,
)
from mcpd.supervision.desired_state import DISCONNECTED

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
