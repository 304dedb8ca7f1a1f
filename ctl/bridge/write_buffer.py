"""Frames that wait to be written to a non-blocking descriptor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_MAX_CHUNK = 128 * 1024
"""Bytes joined for one write: pipes and sockets take no more, and the copy would be wasted."""


class WriteBuffer:
    """Collects frames with `put`; `flush` writes what the kernel accepts, in as few writes as possible."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        """The frames that are not completely written, each in full."""
        self.put: Callable[[bytes], None] = self.frames.append
        self._written = 0
        """Bytes of the first frame that have been written."""

    @property
    def size(self) -> int:
        return sum(map(len, self.frames)) - self._written if self.frames else 0

    def flush(self, write: Callable[[bytes | memoryview], int]) -> None:
        """Write with `os.write` or `socket.send` until that blocks. Raises OSError if the peer has gone."""
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
        self.frames.clear()
        self._written = 0

    def _next_chunk(self) -> bytes | memoryview:
        frames, written = self.frames, self._written
        if len(frames) == 1 or len(frames[0]) - written >= _MAX_CHUNK:
            return memoryview(frames[0])[written:] if written else frames[0]
        chosen, size = [], -written
        for frame in frames:
            size += len(frame)
            if size > _MAX_CHUNK:
                break
            chosen.append(frame)
        return memoryview(b"".join(chosen))[written:] if chosen else memoryview(frames[0])[written:]
