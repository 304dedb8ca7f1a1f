"""A value whose changes can be awaited: only the latest counts."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from mcpd.support.async_value import AsyncValue


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
