"""Readers share the event loop fairly, whatever arrives, and lose nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mcpd.io import reader as pipe_reader
from mcpd.io.outbox import batch
from mcpd.io.reader import Reader


class Work:
    """Takes lines, each of which takes some time on a clock that only advances here."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled: list[tuple[int, bytes]] = []

    def monotonic(self) -> float:
        return self.now

    def take(self, reader: int, portion: bytes, cost: float) -> Iterator[None]:
        for line in portion.split():
            assert batch().depth, "the frames of one slice leave in one write"
            self.now += cost
            self.handled.append((reader, line))
            yield


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    work = Work()
    monkeypatch.setattr(pipe_reader, "time", SimpleNamespace(monotonic=work.monotonic))
    return work


@contextmanager
def pipes(count: int) -> Iterator[list[tuple[int, int]]]:
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            reads, writes = os.pipe()
            os.set_blocking(reads, False)
            stack.callback(os.close, reads)
            made.append((reads, writes))
        yield made


def reader(work: Work, number: int, fd: int, cost: float) -> Reader:
    return Reader(fd, lambda portion: work.take(number, portion, cost))


async def test_flood_on_one_descriptor_delays_the_others_for_a_turn_only(work: Work) -> None:
    """Here a message takes 1 ms, so two or three are handled before the other descriptors have their turn."""
    with pipes(3) as made, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number, (reads, writes) in enumerate(made):
                os.write(writes, b"x\n" * (10_000 if number == 0 else 1))
                os.close(writes)
                nursery.start_soon(reader(work, number, reads, 0.001).run)
    order = [number for number, _ in work.handled]
    assert len(order) == 10_002
    assert max(order.index(1), order.index(2)) <= 8


async def test_order_and_the_end_are_kept(work: Work) -> None:
    """Nothing is read while earlier messages wait, and the end of the stream comes after all of them."""
    lines = [b"%d" % number for number in range(20_000)]
    with pipes(1) as [(reads, writes)], trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader(work, 0, reads, 0.0002).run)
            await trio.to_thread.run_sync(write_all, writes, b"\n".join(lines) + b"\n")
    assert b"".join(line for _, line in work.handled) == b"".join(lines)


def write_all(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as file:
        file.write(data)


async def test_other_tasks_run_during_a_flood(work: Work) -> None:
    """After a few milliseconds of messages, every other task has a turn."""
    turns = []
    with pipes(1) as [(reads, writes)], trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            os.write(writes, b"x\n" * 5_000)
            os.close(writes)

            async def read() -> None:
                await reader(work, 0, reads, 0.0001).run()
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            while True:
                await trio.lowlevel.checkpoint()
                turns.append(work.now)
    longest = max(after - before for before, after in pairwise(turns))
    assert len(work.handled) == 5_000
    assert longest <= 0.0065  # two slices, since tasks run in random order


async def test_single_message_overtakes_floods(work: Work) -> None:
    """Here each message takes 1 ms. One that arrives while fifty readers are busy waits for two of them."""
    with pipes(51) as made, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number, (reads, writes) in enumerate(made[1:], 1):
                os.write(writes, b"x\n" * 100)
                os.close(writes)
                nursery.start_soon(reader(work, number, reads, 0.001).run)
            nursery.start_soon(reader(work, 0, made[0][0], 0.001).run)
            while len(work.handled) < 500:
                await trio.lowlevel.checkpoint()
            before = len(work.handled)
            os.write(made[0][1], b"x\n")
            os.close(made[0][1])
    at = next(index for index, (number, _) in enumerate(work.handled) if number == 0)
    assert at - before <= 6


async def test_paused_reader_keeps_its_messages(work: Work) -> None:
    """It continues with them, and reads what came meanwhile; nothing else has to arrive for that."""
    with pipes(1) as [(reads, writes)], trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            def take(portion: bytes) -> Iterator[None]:
                for number, step in enumerate(work.take(0, portion, 0.00001)):
                    if number == 1:
                        paused.pause()
                        paused.pause()
                    yield step

            paused = Reader(reads, take)
            nursery.start_soon(paused.run)
            for data, handled in ((b"a\nb\nc\n", 2), (b"d\ne\n", 2)):
                os.write(writes, data)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert len(work.handled) == handled
            paused.resume()
            paused.resume()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert len(work.handled) == 5
            paused.resume()
            os.close(writes)
    assert b"".join(line for _, line in work.handled) == b"abcde"


async def test_failing_message_ends_only_its_reader(work: Work) -> None:
    def fail(portion: bytes) -> Iterator[None]:
        yield
        raise ValueError("bad")

    with pipes(2) as [(first, into_first), (second, into_second)], trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader(work, 1, second, 0.001).run)
            os.write(into_first, b"x\n")
            with pytest.raises(ValueError, match="bad"):
                await Reader(first, fail).run()
            os.write(into_second, b"a\nb\n")
            os.close(into_second)
        os.close(into_first)
    assert work.handled == [(1, b"a"), (1, b"b")]


async def test_ended_reader_leaves_its_messages(work: Work) -> None:
    """A connection that was closed must not handle another message."""
    with pipes(1) as [(reads, writes)], trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            def take(portion: bytes) -> Iterator[None]:
                for step in work.take(0, portion, 0.002):
                    nursery.cancel_scope.cancel()
                    yield step

            nursery.start_soon(Reader(reads, take).run)
            os.write(writes, b"x\n" * 1_000)
        count = len(work.handled)
        await trio.testing.wait_all_tasks_blocked()
        os.close(writes)
    assert 0 < count == len(work.handled) < 10
