"""Long work on the event loop, in turns that do not delay other tasks."""

from __future__ import annotations

import time

import trio

MAX_TURN = 0.005
"""Seconds of work before other tasks run."""


class Turns:
    """Call `pause` often during long work: it lets other tasks run if a turn has lasted MAX_TURN.

    The work must tolerate that other tasks run, and cancellation, wherever it calls `pause`.
    """

    def __init__(self) -> None:
        self._ends = time.monotonic() + MAX_TURN

    async def pause(self) -> None:
        """Costs 0.1 µs as long as the turn lasts."""
        if time.monotonic() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = time.monotonic() + MAX_TURN
