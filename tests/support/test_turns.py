"""Long work lets other tasks run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from mcpd.support import turns
from mcpd.support.turns import Turns


async def test_other_tasks_run_when_a_turn_has_lasted_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only then, since a checkpoint costs as much as the work."""
    now = 0
    monkeypatch.setattr(turns, "MAX_TURN", 4)
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now))
    checkpoints = []

    async def checkpoint() -> None:
        checkpoints.append(now)

    monkeypatch.setattr(trio.lowlevel, "checkpoint", checkpoint)
    work = Turns()
    for step in range(40):
        now = step
        await work.pause()
    assert checkpoints == list(range(4, 40, 4))
