"""Measure durations without the time that the machine was busy with other work.

A requirement such as "within a second" limits what mcpd waits for. On a loaded or suspended machine the wall
clock counts more than that, and a test of the requirement would fail without a defect. On an idle machine the
result is the wall-clock time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK = 0.01
_LATE = 0.02
"""An alarm this late is no hold-up yet."""
_PRESSURE = [Path("/proc/pressure", of) for of in ("cpu", "io", "memory")]


def lost_to_pressure() -> float:
    """Return the seconds since boot in which a task waited for a processor, the disk or memory.

    The sum of the kernel's pressure stall information (0 if it is not available) and the time that the host
    of a virtual machine gave to others.
    """
    lost = stolen()
    for file in _PRESSURE:
        try:
            found = re.search(r"some .*total=(\d+)", file.read_text())
        except OSError:
            continue
        lost += int(found[1]) / 1e6 if found else 0.0
    return lost


def stolen() -> float:
    """Return the seconds of all processors that went to other virtual machines since boot."""
    try:
        total = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(total[8]) / os.sysconf("SC_CLK_TCK") if len(total) > 8 else 0.0


IDLE_IMPORT = 0.4
"""Seconds that `slowness` takes on an idle machine of two cores."""


def slowness() -> float:
    """Return how many times longer a computation takes now than on an idle two-core machine; at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import mcpd.daemon"], check=True, timeout=120)
    return max(1.0, (time.monotonic() - began) / IDLE_IMPORT)


def within(taken: float, promised: float) -> bool:
    """Return whether a duration meets a limit that was set for an idle machine.

    `stopwatch` excludes the time spent waiting for the machine, but not that computing is slower on a shared
    one. If `taken` is too long, the limit is multiplied by the square of the machine's slowness, because the
    slowness changes quickly. On an idle machine the limit is exact. For processor time use `affordable`.
    """
    return taken <= promised or taken <= promised * slowness() ** 2


SHARED_CORE = 2.0
"""How much more processor time the same work uses at most while others share the core and its caches."""


def affordable(spent: float, promised: float) -> bool:
    """Return whether processor time meets a limit, however busy the machine is.

    The time during which a process does not run is not counted, so the limit is fixed. `spent` should be the
    smallest of several tries.
    """
    return spent <= promised * SHARED_CORE


def assert_cheap(work: Callable[[], object], promised: float, tries: int = 5) -> None:
    """Assert that the processor time of this thread for `work` is `affordable` in one of several tries."""
    spent: list[float] = []
    while len(spent) < tries and not any(each <= promised for each in spent):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    assert affordable(min(spent), promised), f"{min(spent):.3f} s of processor time instead of {promised} s"


class Stopwatch:
    """Created by `stopwatch`. It cannot measure CPU work of its own process, which delays the ticks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_up = 0.0
        self._due = time.monotonic() + _TICK
        self._began = self.now()

    def now(self) -> float:
        """Return the seconds on a clock with an arbitrary start."""
        with self._lock:
            late = time.monotonic() - self._due
            held_up = self._held_up + (late if late > _LATE else 0.0)
            return time.monotonic() - held_up - lost_to_pressure()

    def restart(self) -> None:
        self._began = self.now()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start or the last restart."""
        return max(0.0, self.now() - self._began)

    def tick(self) -> None:
        """Call this every 10 ms. A late call means that the process was held up."""
        with self._lock:
            now = time.monotonic()
            if now - self._due > _LATE:
                self._held_up += now - self._due
            self._due = now + _TICK


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Start a stopwatch that runs until the block ends."""
    watch, over = Stopwatch(), threading.Event()

    def tick() -> None:
        while not over.wait(_TICK):
            watch.tick()

    ticking = threading.Thread(target=tick, name="stopwatch")
    ticking.start()
    try:
        yield watch
    finally:
        over.set()
        ticking.join(10)
