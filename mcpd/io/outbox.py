"""Writes frames to a descriptor: immediately while the kernel accepts them, otherwise in the task `run`.

Most frames are written in the call that created them, without a task switch. Inside `batch()`, frames are
collected and leave in one write at the end of the block, so that the responses to many lines from one read
take one write. This is what makes high throughput possible.
"""

from __future__ import annotations

import errno
import math
import os
from types import TracebackType

import trio

_MAX_WRITE = 1 << 20
_STALL_LIMIT, _FIRST_STALL_LIMIT = 0.1, 0.01
"""Seconds in which a peer must read something when more than `limit` bytes wait; the second: initially."""
_HARD_LIMIT_FACTOR = 8
"""A multiple of `limit` that is too much even for a peer that reads."""
CHUNK_FRAMES = 32
"""Frames after which a part of a batch is written, so that the peer can start to work on it."""


class Outbox:
    """The only writer of `fd`, which must be non-blocking. The caller closes it.

    `put` never blocks and never raises. When the peer is gone, frames are dropped and `broken` contains the
    reason. `run` must be running to write frames that the kernel did not accept immediately. If more than
    `limit` bytes wait and the peer reads nothing, or a multiple of `limit` waits, further frames are dropped
    and `overflowed` is set, as when it reads nothing for `patience` seconds. A peer that reads, but slowly,
    is not cut off.
    """

    def __init__(self, fd: int, limit: float = math.inf, patience: float = math.inf) -> None:
        self.fd = fd
        self.broken: OSError | None = None
        self.overflowed = trio.Event()
        self.backlog = 0
        """Bytes that are not written yet."""
        self.last_progress_at = 0.0
        """`trio.current_time()` of the last progress while blocked."""
        self._limit = limit
        self._patience = patience
        self._frames: list[bytes] = []
        self._tags: list[object] = []
        self._offset = 0
        """How many bytes of the first frame are written."""
        self._is_blocked = False
        self._has_progressed = False
        """Whether the kernel accepted something since the outbox was blocked."""
        self._blocked = trio.Event()
        self._drained = trio.Event()
        self._batched = False

    def __repr__(self) -> str:
        state = f"broken ({self.broken})" if self.broken is not None else f"{self.backlog} bytes wait"
        return f"<Outbox of descriptor {self.fd}: {state}>"

    def put(self, frame: bytes, tag: object = None) -> None:
        """Write `frame` after all earlier ones. `tag` identifies it for `unsent` and `withdraw`."""
        if self._is_blocked and (
            self.broken is not None or (self.backlog > self._limit and self._is_stalled())
        ):
            if self.broken is None:
                self.overflowed.set()
            return
        self._frames.append(frame)
        self._tags.append(tag)
        self.backlog += len(frame)
        if _batch.depth:
            if not self._batched:
                self._batched = True
                _batch.waiting.append(self)
            elif len(self._frames) >= CHUNK_FRAMES and not self._is_blocked:
                self._write()
        elif not self._is_blocked:
            self._write()

    def close(self) -> None:
        """Stop writing and drop all further frames."""
        self._break(OSError(errno.EBADF, "closed by mcpd"))

    def unsent(self) -> list[object]:
        """Return the tags of frames that are not written completely."""
        return [tag for tag in self._tags if tag is not None]

    def rest(self) -> bytes:
        """Return the bytes that are not written."""
        return b"".join(self._frames)[self._offset :]

    def withdraw(self, tag: object) -> bool:
        """Remove a frame of which nothing is written. Return False if it is too late."""
        for index, known in enumerate(self._tags):
            if known is tag:
                if index == 0 and self._offset:
                    return False
                self.backlog -= len(self._frames[index])
                del self._frames[index], self._tags[index]
                return True
        return False

    async def run(self) -> None:
        """Write the frames that the kernel did not accept immediately. Returns when the peer is gone."""
        while self.broken is None:
            await self._blocked.wait()
            while self._frames and self.broken is None:
                with trio.move_on_after(self._patience) as waiting:
                    await trio.lowlevel.wait_writable(self.fd)
                if waiting.cancelled_caught:
                    self.overflowed.set()
                    continue
                self.last_progress_at = trio.current_time()
                self._has_progressed = True
                self._write()
            self._blocked = trio.Event()
            self._is_blocked = self.broken is not None
            drained, self._drained = self._drained, trio.Event()
            drained.set()

    async def wait_blocked(self) -> None:
        """Wait until the kernel does not accept everything."""
        await self._blocked.wait()

    async def wait_drained(self) -> None:
        """Wait until everything is written or the peer is gone. Use a timeout."""
        while self._frames and self.broken is None:
            await self._drained.wait()

    def _flush_batch(self) -> None:
        self._batched = False
        if not self._is_blocked:
            self._write()

    def _write(self) -> None:
        while self._frames:
            data = self._frames[0] if len(self._frames) == 1 and not self._offset else self._next_portion()
            try:
                taken = os.write(self.fd, data)
            except BlockingIOError:
                taken = 0
            except OSError as error:
                self._break(error)
                return
            if taken == self.backlog:
                self.backlog = self._offset = 0
                self._frames.clear()
                self._tags.clear()
                return
            self._advance(taken)
            if taken < len(data):
                if not self._is_blocked:
                    self.last_progress_at = trio.current_time()
                    self._has_progressed = False
                    self._block()
                return

    def _is_stalled(self) -> bool:
        late = self.backlog > _HARD_LIMIT_FACTOR * self._limit
        patience = _STALL_LIMIT if self._has_progressed else _FIRST_STALL_LIMIT
        return late or trio.current_time() - self.last_progress_at > patience

    def _break(self, error: OSError) -> None:
        self.broken = error
        self._frames.clear()
        self._tags.clear()
        self.backlog = 0
        self._block()

    def _block(self) -> None:
        self._is_blocked = True
        self._blocked.set()

    def _next_portion(self) -> bytes | memoryview:
        first = self._frames[0]
        if self._offset:
            return memoryview(first)[self._offset : self._offset + _MAX_WRITE]
        if len(first) >= _MAX_WRITE:
            return first
        if self.backlog <= _MAX_WRITE:
            return b"".join(self._frames)
        portion, size = [], 0
        for frame in self._frames:
            portion.append(frame)
            size += len(frame)
            if size >= _MAX_WRITE:
                break
        return b"".join(portion)

    def _advance(self, count: int) -> None:
        self.backlog -= count
        count += self._offset
        whole = 0
        while whole < len(self._frames) and count >= len(self._frames[whole]):
            count -= len(self._frames[whole])
            whole += 1
        del self._frames[:whole], self._tags[:whole]
        self._offset = count


class WriteBatch:
    """A reentrant context manager. No checkpoint may happen inside: it would delay other tasks' frames."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Outbox] = []
        self.now = 0.0
        """`trio.current_time()` at the start of the block: the arrival time of everything in one read."""

    def __enter__(self) -> float:
        """Return `now`."""
        if not self.depth:
            self.now = trio.current_time()
        self.depth += 1
        return self.now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if not self.depth and self.waiting:
            waiting, self.waiting = self.waiting, []
            for outbox in waiting:
                outbox._flush_batch()


_batch = WriteBatch()


def batch() -> WriteBatch:
    """Collect the frames of all outboxes until the block ends. Only synchronous code is allowed inside."""
    return _batch
