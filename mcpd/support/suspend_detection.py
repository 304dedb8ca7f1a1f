"""Noticing that the machine was asleep, or that we alone were stopped for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import trio

CHECK_INTERVAL = 2.5
"""Seconds between two looks at the clock; a wake-up each."""
MIN_REPORTED = 5.0
"""Seconds; shorter ones are a busy machine."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


async def watch_for_suspend(on_resume: Callable[[float], None]) -> NoReturn:
    """Call `on_resume` with the seconds that were slept, soon after waking: within `CHECK_INTERVAL`.

    The clock of our timers stands still while the machine sleeps, CLOCK_BOOTTIME goes on. When only this
    process was stopped (SIGSTOP, a frozen cgroup), both went on, and the sleep took longer than it should.
    """
    while True:
        before = boottime()
        await trio.sleep(CHECK_INTERVAL)
        slept = boottime() - before - CHECK_INTERVAL
        if slept >= MIN_REPORTED:
            on_resume(slept)


def boottime() -> float:
    """Seconds, those of sleep included."""
    return time.clock_gettime(_CLOCK)
