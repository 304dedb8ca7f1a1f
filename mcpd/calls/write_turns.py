"""Turns for calls that may change something: of one client at a time, but nobody waits long for them.

Many servers read a file, change it and write it back. A client that waits for each of its changes loses none,
but clients that share the process overwrite each other's. A turn protects such a change, which usually takes
milliseconds. It ends with the call, or after `Route.write_turn`, so that long calls keep nobody waiting.
A call that has waited for WAIT_LIMIT runs without a turn.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpd.calls.call import Call, Spawn
from mcpd.supervision.managed_server import ManagedServer

DECLARED = 1.0
"""Seconds of a turn for a tool that declares `readOnlyHint: false`."""
UNDECLARED = 0.1
"""Seconds of a turn for a tool that declares nothing. Many of them change nothing, but wait for a network."""
WAIT_LIMIT = 1.0
"""Seconds for which a call waits, however many are before it."""


class WriteTurns:
    """The turns of one server. `start` sends a call whose wait is over, and must not raise. `spawn` must run
    tasks that outlive the calls.
    """

    def __init__(self, start: Callable[[Call], None], spawn: Spawn) -> None:
        self._start = start
        self._spawn = spawn
        self._owner: object = None
        self._holders: set[Call] = set()
        """Calls of the owner that have a turn. All of them have been sent, or are being sent."""
        self._waiting: dict[Call, float] = {}
        """In order of arrival, with the time at which the wait ends."""
        self._is_watched = False
        self._is_advancing = False

    def enter(self, call: Call) -> bool:
        """Return True if the call may be sent now; otherwise `start` is called for it later."""
        if not self._waiting:
            if self._owner is not call.caller and self._holders:
                self._drop_old_holders(trio.current_time())
            if self._owner is call.caller or not self._holders:
                self._owner = call.caller
                self._holders.add(call)
                return True
        if len(self._waiting) >= call.server.spec.max_queued:
            return True  # a turn is a precaution, and no reason to refuse a call
        self._waiting[call] = trio.current_time() + WAIT_LIMIT
        if not self._is_watched:
            self._is_watched = True
            self._spawn(self._watch)
        return False

    def leave(self, call: Call) -> None:
        """End the turn of a call, or its wait. Does nothing for a call without either."""
        if call in self._holders:
            self._holders.remove(call)
            if self._waiting and not self._holders:
                self._advance(trio.current_time())
        elif self._waiting:
            self._waiting.pop(call, None)

    def __len__(self) -> int:
        return len(self._holders) + len(self._waiting)

    def _drop_old_holders(self, now: float) -> None:
        if self._holders_end() <= now:
            self._holders.clear()

    def _holders_end(self) -> float:
        """Return when the turn of the last holder ends. `_watch` wakes up at exactly this time, so it must be
        compared as it is: `now - sent_at` may be rounded to less than the turn."""
        return max((call.sent_at + call.route.write_turn for call in self._holders), default=0.0)

    def _advance(self, now: float) -> None:
        """Start the calls whose turn has come, and those that have waited long enough. A loop, not recursion:
        if nothing can be sent, each call leaves immediately.
        """
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._waiting:
                self._drop_old_holders(now)
                call, deadline = next(iter(self._waiting.items()))
                if not self._holders or self._owner is call.caller:
                    self._owner = call.caller
                    self._holders.add(call)
                elif deadline > now:
                    break
                del self._waiting[call]
                self._start(call)
        finally:
            self._is_advancing = False

    async def _watch(self) -> None:
        """Watch the clock while calls wait."""
        try:
            while self._waiting:
                await trio.sleep_until(min(self._holders_end(), next(iter(self._waiting.values()))))
                self._advance(trio.current_time())
        finally:
            self._is_watched = False


def write_turns(server: ManagedServer) -> WriteTurns | None:
    """Return the turns of a server, which its spare instances share; None if no call has needed one."""
    turns = (server.original or server).write_turns
    assert turns is None or isinstance(turns, WriteTurns)
    return turns
