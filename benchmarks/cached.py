"""Compare a call that is answered from the cache with one that is passed on, and count the requests of equal
calls that arrive together."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, cast

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
    pair,
    ratio,
)
from benchmarks.load import Calls, Line, OnLine, attached, control

CALLS, FLOOD = 2000, 30_000
CLIENTS, READS = 8, 100
SERVER = "stub-1"


def share(rounds: int) -> list[Row]:
    """Measure both ways in turns, and let eight clients ask for the same result."""
    signal.alarm(PATIENCE)
    definitions = on_pipes(1, "kindest")  # only results of tools that read are cached
    cached = {SERVER: {**cast("Mapping[str, object]", definitions[SERVER]), "cache": {"echo": "1h"}}}
    with ExitStack() as held:
        other, daemon = held.enter_context(running(definitions)), held.enter_context(running(cached))
        passed = Way("passed on", OnLine(held.enter_context(attached(other.socket, SERVER))), other.pid)
        hit = Way("cached", OnLine(held.enter_context(attached(daemon.socket, SERVER))), daemon.pid)
        in_turns((passed, hit), rounds, calls=CALLS, flood=FLOOD)
        api = held.enter_context(control(daemon.socket))
        clients = [held.enter_context(attached(daemon.socket, SERVER)) for _ in range(CLIENTS)]
        signal.alarm(PATIENCE)
        sent = [_requests_for_equal_reads(api, clients) for _ in range(rounds)]
    return [
        Row(
            "a cached result vs. passing the call on: p50",
            pair(passed.p50, hit.p50, micro),
            ratio(hit.p50, passed.p50),
        ),
        Row(
            f"a cached result vs. passing the call on: calls per second, {IN_FLIGHT} in flight",
            pair(passed.rate, hit.rate, a_second),
            ratio(hit.rate, passed.rate),
        ),
        Row(
            f"a cached result vs. passing the call on: CPU time per call, {IN_FLIGHT} in flight",
            pair(passed.cpu, hit.cpu, micro_tenth),
            ratio(hit.cpu, passed.cpu),
        ),
        Row(f"{READS} equal calls of {CLIENTS} clients", "requests to the server", max(sent), 1, unit=""),
    ]


def _requests_for_equal_reads(api: Line, clients: list[Line]) -> int:
    """Empty the cache, let all clients make equal calls at the same time, and return how many the server
    got."""
    api.ask({"jsonrpc": "2.0", "id": 1, "method": "mcpd/cache/clear", "params": {}})
    before = _calls_of_server(api)
    asked = []
    for number, line in enumerate(clients):
        calls = Calls("echo")
        line.write(calls.requests(READS // CLIENTS + (number < READS % CLIENTS)))
        asked.append((line, calls))
    for line, calls in asked:
        while calls.waiting:
            for answer in line.lines():
                calls.check(answer)
    return _calls_of_server(api) - before


def _calls_of_server(api: Line) -> int:
    answer = cast("Any", api.ask({"jsonrpc": "2.0", "id": 1, "method": "mcpd/stats", "params": {}}))
    [stats] = answer["servers"]
    calls: int = stats["counts"]["calls"]
    return calls
