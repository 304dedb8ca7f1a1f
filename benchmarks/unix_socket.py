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
from benchmarks.load import OLDER, OnLine, attached, bridged, control, direct, floor

CALLS, FLOOD, BIG_CALLS = 3000, 40_000, 60


def speed(rounds: int) -> list[Row]:
    """Compare calls through the daemon with calls to the stub server, and with calls through the floor."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        daemon = held.enter_context(running(on_pipes(1)))
        relay, relay_pid = held.enter_context(floor())
        bare = Way("direct", OnLine(held.enter_context(direct())))
        lowest = Way("floor", OnLine(relay), relay_pid)
        plain = Way("unix", OnLine(held.enter_context(attached(daemon.socket, "stub-1"))), daemon.pid)
        earlier = held.enter_context(attached(daemon.socket, "stub-1", OLDER))
        older = Way("older client", OnLine(earlier), daemon.pid)
        through_api = Way("mcpd/call", OnLine(held.enter_context(control(daemon.socket)), "stub-1"))
        bridge = Way("bridge", OnLine(held.enter_context(bridged(daemon.environ, "stub-1"))))
        in_turns((bare, lowest, plain, older, through_api, bridge), rounds, CALLS, FLOOD, BIG_CALLS)
    rows = _versus_floor(lowest, plain, older)
    rows += [
        Row(
            "mcpctl bridge vs. Unix socket: p50",
            pair(plain.p50, bridge.p50, micro),
            ratio(bridge.p50, plain.p50),
            1.6,
        ),
        Row(
            "mcpctl bridge vs. Unix socket: p99",
            pair(plain.p99, bridge.p99, micro),
            ratio(bridge.p99, plain.p99),
        ),
        Row(
            f"mcpctl bridge vs. Unix socket: calls per second, {IN_FLIGHT} in flight",
            pair(plain.rate, bridge.rate, a_second),
            100 * ratio(bridge.rate, plain.rate),
            at_least=True,
            unit="%",
        ),
    ]
    for way, limited in (plain, True), (through_api, False):
        name = "tools/call on the Unix socket" if limited else "mcpd/call, raw"
        rows += [
            Row(
                f"{name}: p50",
                pair(bare.p50, way.p50, micro),
                ratio(way.p50, bare.p50),
                5 if limited else None,
            ),
            Row(f"{name}: p99", pair(bare.p99, way.p99, micro), ratio(way.p99, bare.p99)),
            Row(
                f"{name}: calls per second, {IN_FLIGHT} in flight",
                pair(bare.rate, way.rate, a_second),
                100 * ratio(way.rate, bare.rate),
                35 if limited else None,
                at_least=True,
                unit="%",
            ),
            Row(
                f"{name}: 1 MiB result",
                pair(bare.big, way.big, milli),
                ratio(way.big, bare.big),
                6 if limited else None,
            ),
        ]
    return rows


def _versus_floor(lowest: Way, plain: Way, older: Way) -> list[Row]:
    return [
        Row(
            "Unix socket vs. floor: p50",
            pair(lowest.p50, plain.p50, micro),
            ratio(plain.p50, lowest.p50),
            0.75,
        ),
        Row(
            f"Unix socket vs. floor: calls per second, {IN_FLIGHT} in flight",
            pair(lowest.rate, plain.rate, a_second),
            100 * ratio(plain.rate, lowest.rate),
            75,
            at_least=True,
            unit="%",
        ),
        Row(
            f"Unix socket vs. floor: CPU time per call, {IN_FLIGHT} in flight",
            pair(lowest.cpu, plain.cpu, micro_tenth),
            ratio(plain.cpu, lowest.cpu),
            3,
        ),
        Row(
            "server one revision newer than its client vs. same revision: CPU time per call",
            pair(plain.cpu, older.cpu, micro_tenth),
            ratio(older.cpu, plain.cpu),
            1.25,
        ),
    ]
