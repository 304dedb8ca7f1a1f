"""Ends what has been unused for a while, with one task for each thing, however often it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

import trio


class Linger:
    """Calls a function `seconds` after something was last used.

    `spawn` must run tasks that outlive clients.
    """

    def __init__(self, seconds: float, spawn: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._seconds = seconds
        self._spawn = spawn
        self._due: dict[Hashable, float] = {}

    def begin(self, thing: Hashable, end: Callable[[], None]) -> None:
        """Nobody uses `thing` now: call `end` later. It must check whether the thing is used again.

        If this is called again before that, the time restarts, and the first call's `end` is kept.
        """
        is_waiting = thing in self._due
        self._due[thing] = trio.current_time() + self._seconds
        if not is_waiting:
            self._spawn(lambda: self._wait(thing, end))

    async def _wait(self, thing: Hashable, end: Callable[[], None]) -> None:
        # A new use only sets a later time: waking up for each of them would cost more.
        while (due := self._due[thing]) > trio.current_time():  # noqa: ASYNC110
            await trio.sleep_until(due)
        del self._due[thing]
        end()
