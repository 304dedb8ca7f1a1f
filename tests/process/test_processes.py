"""Resource usage of real process trees."""

from __future__ import annotations

import subprocess
import sys

from mcpd.process.processes import CpuTimeTotal, measure_self, measure_trees

BURN = "import time; end = time.process_time() + 0.35\nwhile time.process_time() < end: pass"


def test_the_time_of_children_that_have_ended_is_not_lost() -> None:
    """Otherwise, the CPU time of a server that runs `git` for each call would be near zero and decrease."""
    script = f"{sys.executable} -c '{BURN}'; echo done; read line"
    before = measure_self().cpu_seconds
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        cost = measure_trees({"it": (process.pid, "no such mark")})["it"]
        process.stdin.close()
    assert cost.processes == 1
    assert cost.cpu_seconds >= 0.3
    assert measure_self().cpu_seconds < before + 0.3  # excludes child processes


def test_total_cpu_time_never_decreases() -> None:
    """This holds over reconnects, failed measurements and coarse clocks."""
    spent = CpuTimeTotal()
    totals = []
    for trees_now in ({}, {"1.it": 2.0}, {"1.it": 1.99}, {"2.it": 0.5}, {}, {"3.it": 1.0, "4.it~2": 1.0}):
        spent.update(trees_now)
        totals.append(spent.seconds)
    assert totals == [0.0, 2.0, 2.0, 2.5, 2.5, 4.5]
