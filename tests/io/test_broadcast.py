"""Every listener receives all values sent since it subscribed or is closed; a sender never waits."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from mcpd.io.broadcast import AsyncValue, Broadcast


async def test_listener_receives_everything_since_it_started() -> None:
    news: Broadcast[int] = Broadcast()
    news.send(0)
    with news.listen() as first:
        news.send(1)
        with news.listen() as second:
            news.send(2)
            assert [first.receive_nowait(), first.receive_nowait()] == [1, 2]
            assert second.receive_nowait() == 2
        news.send(3)
        assert first.receive_nowait() == 3
    news.send(4)


async def test_slow_listener_is_closed_and_others_are_not() -> None:
    """It still receives the values queued for it; then its stream ends."""
    news: Broadcast[int] = Broadcast(buffer=3)
    with news.listen() as slow, news.listen() as quick:
        for n in range(10):
            news.send(n)
            assert quick.receive_nowait() == n
        with trio.fail_after(30):
            assert [item async for item in slow] == [0, 1, 2]


async def test_wait_until_returns_the_first_matching_value() -> None:
    number = AsyncValue(0)
    got: list[int] = []

    async def wait() -> None:
        got.append(await number.wait_until(lambda value: value >= 2))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for value in (1, 2):
                await wait_all_tasks_blocked()
                number.set(value)
    assert got == [2]
    assert await number.wait_until(lambda value: value == 2) == 2
