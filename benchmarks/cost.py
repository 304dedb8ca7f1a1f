"""Measure the startup and the idle cost of the daemon, and the startup of `mcpctl`."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.daemon import Daemon, first_call, on_pipes, running
from benchmarks.figures import PATIENCE, Row, milli, pair, ratio
from benchmarks.load import Wrong

SERVERS = 20
IDLE_SECONDS = 2.0
STATUS_CALLS = 10
"""Runs of `mcpctl status` in each round."""


def cost(rounds: int) -> list[Row]:
    """Measure a daemon with twenty servers, and how soon a daemon with one server answers a call."""
    signal.alarm(2 * PATIENCE)
    taken, memory, busy, answered, kind = [], [], [], [], ""
    bare: list[float] = []
    status: list[float] = []
    for _ in range(rounds):
        answered.append(first_call())
        with running(on_pipes(SERVERS)) as daemon:
            taken.append(daemon.connected_after)
            _measure_status(daemon, bare, status)
            time.sleep(2)  # let the processes become idle
            size, kind = daemon.memory()
            memory.append(size)
            busy.append(daemon.cpu(IDLE_SECONDS))
    return [
        Row(
            "first call answered after start",
            f"{min(answered):.2f} to {max(answered):.2f} s",
            statistics.median(answered),
            0.25,
            unit="s",
        ),
        Row(
            f"{SERVERS} servers connected after start",
            f"{min(taken):.2f} to {max(taken):.2f} s",
            statistics.median(taken),
            1,
            unit="s",
        ),
        Row(
            f"idle memory with {SERVERS} servers",
            f"{kind}, guardian included",
            statistics.median(memory),
            32,
            unit="MB",
        ),
        Row(
            f"idle CPU with {SERVERS} servers",
            f"over {rounds * IDLE_SECONDS:g} s",
            statistics.mean(busy),
            0.5,
            unit="%",
        ),
        Row("mcpctl status vs. python -c pass", pair(bare, status, milli), ratio(status, bare), 2.2),
    ]


def _measure_status(daemon: Daemon, bare: list[float], status: list[float]) -> None:
    """Compare `mcpctl status` with an empty Python program."""
    nothing = [sys.executable, "-c", "pass"]
    asked = [str(Path(sys.executable).with_name("mcpctl")), "status"]
    _wall(asked, daemon)  # the first run writes the bytecode
    for _ in range(STATUS_CALLS):
        bare.append(_wall(nothing, daemon))
        status.append(_wall(asked, daemon))


def _wall(command: Sequence[str], daemon: Daemon) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, env=daemon.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    taken = time.perf_counter() - start
    if done.returncode:
        raise Wrong(f"{' '.join(command)} exited with status {done.returncode}: {done.stderr.decode()}")
    return taken
