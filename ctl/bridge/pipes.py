"""Bytes to and from non-blocking descriptors: whole lines in, whole lines out, both within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_MAX_CHUNK = 128 * 1024
"""Bytes put together for one write: more than a pipe or a socket takes is copied for nothing."""


class LineReader:
    """Collects portions and gives back whole lines, with their newline. Only `\\n` ends a line.

    A line longer than `limit` is left out up to its end, and counted: what comes after it is sound.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = bytearray()
        self._skipping = False
        self.left_out = 0

    def feed(self, portion: bytes) -> list[bytes]:
        """Take what was read; return the lines it completed."""
        if portion.find(b"\n") == len(portion) - 1 and not self._open and not self._skipping:
            return [portion]  # one message, as nearly always
        *lines, rest = portion.split(b"\n")
        if lines and (self._open or self._skipping):
            if not self._skipping and len(self._open) + len(lines[0]) <= self._limit:
                lines[0] = bytes(self._open) + lines[0]
            else:
                del lines[0]
                self.left_out += not self._skipping
            self._open = bytearray()
            self._skipping = False
        if not self._skipping:
            self._open += rest
            if len(self._open) > self._limit:
                self._open = bytearray()
                self._skipping = True
                self.left_out += 1
        return [line + b"\n" for line in lines]

    def rest(self) -> bytes:
        """The open line, at the end of a stream."""
        return bytes(self._open)


class WriteBuffer:
    """Frames on their way out. `put` only collects, `flush` writes what the kernel takes.

    All frames of one turn leave together. `write` is `os.write` or `socket.send`: it raises
    BlockingIOError when nothing fits, and any other OSError when the other side has gone.
    """

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        """What has not left as a whole, each as a whole."""
        self.put: Callable[[bytes], None] = self.frames.append
        self._written = 0
        """Bytes of the first frame that have been written."""

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return sum(map(len, self.frames)) - self._written if self.frames else 0

    def flush(self, write: Callable[[bytes | memoryview], int]) -> None:
        """Raises OSError when the other side has gone."""
        frames = self.frames
        while frames:
            data = frames[0] if len(frames) == 1 and not self._written else self._next_chunk()
            try:
                written = write(data)
            except BlockingIOError:
                return
            if data is frames[0] and written == len(data):
                frames.popleft()
                continue
            full = written == len(data)
            written += self._written
            while frames and written >= len(frames[0]):
                written -= len(frames.popleft())
            self._written = written
            if not full:
                return

    def clear(self) -> None:
        """Forget what waits."""
        self.frames.clear()
        self._written = 0

    def _next_chunk(self) -> bytes | memoryview:
        frames, gone = self.frames, self._written
        if len(frames) == 1 or len(frames[0]) - gone >= _MAX_CHUNK:
            return memoryview(frames[0])[gone:] if gone else frames[0]
        chosen, size = [], -gone
        for frame in frames:
            size += len(frame)
            if size > _MAX_CHUNK:
                break
            chosen.append(frame)
        return memoryview(b"".join(chosen))[gone:] if chosen else memoryview(frames[0])[gone:]
