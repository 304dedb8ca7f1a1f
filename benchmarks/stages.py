"""Compare calls that a policy decides and the call log records with calls that have neither."""

from __future__ import annotations

import signal
from contextlib import ExitStack

from benchmarks.daemon import on_pipes, running
from benchmarks.figures import IN_FLIGHT, PATIENCE, Row, Way, a_second, in_turns, micro_tenth, pair, ratio
from benchmarks.load import OnLine, attached

FLOOD = 30_000
RULE = {"decision": "allow", "servers": ["stub-*"], "tools": ["echo"]}


def add(rounds: int) -> list[Row]:
    """Measure both kinds of calls in turns."""
    signal.alarm(PATIENCE)
    with ExitStack() as held:

        def way(name: str, settings: dict[str, object]) -> Way:
            daemon = held.enter_context(running(on_pipes(1), settings={"validate": False, **settings}))
            return Way(name, OnLine(held.enter_context(attached(daemon.socket, "stub-1"))), daemon.pid)

        none, both = way("none", {"callLog": "off"}), way("both", {"policies": [RULE]})
        in_turns((none, both), rounds, flood=FLOOD)
    name = "one policy and the call log vs. neither"
    return [
        Row(
            f"{name}: calls per second, {IN_FLIGHT} in flight",
            pair(none.rate, both.rate, a_second),
            ratio(both.rate, none.rate),
        ),
        Row(
            f"{name}: CPU time per call, {IN_FLIGHT} in flight",
            pair(none.cpu, both.cpu, micro_tenth),
            ratio(both.cpu, none.cpu),
            1.15,
        ),
    ]
