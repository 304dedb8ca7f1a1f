"""Measure whether the cost of a call, a server and a client grows with their number."""

from __future__ import annotations

import signal
import statistics
import time
from contextlib import ExitStack
from functools import partial

from benchmarks.daemon import Daemon, on_pipes, running
from benchmarks.figures import (
    IN_FLIGHT,
    PATIENCE,
    Row,
    Way,
    in_turns,
    micro,
    micro_tenth,
    pair,
    ratio,
)
from benchmarks.load import OnLine, aggregated, attached, tools_call

FEW, MANY = 20, 200
"""Servers with which the memory is measured."""
CLIENTS = 200
STARTS = 3
CALLS, FLOOD = 1000, 20_000


def grow(rounds: int) -> list[Row]:
    """Measure 200 servers and 200 clients."""
    starts = min(rounds, STARTS)
    taken, memory, kind = [], [], ""
    for _ in range(starts):
        signal.alarm(PATIENCE)
        with running(on_pipes(FEW)) as daemon:
            few, kind = _idle_memory(daemon)
        with running(on_pipes(MANY)) as daemon:
            taken.append(daemon.connected_after)
            many, _ = _idle_memory(daemon)
            memory.append((many - few) / (MANY - FEW))
    return [
        *_calls(rounds),
        Row(
            f"{MANY} servers connected after start",
            f"{min(taken):.2f} to {max(taken):.2f} s",
            statistics.median(taken),
            2,
            unit="s",
        ),
        Row(f"each additional idle server, of {MANY}", kind, statistics.median(memory), 0.1, unit="MB"),
        *_clients(),
    ]


def _calls(rounds: int) -> list[Row]:
    """Compare calls on a connection for all of 200 servers with calls on a connection for one of them."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        daemon = held.enter_context(running(on_pipes(MANY)))
        one = Way("attached", OnLine(held.enter_context(attached(daemon.socket, "stub-1"))), daemon.pid)
        line = held.enter_context(aggregated(daemon.socket))
        every = Way("aggregate", OnLine(line, partial(tools_call, prefix="stub-1__")), daemon.pid)
        in_turns((one, every), rounds, calls=CALLS, flood=FLOOD)
    name = f"one of {MANY} servers, all vs. one attached"
    return [
        Row(f"{name}: p50", pair(one.p50, every.p50, micro), ratio(every.p50, one.p50), 1.2),
        Row(
            f"{name}: CPU time per call, {IN_FLIGHT} in flight",
            pair(one.cpu, every.cpu, micro_tenth),
            ratio(every.cpu, one.cpu),
            1.2,
        ),
    ]


def _clients() -> list[Row]:
    """Measure clients of all servers that connect one after the other and stay idle."""
    signal.alarm(PATIENCE)
    with running(on_pipes(1)) as daemon, ExitStack() as held:
        for _ in range(20):  # the first clients create shared objects
            held.enter_context(aggregated(daemon.socket))
        before, kind = _idle_memory(daemon)
        start = time.monotonic()
        for _ in range(CLIENTS):
            held.enter_context(aggregated(daemon.socket))
        taken = time.monotonic() - start
        after, _ = _idle_memory(daemon)
    size = (after - before) / CLIENTS
    return [
        Row(f"{CLIENTS} clients connected", "one after the other", taken, 2, unit="s"),
        Row(f"each additional idle client, of {CLIENTS}", kind, size, 0.1, unit="MB"),
    ]


def _idle_memory(daemon: Daemon) -> tuple[float, str]:
    time.sleep(2)  # let the processes become idle
    return daemon.memory()
