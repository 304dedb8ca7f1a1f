"""How one server stands: its state, since when, why, and when it is tried again."""

from __future__ import annotations

import math
import time

import trio

from mcpd.model.errors import NotReady
from mcpd.model.status import Failure, FailureKind, ServerState, rfc3339
from mcpd.supervision.desired_state import DISCONNECTED

_RETRY_SOON = 5.0
"""A call waits for a retry that is due within this time, instead of failing on the spot."""
_EARLY_RETRY_INTERVAL = 5.0
"""Seconds that a server which cannot be reached is left alone after an attempt, however many want it."""


class StateTracker:
    """Changed by the server's own task and by wishes, through `become`; others read it and wait."""

    def __init__(self) -> None:
        self.state = ServerState.PENDING
        self.reason = "queued"
        self.since = time.time()
        self.failure: Failure | None = None
        """Why the last connection or attempt ended; kept until a person acts."""
        self.retry_at: float | None = None
        """When the next attempt begins, by the wall clock, for display."""
        self.retry_due = math.inf
        """The same by `trio.current_time()`."""
        self._scheduled_at = -math.inf
        self._changed = trio.Event()

    def set_state(self, state: ServerState, reason: str) -> bool:
        """The only place that changes the state. Whether it is another one than before."""
        assert self.state.may_become(state), f"{self.state} may not become {state}"
        another = state is not self.state
        if another:
            self.since = time.time()
        self.state, self.reason = state, reason
        return another

    def notify(self) -> None:
        """Wake who waits for a change."""
        moved, self._changed = self._changed, trio.Event()
        moved.set()

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def schedule_retry(self, seconds: float) -> None:
        self._scheduled_at = trio.current_time()
        self.retry_at, self.retry_due = time.time() + seconds, self._scheduled_at + seconds

    def clear_retry(self) -> None:
        self.retry_at, self.retry_due = None, math.inf

    @property
    def not_retrying_soon(self) -> bool:
        """Whether waiting for a connection is no use: off, or failed with no attempt soon."""
        if self.state in (ServerState.PENDING, ServerState.IDLE):
            return False
        if self.state is ServerState.FAILED:
            return self.retry_due - trio.current_time() > _RETRY_SOON
        return True

    @property
    def may_retry_early(self) -> bool:
        """Whether who wants it now may have it tried before its time. Only a server that could not be
        reached: it may be there by now; to look costs no process, and bothers nobody who asked for peace."""
        if self.state is not ServerState.FAILED or self.failure is None:
            return False
        unreachable = self.failure.kind is FailureKind.UNREACHABLE
        return (
            unreachable
            and self.not_retrying_soon
            and trio.current_time() - self._scheduled_at >= _EARLY_RETRY_INTERVAL
        )

    def not_ready(self, name: str, *, is_closed: bool = False) -> NotReady:
        """Why nothing can be sent now, and what to do. `over`: it has ended for good."""
        why = self.reason
        if is_closed or self.state is ServerState.CONNECTED:  # nobody announces the end of what goes for good
            why = "it is being stopped, since it was removed or defined anew"
        elif self.failure is not None and self.state in (ServerState.FAILED, ServerState.NEEDS_AUTH):
            why = self.failure.message
        back = "connect" if self.reason == DISCONNECTED else "enable"
        advice = {
            ServerState.DISABLED: f"`mcpctl {back} {name}` brings it back",
            ServerState.NEEDS_AUTH: f"then `mcpctl reconnect {name}`",
            ServerState.FAILED: f"see `mcpctl status {name}`; `mcpctl reconnect {name}` tries now",
        }.get(self.state, "try again in a moment")
        when = ""
        if self.retry_at is not None:
            when = f"; next attempt in {max(0, self.retry_at - time.time()):.0f} s"
        return NotReady(
            f"{name} is {self.state.value}: {why}{when}. Nothing was sent; {advice}",
            server=name,
            state=self.state.value,
            retry_at=None if self.retry_at is None else rfc3339(self.retry_at),
        )
