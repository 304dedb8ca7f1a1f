"""Seconds as a promise counts them: without those that the machine took from everybody.

A promise like "within a second" is about what mcpd waits for. On a machine that does other work
besides, or that was itself held up, the wall clock counts more than that, and a test of the promise
would fail for no reason. On a quiet machine this is the wall clock.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK = 0.01
_LATE = 0.02
"""An alarm this late is no hold-up yet."""
_PRESSURE = [Path("/proc/pressure", of) for of in ("cpu", "io", "memory")]


def lost_to_pressure() -> float:
    """Seconds, since the machine started, in which somebody had to wait for a processor, the disk or memory.

    The kernel's own account (pressure stall information; 0 where it keeps none), and what the host of a
    virtual machine gave to others.
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
    """Seconds of all processors that went to other virtual machines, since this one started."""
    try:
        total = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(total[8]) / os.sysconf("SC_CLK_TCK") if len(total) > 8 else 0.0


IDLE_IMPORT = 0.4
"""Seconds that `slowness` takes on an idle machine of two cores."""


def slowness() -> float:
    """Return how many times longer than on an idle machine of two cores computing takes now; at least 1."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import mcpd.daemon"], check=True, timeout=120)
    return max(1.0, (time.monotonic() - began) / IDLE_IMPORT)


def within(taken: float, promised: float) -> bool:
    """Return whether a duration keeps a promise that was made for an idle machine.

    What is waited for is measured with `stopwatch`; but computing is slower on a slow or shared machine, and
    nothing accounts for that. If `taken` is too long, the machine's slowness decides: squared, because it
    changes from one moment to the next. On an idle machine the promise is exact.
    """
    return taken <= promised or taken <= promised * slowness() ** 2


class Stopwatch:
    """Made by `stopwatch`. Not for work of this very process, which delays its ticks as a hold-up does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_up = 0.0
        self._due = time.monotonic() + _TICK
        self._began = self.now()

    def now(self) -> float:
        """Seconds on a clock without a meaning of its own."""
        with self._lock:
            late = time.monotonic() - self._due
            held_up = self._held_up + (late if late > _LATE else 0.0)
            return time.monotonic() - held_up - lost_to_pressure()

    def restart(self) -> None:
        self._began = self.now()

    @property
    def seconds(self) -> float:
        """Since the start, or the last restart."""
        return max(0.0, self.now() - self._began)

    def tick(self) -> None:
        """To be called every 10 ms; what comes late was held up."""
        with self._lock:
            now = time.monotonic()
            if now - self._due > _LATE:
                self._held_up += now - self._due
            self._due = now + _TICK


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """A running one, to be read within the block."""
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
