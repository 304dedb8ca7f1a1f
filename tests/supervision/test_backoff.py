"""Backoff arithmetic, with a seeded random generator and a controlled clock."""

from __future__ import annotations

import random
import statistics

from mcpd.model.server_spec import RestartPolicy
from mcpd.supervision.restart import Backoff

POLICY = RestartPolicy(intensity=1_000_000)
"""A policy that never reports a crash loop."""


def test_backoff_is_full_jitter_below_a_ceiling_that_doubles_up_to_the_cap() -> None:
    """The ceiling is 0.5, 1, 2, ... 60 s; the mean delay is half of it, and starts are at least 0.25 s
    apart."""
    dice = random.Random(20261121)
    for tries, ceiling in enumerate([0.5, 1, 2, 4, 8, 16, 32, 60, 60], start=1):
        drawn = []
        for _ in range(2000):
            backoff = Backoff(POLICY, dice.random)
            pauses = [backoff.record_end(0.0) for _ in range(tries)]
            drawn.append(pauses[-1].seconds)
        assert min(drawn) >= POLICY.floor
        assert max(drawn) <= ceiling
        expected = statistics.fmean(max(POLICY.floor, share * ceiling / 1000) for share in range(1000))
        assert abs(statistics.fmean(drawn) - expected) < ceiling * 0.03


def test_backoff_does_not_overflow_after_thousands_of_failures() -> None:
    """`2.0 ** 5000` would overflow."""
    backoff = Backoff(POLICY, lambda: 1.0)
    assert [backoff.record_end(0.0).seconds for _ in range(5000)][-1] == POLICY.cap


def test_five_failures_within_a_minute_are_a_crash_loop() -> None:
    """Four failures within a minute are not, regardless of earlier failures."""
    quick, slow = Backoff(RestartPolicy(), lambda: 0.5), Backoff(RestartPolicy(), lambda: 0.5)
    assert [quick.record_end(at).crash_loop for at in (0, 14, 28, 42, 56)] == [False] * 4 + [True]
    assert not any(slow.record_end(at).crash_loop for at in range(0, 1500, 15))


def test_crash_loop_retries_every_five_minutes_with_jitter() -> None:
    """Jitter keeps servers in crash loops from being retried simultaneously."""
    backoff, drawn = Backoff(RestartPolicy(), random.Random(20261121).random), []
    for number in range(2005):
        pause = backoff.record_end(number * 300.0 if number > 5 else 0.0)
        if pause.crash_loop:
            drawn.append(pause.seconds)
    assert len(drawn) == 2001
    assert (min(drawn) >= 240, max(drawn) <= 360) == (True, True)
    assert max(drawn) - min(drawn) > 110
    assert abs(statistics.fmean(drawn) - 300) < 5


def test_reset_clears_the_backoff() -> None:
    """A reset ends a crash loop as well."""
    backoff = Backoff(RestartPolicy(), lambda: 0.999)
    for _ in range(10):
        backoff.record_end(0.0)
    backoff.reset()
    assert backoff.attempts == 0
    pause = backoff.record_end(0.0)
    assert not pause.crash_loop
    assert pause.seconds <= 0.5
