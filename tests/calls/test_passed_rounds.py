"""What is remembered of the rounds of a call."""

from __future__ import annotations

import pickle

from mcpd.calls.questions.suspended import PassedRounds


async def test_long_states_are_not_remembered_in_full() -> None:
    rounds = PassedRounds()
    rounds._remember(("who",), b'{"requestState":"%b"}' % (b"x" * 1_000_000))
    assert len(rounds._until) == 1
    assert len(pickle.dumps(rounds._until)) < 1000
