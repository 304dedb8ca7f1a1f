"""Sleep is noticed by a clock that goes on in it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mcpd.support.suspend_detection import CHECK_INTERVAL, watch_for_suspend


async def test_suspend_is_reported_once(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own clock stood still meanwhile; a busy second is no sleep."""
    slept = 0.0
    told: list[float] = []
    monkeypatch.setattr("mcpd.support.suspend_detection.boottime", lambda: trio.current_time() + slept)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_for_suspend, told.append)
        await trio.sleep(60)
        slept += 4
        await trio.sleep(60)
        assert told == []
        slept += 8 * 3600
        await trio.sleep(2 * CHECK_INTERVAL)
        assert told == [8 * 3600]
        await trio.sleep(60)
        assert len(told) == 1
        nursery.cancel_scope.cancel()
