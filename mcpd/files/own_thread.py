"""A thread for blocking work on files, so that other work that hangs cannot keep it from running."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class OwnThread:
    """Runs functions in a thread, one after another. trio's usual threads are limited to 40 for all users."""

    def __init__(self) -> None:
        self._turn = trio.CapacityLimiter(1)

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function. When cancelled, return at once; the function continues, and the next one waits."""
        return await trio.to_thread.run_sync(function, *arguments, limiter=self._turn, abandon_on_cancel=True)

    async def wait_idle(self) -> None:
        """Wait until no function runs, which may have been left running by a cancellation."""
        async with self._turn:
            pass
