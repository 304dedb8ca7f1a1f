"""Bytes on their way out of one descriptor: written at once while the kernel takes them, else by `run`.

Most frames leave in the call that made them, with no task switch. Inside `batch()` they are held
until the block ends and leave in one write: a reader that takes many lines of one read answers them
in one write as well, and that is where throughput comes from.
"""

from __future__ import annotations

import errno
import math
import os
from types import TracebackType

import trio

_MAX_WRITE = 1 << 20
_STALL_LIMIT, _FIRST_STALL_LIMIT = 0.1, 0.01
"""Seconds in which a peer with more than `limit` before it has to take something; to begin with it."""
_HARD_LIMIT_FACTOR = 8
"""So many times `limit` is too much even for a peer that reads."""
CHUNK_FRAMES = 16
"""Frames after which a batch is sent on before its end: the peer works on them while we go on."""


class Outbox:
    """The only writer of `fd`, which must be non-blocking; it stays the caller's to close.

    `put` never blocks and never raises: once the peer is gone, frames are dropped and `broken`
    says why. `run` must be running for frames that the kernel would not take at once. When more
    than `limit` bytes wait and the peer takes none, or it is many times behind, further frames are
    dropped, and `overflowed` is set: a peer that reads, only slower than others write, goes on.
    """

    def __init__(self, fd: int, limit: float = math.inf) -> None:
        self.fd = fd
        self.broken: OSError | None = None
        self.overflowed = trio.Event()
        self.backlog = 0
        """Bytes that have not left yet."""
        self.last_progress_at = 0.0
        """`trio.current_time()` of the last progress while blocked."""
        self._limit = limit
        self._frames: list[bytes] = []
        self._tags: list[object] = []
        self._offset = 0
        """How much of the first frame has left."""
        self._is_blocked = False
        self._has_progressed = False
        """Whether the kernel took something since it was blocked."""
        self._blocked = trio.Event()
        self._drained = trio.Event()
        self._batched = False

    def put(self, frame: bytes, tag: object = None) -> None:
        """Send `frame` whole, after everything put before it. `tag` names it to `unsent`."""
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
        """Write no more; whatever is put from now on is dropped."""
        self._break(OSError(errno.EBADF, "closed by ourselves"))

    def unsent(self) -> list[object]:
        """Tags of the frames of which at least a part has not left."""
        return [tag for tag in self._tags if tag is not None]

    def withdraw(self, tag: object) -> bool:
        """Take back a frame of which nothing has left. False when it is too late for that."""
        for index, known in enumerate(self._tags):
            if known is tag:
                if index == 0 and self._offset:
                    return False
                self.backlog -= len(self._frames[index])
                del self._frames[index], self._tags[index]
                return True
        return False

    async def run(self) -> None:
        """Write what the kernel would not take at once, as it takes it. Returns when the peer is gone."""
        while self.broken is None:
            await self._blocked.wait()
            while self._frames and self.broken is None:
                await trio.lowlevel.wait_writable(self.fd)
                self.last_progress_at = trio.current_time()
                self._has_progressed = True
                self._write()
            self._blocked = trio.Event()
            self._is_blocked = self.broken is not None
            drained, self._drained = self._drained, trio.Event()
            drained.set()

    async def wait_blocked(self) -> None:
        """Until the kernel would not take everything at once."""
        await self._blocked.wait()

    async def wait_drained(self) -> None:
        """Until everything has left, or never will. For a goodbye; bound it."""
        while self._frames and self.broken is None:
            await self._drained.wait()

    def _flush_batch(self) -> None:
        self._batched = False
        if not self._is_blocked:
            self._write()

    def _write(self) -> None:
        while self._frames:
            data = self._next_portion()
            try:
                taken = os.write(self.fd, data)
            except BlockingIOError:
                taken = 0
            except OSError as error:
                self._break(error)
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
        if len(self._frames) == 1 or len(first) >= _MAX_WRITE:
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
        if not self.backlog:
            self._frames.clear()
            self._tags.clear()
            self._offset = 0
            return
        count += self._offset
        whole = 0
        while whole < len(self._frames) and count >= len(self._frames[whole]):
            count -= len(self._frames[whole])
            whole += 1
        del self._frames[:whole], self._tags[:whole]
        self._offset = count


class WriteBatch:
    """Context manager; nests. No checkpoint may pass inside: other tasks' frames would wait too."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Outbox] = []
        self.now = 0.0
        """`trio.current_time()` as the block began (what is in one read came at one time)."""

    def __enter__(self) -> float:
        """The time, as `now`."""
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
    """Hold every outbox's frames until the block ends. Synchronous code only inside."""
    return _batch
