"""Frames are written whole and in order, immediately or when possible; a lost or slow peer costs little."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.io.outbox import Outbox, batch
from tests.sampling import scaled

MIB = 1 << 20


@attrs.define(eq=False)
class Pipe:
    outbox: Outbox
    far: int

    def read(self, size: int = MIB) -> bytes:
        """Return the data that has arrived."""
        try:
            return os.read(self.far, size)
        except BlockingIOError:
            return b""


@asynccontextmanager
async def piped(limit: float = float("inf"), *, running: bool = True) -> AsyncIterator[Pipe]:
    far, near = os.pipe()
    for fd in (far, near):
        os.set_blocking(fd, False)
    try:
        async with trio.open_nursery() as nursery:
            pipe = Pipe(Outbox(near, limit), far)
            if running:
                nursery.start_soon(pipe.outbox.run)
            yield pipe
            nursery.cancel_scope.cancel(reason="the test is over")
    finally:
        for fd in (pipe.far, near):
            if fd >= 0:
                os.close(fd)


async def test_a_frame_leaves_in_the_call_that_puts_it() -> None:
    async with piped(running=False) as pipe:
        pipe.outbox.put(b"one\n")
        assert pipe.read() == b"one\n"
        assert pipe.outbox.backlog == 0


async def test_a_batch_leaves_at_its_end_also_when_it_nests_or_fails() -> None:
    async with piped(running=False) as pipe:
        with batch():
            pipe.outbox.put(b"a")
            with batch():
                pipe.outbox.put(b"b")
            assert pipe.read() == b""
        assert pipe.read() == b"ab"

        def fail() -> None:
            with batch():
                pipe.outbox.put(b"c")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert pipe.read() == b"c"


@settings(derandomize=True, max_examples=scaled(40), deadline=None)
@given(st.lists(st.one_of(st.integers(1, 40), st.integers(1, 3 * MIB)), max_size=8), st.booleans())
def test_everything_arrives_whole_and_in_order(sizes: list[int], batched: bool) -> None:
    """This holds for any frame sizes and any reading speed."""
    frames = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    expected = b"".join(frames)

    async def main() -> None:
        async with piped() as pipe:
            if batched:
                with batch():
                    for frame in frames:
                        pipe.outbox.put(frame)
            else:
                for frame in frames:
                    pipe.outbox.put(frame)
            got = b""
            with trio.fail_after(60):
                while len(got) < len(expected):
                    got += pipe.read(300_000)
                    await trio.lowlevel.checkpoint()
                await pipe.outbox.wait_drained()
            assert got == expected
            assert pipe.outbox.backlog == 0
            assert pipe.outbox.unsent() == []

    trio.run(main)


async def test_unsent_frames_are_listed_and_can_be_withdrawn() -> None:
    """A partly sent frame cannot be withdrawn, because it would corrupt the stream."""
    async with piped(running=False) as pipe:
        tags = [object() for _ in range(3)]
        for tag in tags:
            pipe.outbox.put(b"x" * MIB, tag)
        assert pipe.outbox.unsent() == tags
        assert not pipe.outbox.withdraw(tags[0])
        assert pipe.outbox.withdraw(tags[1])
        assert not pipe.outbox.withdraw(tags[1])
        assert pipe.outbox.unsent() == [tags[0], tags[2]]
        assert pipe.outbox.backlog < 2 * MIB


async def test_lost_peer_breaks_the_outbox_without_an_error() -> None:
    """Waiting tasks continue, and later frames are dropped."""
    async with piped() as pipe:
        pipe.outbox.put(b"x" * MIB)
        os.close(pipe.far)
        pipe.far = -1
        with trio.fail_after(30):
            await pipe.outbox.wait_drained()
        assert isinstance(pipe.outbox.broken, BrokenPipeError)
        pipe.outbox.put(b"more")
        assert pipe.outbox.backlog == 0


async def test_peer_that_reads_nothing_overflows_at_the_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a short grace period, further frames are dropped."""
    async with piped(MIB) as pipe:
        for _ in range(3):
            pipe.outbox.put(b"x" * MIB)
        assert not pipe.outbox.overflowed.is_set()
        await trio.sleep(0.15)
        pipe.outbox.put(b"x" * MIB)
        assert pipe.outbox.overflowed.is_set()
        assert pipe.outbox.backlog < 3 * MIB


async def test_slow_peer_is_kept_until_it_exceeds_the_hard_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each read extends the grace period."""
    async with piped(MIB) as pipe:
        for _ in range(6):
            pipe.outbox.put(b"x" * MIB)
            before = pipe.outbox.backlog
            assert pipe.read()
            while pipe.outbox.backlog == before:
                await trio.lowlevel.checkpoint()
            await trio.sleep(0.05)
        assert not pipe.outbox.overflowed.is_set()
        for _ in range(8):
            pipe.outbox.put(b"x" * MIB)
        assert pipe.outbox.overflowed.is_set()
