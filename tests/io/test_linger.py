"""What nobody uses ends once, after the last use, and one task waits for it."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from mcpd.io.linger import Linger


async def test_the_time_restarts_with_each_use_and_one_task_waits(autojump_clock: MockClock) -> None:
    ended: list[tuple[str, float]] = []
    start = trio.current_time()

    def end(name: str) -> None:
        ended.append((name, trio.current_time() - start))

    async with trio.open_nursery() as nursery:
        linger = Linger(60, nursery.start_soon)
        for _ in range(1000):
            linger.begin("often", lambda: end("often"))
            await trio.sleep(0.1)
            assert len(nursery.child_tasks) == 1
        linger.begin("once", lambda: end("once"))
        assert len(nursery.child_tasks) == 2
        await trio.sleep(70)
        assert not nursery.child_tasks
        linger.begin("often", lambda: end("again"))
    assert [(name, round(at, 1)) for name, at in ended] == [
        ("often", 159.9),
        ("once", 160.0),
        ("again", 230.0),
    ]
