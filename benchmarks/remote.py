"""Compare calls to a remote server through the daemon with calls to the same stub over plain sockets."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing

from benchmarks.daemon import running
from benchmarks.figures import IN_FLIGHT, PATIENCE, Row, Way, a_second, in_turns, micro, milli, pair, ratio
from benchmarks.http_load import Direct, stub
from benchmarks.load import OnLine, attached

CALLS, FLOOD, BIG_CALLS = 1000, 6000, 20
P50_LIMIT, RATE_LIMIT = 8, 1500
KINDS = (("modern", "json"), ("legacy", "json"), ("legacy", "sse"))


def speed(rounds: int) -> list[Row]:
    """Measure each era, and responses as event streams, as the official SDKs send them."""
    rows: list[Row] = []
    for era, shape in KINDS:
        rows += _kind(era, shape, rounds)
    return rows


def _kind(era: str, shape: str, rounds: int) -> list[Row]:
    signal.alarm(PATIENCE)
    with ExitStack() as held:
        port = held.enter_context(stub(era, shape))
        definition = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        daemon = held.enter_context(running({"stub-1": definition}))
        bare = Way("direct", held.enter_context(closing(Direct(port, era))))
        through = Way("unix", OnLine(held.enter_context(attached(daemon.socket, "stub-1"))))
        in_turns((bare, through), rounds, calls=CALLS, flood=FLOOD, big=BIG_CALLS)
    name = f"remote server, {era}" + ("" if shape == "json" else ", event streams")
    return [
        Row(f"{name}: p50", pair(bare.p50, through.p50, micro), ratio(through.p50, bare.p50), P50_LIMIT),
        Row(f"{name}: p99", pair(bare.p99, through.p99, micro), ratio(through.p99, bare.p99)),
        Row(
            f"{name}: calls per second, {IN_FLIGHT} in flight",
            f"{pair(bare.rate, through.rate, a_second)}, lowest round",
            min(through.rate),
            RATE_LIMIT,
            at_least=True,
            unit="/s",
        ),
        Row(f"{name}: 1 MiB result", pair(bare.big, through.big, milli), ratio(through.big, bare.big)),
    ]
