"""Frames that wait to be written to a non-blocking descriptor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress"'
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
        self._after_progress = False
        """Whether the last frame that was written is a progress notification."""

    @property
    def size(self) -> int:
        return sum(map(len, self.frames)) - self._written if self.frames else 0

    def flush(
        self, write: Callable[[bytes | memoryview], int], wait_read: Callable[[], None] | None = None
    ) -> None:
        """Write with `os.write` or `socket.send` until that blocks. Raises OSError if the peer has gone.

        `wait_read` waits until the peer has read what was written. It is called between progress and another
        frame: the TypeScript SDK ignores progress that it reads together with the response.
        """
        frames = self.frames
        while frames:
            if (
                self._after_progress
                and wait_read
                and not self._written
                and not frames[0].startswith(PROGRESS)
            ):
                wait_read()
            data = frames[0] if len(frames) == 1 and not self._written else self._next_chunk()
            try:
                written = write(data)
            except BlockingIOError:
                return
            if data is frames[0] and written == len(data):
                self._after_progress = frames.popleft().startswith(PROGRESS)
                continue
            full = written == len(data)
            written += self._written
            while frames and written >= len(frames[0]):
                written -= len(frames[0])
                self._after_progress = frames.popleft().startswith(PROGRESS)
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
        chosen: list[bytes] = []
        size = -written
        for frame in frames:
            size += len(frame)
            if size > _MAX_CHUNK or (
                chosen and chosen[-1].startswith(PROGRESS) and not frame.startswith(PROGRESS)
            ):
                break
            chosen.append(frame)
        return memoryview(b"".join(chosen))[written:] if chosen else memoryview(frames[0])[written:]
