"""The timeout that a caller sets begins when mcpd gets the call: until the call is sent, it is watched here.

A call may wait for its server, for the approval of a person, and for its turn. One task watches all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpd.calls.call import PREPARING, QUEUED, Call, CallHandler, Spawn
from mcpd.model.errors import CallTimeout


class SendDeadlines:
    """The deadlines of calls with a timeout that are not sent yet. `spawn` runs tasks that outlive calls;
    `obstacle` says what a queued call waits for."""

    def __init__(self, handler: CallHandler, spawn: Spawn, obstacle: Callable[[Call], str]) -> None:
        self._handler = handler
        self._spawn = spawn
        self._obstacle = obstacle
        self._calls: dict[Call, float] = {}
        """Call → its deadline (`trio.current_time()`)."""
        self._timer: trio.CancelScope | None = None
        """Set while the task runs."""

    def add(self, call: Call) -> None:
        """Fail the call when its `idle_timeout` has passed, unless `remove` is called before."""
        deadline = call.send_deadline = trio.current_time() + call.idle_timeout
        self._calls[call] = deadline
        if self._timer is None:
            self._timer = trio.CancelScope()
            self._spawn(self._watch)
        elif deadline < self._timer.deadline:
            self._timer.deadline = deadline

    def remove(self, call: Call) -> None:
        """Stop watching a call. No effect on other calls."""
        if self._calls.pop(call, None) is not None and not self._calls and self._timer is not None:
            self._timer.cancel()

    def seconds_left(self, call: Call) -> float:
        """Return how long a call may still take that is about to be sent. Raises CallTimeout if its time is
        over: nothing was sent then.
        """
        left = call.send_deadline - trio.current_time()
        if left <= 0:
            raise self._timed_out(call)
        return left

    async def _watch(self) -> None:
        try:
            while self._calls:
                with trio.CancelScope(deadline=min(self._calls.values())) as self._timer:
                    await trio.sleep_forever()
                now = trio.current_time()
                for call in [call for call, deadline in self._calls.items() if deadline <= now]:
                    self._fail(call)
        finally:
            self._timer = None

    def _fail(self, call: Call) -> None:
        if self._calls.pop(call, None) is None or call.state not in (PREPARING, QUEUED):
            return  # it has ended meanwhile, such as when the turn of another one came
        error = self._timed_out(call)
        if call.work is not None:
            call.work.cancel(reason="its timeout is over")
        self._handler.fail(call, error)

    def _timed_out(self, call: Call) -> CallTimeout:
        name, limit = call.server.spec.name, call.idle_timeout
        if call.waits_for:
            why = call.waits_for
        elif call.state is QUEUED:
            why = f"it waited for {self._obstacle(call)}"
        elif call.server.upstream is None:
            why = call.server.explain_state()
        else:
            why = "it was still being prepared"
        return CallTimeout(
            f"{name}: {call.description} was not sent within {limit:g} s, because {why}; "
            f"nothing was sent ({call.timeout_source} the limit)",
            server=name,
            after=limit,
            may_have_run=False,
        )
