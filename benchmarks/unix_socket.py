"""Compare calls on the Unix socket with calls to the same stub, directly and through the simplest relay."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from benchmarks.daemon import on_pipes, running
from benchmarks.figures import (
    IN_FLIGHT,
    PATIENCE,
    Row,
    Way,
    a_second,
    in_turns,
    micro,
    micro_tenth,
    milli,
    pair,
    ratio,
)
from benchmarks.load import OnLine, attached, bridged, direct, floor

CALLS, FLOOD, BIG_CALLS, HUGE_CALLS = 3000, 40_000, 60, 8
LARGE_LIMIT, BRIDGE_LIMIT = 2.5, 1.6


def speed(rounds: int) -> list[Row]:
    """Measure the usual case and the kindest one."""
    return [*_usual(rounds), *_kindest(rounds)]


def _usual(rounds: int) -> list[Row]:
    """Measure a server of both eras with a client of the older one."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        daemon = held.enter_context(running(on_pipes(1)))
        relay, relay_pid = held.enter_context(floor())
        bare = Way("direct", OnLine(held.enter_context(direct())[0]))
        lowest = Way("floor", OnLine(relay), relay_pid)
        plain = Way("unix", OnLine(held.enter_context(attached(daemon.socket, "stub-1"))), daemon.pid)
        bridge = Way("bridge", OnLine(held.enter_context(bridged(daemon.environ, "stub-1"))[0]))
        in_turns((lowest, plain, bridge), rounds, calls=CALLS, flood=FLOOD)
        in_turns((bare, plain), rounds, big=BIG_CALLS, huge=HUGE_CALLS)
    return [
        *_versus_floor("Unix socket vs. floor", lowest, plain, (0.9, 60, 3.5)),
        Row(
            "Unix socket vs. direct: 1 MiB result",
            pair(bare.big, plain.big, milli),
            ratio(plain.big, bare.big),
            LARGE_LIMIT,
        ),
        Row(
            "Unix socket vs. direct: 16 MiB result",
            pair(bare.huge, plain.huge, milli),
            ratio(plain.huge, bare.huge),
            LARGE_LIMIT,
        ),
        Row(
            "mcpctl bridge vs. Unix socket: p50",
            pair(plain.p50, bridge.p50, micro),
            ratio(bridge.p50, plain.p50),
            BRIDGE_LIMIT,
        ),
        Row(
            f"mcpctl bridge vs. Unix socket: calls per second, {IN_FLIGHT} in flight",
            pair(plain.rate, bridge.rate, a_second),
            100 * ratio(bridge.rate, plain.rate),
            at_least=True,
            unit="%",
        ),
    ]


def _kindest(rounds: int) -> list[Row]:
    """Measure a server of the same revision whose tools only read, and which answers a batch at once."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        daemon = held.enter_context(running(on_pipes(1, "kindest")))
        relay, relay_pid = held.enter_context(floor("kindest"))
        lowest = Way("floor", OnLine(relay), relay_pid)
        plain = Way("unix", OnLine(held.enter_context(attached(daemon.socket, "stub-1"))), daemon.pid)
        in_turns((lowest, plain), rounds, calls=CALLS, flood=FLOOD)
    return _versus_floor("Unix socket vs. floor, kindest case", lowest, plain, (None, None, None))


def _versus_floor(
    name: str, lowest: Way, plain: Way, limits: tuple[float | None, float | None, float | None]
) -> list[Row]:
    """Return the rows of the latency, the rate and the CPU time, which have these limits."""
    p50, rate, cpu = limits
    return [
        Row(f"{name}: p50", pair(lowest.p50, plain.p50, micro), ratio(plain.p50, lowest.p50), p50),
        Row(
            f"{name}: calls per second, {IN_FLIGHT} in flight",
            pair(lowest.rate, plain.rate, a_second),
            100 * ratio(plain.rate, lowest.rate),
            rate,
            at_least=True,
            unit="%",
        ),
        Row(
            f"{name}: CPU time per call, {IN_FLIGHT} in flight",
            pair(lowest.cpu, plain.cpu, micro_tenth),
            ratio(plain.cpu, lowest.cpu),
            cpu,
        ),
    ]
