"""What must hold while and after somebody attacks the daemon: nobody else waits, and memory returns.

The wait of a client of another server is measured in processor time of the daemon, so that a busy machine
changes nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.e2e.harness import BOUND, Daemon, Json, wait_until
from tests.faults.bystander import resident
from tests.faults.measure import peak_memory
from tests.fuzz.world import ROOT
from tests.stopwatch import affordable

MIB = 1 << 20
STALL, P99 = 0.1, 0.05
"""Seconds of processor time of the daemon that a call to another server may wait: the longest, and the 99th
percentile during a flood."""
PEAK, GROWTH = 250 * MIB, 10 * MIB
"""Bytes of resident memory, at most; and more than before, after the attacker has gone: up to 2.5 MiB for
what is needed for the first time, and 4.5 MiB that are free, but in the same arenas of Python as younger
objects. Chance decides how objects are spread: nothing may create hundreds of large results at once.
"""
ENOUGH = 50
"""Calls of the bystander, at least, of which a percentile can be taken."""
TRIES = 5
"""What else the machine does can only lengthen the waits, so the shortest of several tries counts."""

Attack = Callable[[Daemon], None]


@contextmanager
def bystander(daemon: Daemon) -> Iterator[Json]:
    """Call another server every 10 ms; the block gets the result of tests/fuzz/bystander.py at its end."""
    seen: Json = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.bystander", daemon.socket, str(daemon.pid)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield seen
    finally:
        out, _ = process.communicate(timeout=3 * BOUND)
        seen.update(json.loads(out))


def withstand(
    daemon: Daemon, attack: Attack, leave: Attack = lambda daemon: None, *, is_flood: bool = False
) -> None:
    """Let `attack` happen until its figures are met, at most TRIES times; then `leave` ends the attacker."""
    base = resident(daemon.pid)
    longest = p99 = float("inf")
    for _ in range(TRIES):
        with peak_memory(daemon.pid) as peak, bystander(daemon) as seen:
            attack(daemon)
        assert seen["wrong"] == []
        assert seen["calls"]
        assert peak.bytes <= PEAK, f"{peak.bytes / MIB:.0f} MiB"
        longest = min(longest, seen["max"] / 1000)
        if seen["calls"] >= ENOUGH:
            p99 = min(p99, seen["p99"] / 1000)
        if longest <= STALL and (p99 <= P99 or not is_flood):
            break
    assert affordable(longest, STALL), f"a call waited for {longest * 1000:.0f} ms"
    if is_flood and p99 < float("inf"):
        assert affordable(p99, P99), f"the 99th percentile of the waits is {p99 * 1000:.0f} ms"
    leave(daemon)
    wait_until(
        lambda: resident(daemon.pid) - base <= GROWTH,
        lambda: f"{(resident(daemon.pid) - base) / MIB:.1f} MiB more than before",
    )
    assert "Traceback" not in daemon.log
    assert "error in mcpd itself" not in daemon.log
