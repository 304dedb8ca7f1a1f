"""Work of many tasks does not delay other tasks."""

from __future__ import annotations

from itertools import pairwise

import trio
import trio.testing

from mcpd.io.turns import run_in_turn, take_turn


async def test_one_of_many_tasks_has_its_turn_in_a_round() -> None:
    done = 0
    rounds = [0]

    async def work() -> None:
        nonlocal done
        await take_turn()
        done += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(work)
        while done < 100:
            await trio.lowlevel.checkpoint()
            rounds.append(done)
    assert max(after - before for before, after in pairwise(rounds)) <= 2


async def test_clients_take_turns() -> None:
    """A task does not wait for the hundreds that other clients have started before."""
    order: list[str] = []

    async def work(client: str) -> None:
        await take_turn(client)
        order.append(client)

    async with trio.open_nursery() as nursery:
        for client in ("one", "two"):
            for _ in range(300):
                nursery.start_soon(work, client)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(work, "late")
    assert order.index("late") < 20
    assert len(order) == 601


async def test_cancelled_task_passes_its_turn_on() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await take_turn(number % 3)
        done.append(number)

    async with trio.open_nursery() as nursery, trio.open_nursery() as cancelled:
        for number in range(30):
            nursery.start_soon(work, number)
            cancelled.start_soon(work, 100 + number)
        await trio.lowlevel.checkpoint()
        cancelled.cancel_scope.cancel()
    assert {*range(30)} <= {*done}


async def test_work_starts_in_order_and_may_wait() -> None:
    order: list[int] = []
    started: list[int] = []

    async def work(number: int) -> None:
        order.append(number)
        if number < 5:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(run_in_turn, lambda n=number: work(n), lambda n=number: started.append(n))
            await trio.testing.wait_all_tasks_blocked()
        assert order == started == list(range(10))
        nursery.cancel_scope.cancel()


async def test_cancelled_work_is_started_so_that_it_cleans_up() -> None:
    cleaned = 0

    async def work() -> None:
        nonlocal cleaned
        try:
            await trio.sleep_forever()
        finally:
            cleaned += 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(run_in_turn, work)
        nursery.cancel_scope.cancel()
    assert cleaned == 10
