"""Noticing that the machine was asleep, or that we alone were stopped for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import trio

LOOK_EVERY = 2.5
"""Seconds between two looks at the clock; a wake-up each."""
WORTH_TELLING = 5.0
"""Seconds; shorter ones are a busy machine."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


async def watch_suspend(woken: Callable[[float], None]) -> NoReturn:
    """Call `woken` with the seconds that were slept, soon after waking: within `LOOK_EVERY`.

    The clock of our timers stands still while the machine sleeps, CLOCK_BOOTTIME goes on. When only this
    process was stopped (SIGSTOP, a frozen cgroup), both went on, and the sleep took longer than it should.
    """
    while True:
        before = now()
        await trio.sleep(LOOK_EVERY)
        slept = now() - before - LOOK_EVERY
        if slept >= WORTH_TELLING:
            woken(slept)


def now() -> float:
    """Seconds, those of sleep included."""
    return time.clock_gettime(_CLOCK)
