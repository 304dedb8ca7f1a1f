"""A suspend is detected by a clock that continues during it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mcpd.process.suspend import CHECK_INTERVAL, watch_for_suspend


async def test_suspend_is_reported_once(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stops during a suspend. A busy second is not a suspend."""
    slept = 0.0
    reported: list[float] = []
    monkeypatch.setattr("mcpd.process.suspend.boottime", lambda: trio.current_time() + slept)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_for_suspend, reported.append)
        await trio.sleep(60)
        slept += 4
        await trio.sleep(60)
        assert reported == []
        slept += 8 * 3600
        await trio.sleep(2 * CHECK_INTERVAL)
        assert reported == [8 * 3600]
        await trio.sleep(60)
        assert len(reported) == 1
        nursery.cancel_scope.cancel()
