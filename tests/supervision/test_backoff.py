"""Backoff arithmetic, with a seeded random generator and a controlled clock."""

from __future__ import annotations

import random
import statistics

import trio
from trio.testing import MockClock

from mcpd.model.server_spec import RemoteSpec, RestartPolicy, StdioSpec
from mcpd.supervision.restart import REMOTE_BACKOFF_CAP, Backoff, effective_restart_policy, was_stable

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


async def test_connection_is_stable_after_a_minute_or_a_success_after_ten_seconds(
    autojump_clock: MockClock,
) -> None:
    ready_at = trio.current_time()
    assert not was_stable(None, ready_at + 10)
    assert not was_stable(ready_at, ready_at + 9.9)
    assert was_stable(ready_at, ready_at + 10)
    await trio.sleep(60)
    assert was_stable(ready_at, ready_at)


def test_defaults_of_a_remote_server_have_longer_delays_and_no_crash_loop() -> None:
    """What the definition says applies to all."""

    def remote(policy: RestartPolicy) -> RestartPolicy:
        return effective_restart_policy(
            RemoteSpec(name="it", kind="http", url="http://x/mcp", restart=policy)
        )

    usual, own = RestartPolicy(), RestartPolicy(cap=7, intensity=2)
    assert effective_restart_policy(StdioSpec(name="it", command="x", restart=usual)) == usual
    assert remote(usual).cap == REMOTE_BACKOFF_CAP
    assert remote(usual).intensity > 1_000_000
    assert (remote(own).cap, remote(own).intensity) == (7, 2)
