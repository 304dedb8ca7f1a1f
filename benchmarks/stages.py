"""Compare calls with a call log or a policy with calls that have neither."""

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
    pair,
    ratio,
)
from benchmarks.load import OnLine, attached

CALLS, FLOOD = 2000, 30_000
RULE = {"decision": "allow", "servers": ["stub-*"], "tools": ["echo"]}


def add(rounds: int) -> list[Row]:
    """Measure the three kinds of calls in turns."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:

        def way(name: str, settings: dict[str, object]) -> Way:
            daemon = held.enter_context(running(on_pipes(1), settings=settings))
            return Way(name, OnLine(held.enter_context(attached(daemon.socket, "stub-1"))), daemon.pid)

        none = way("none", {"callLog": "off"})
        logged = way("call log", {})
        policy = way("policy", {"callLog": "off", "policies": [RULE]})
        in_turns((none, logged, policy), rounds, CALLS, FLOOD, 0)
    return [
        Row("call log: p99", pair(none.p99, logged.p99, micro), ratio(logged.p99, none.p99)),
        Row(
            f"call log: calls per second, {IN_FLIGHT} in flight",
            pair(none.rate, logged.rate, a_second),
            100 * ratio(logged.rate, none.rate),
            98,
            at_least=True,
            unit="%",
        ),
        Row(
            f"call log: CPU time per call, {IN_FLIGHT} in flight",
            pair(none.cpu, logged.cpu, micro_tenth),
            ratio(logged.cpu, none.cpu),
        ),
        Row(
            f"a policy: CPU time per call, {IN_FLIGHT} in flight",
            pair(none.cpu, policy.cpu, micro_tenth),
            ratio(policy.cpu, none.cpu),
        ),
    ]
