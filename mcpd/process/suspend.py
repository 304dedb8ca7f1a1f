"""Detects that the machine was suspended, or that this process was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import trio

CHECK_INTERVAL = 2.5
"""Seconds between two checks."""
MIN_REPORTED = 5.0
"""Seconds. Shorter delays occur on a busy machine."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


async def watch_for_suspend(on_resume: Callable[[float], None]) -> NoReturn:
    """Call `on_resume` with the duration in seconds, within `CHECK_INTERVAL` after the machine resumes.

    The clock of timers stops while the machine is suspended; CLOCK_BOOTTIME does not. If only this process
    was stopped (SIGSTOP, a frozen cgroup), the timer expires late, which has the same effect.
    """
    while True:
        before = boottime()
        await trio.sleep(CHECK_INTERVAL)
        slept = boottime() - before - CHECK_INTERVAL
        if slept >= MIN_REPORTED:
            on_resume(slept)


def boottime() -> float:
    """Return the seconds since boot, including suspended time."""
    return time.clock_gettime(_CLOCK)
