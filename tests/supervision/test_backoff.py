"""Backoff arithmetic, with a seeded random generator and a controlled clock."""

from __future__ import annotations

import random
import statistics

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
