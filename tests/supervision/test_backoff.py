"""Backoff arithmetic, with a seeded random generator and a controlled clock."""

from __future__ import annotations

import random
import statistics

import pytest

from mcpd.model.server_spec import RestartPolicy
from mcpd.supervision.restart import Backoff

POLICY = RestartPolicy(intensity=1_000_000)
"""A policy that never reports a crash loop."""


def test_delays_grow_by_half_up_to_the_cap_and_half_of_each_is_random() -> None:
    """The longest delays are 0.5, 0.75, 1.1, ... 60 s. Starts are at least 0.25 s apart."""
    dice = random.Random(20261121)
    for tries, ceiling in enumerate([*(0.5 * 1.5**step for step in range(12)), 60, 60], start=1):
        drawn = []
        for _ in range(1000):
            backoff = Backoff(POLICY, dice.random)
            pauses = [backoff.record_end(0.0) for _ in range(tries)]
            drawn.append(pauses[-1].seconds)
        assert min(drawn) >= max(0.25, ceiling / 2)
        assert max(drawn) <= ceiling
        assert abs(statistics.fmean(drawn) - ceiling * 0.75) < ceiling * 0.03


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_server_is_not_down_much_longer_than_its_cause(chance: float) -> None:
    """A delay is at most about as long as the server has been failing; after ten seconds, ten seconds."""
    backoff, now = Backoff(RestartPolicy(), lambda: chance), 0.0
    while not (pause := backoff.record_end(now)).crash_loop:
        assert pause.seconds <= now + 0.5
        now += pause.seconds
    assert now > 60, "the delays reach a minute before the crash loop"
