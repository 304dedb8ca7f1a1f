"""Frames through a descriptor that accepts any number of bytes at a time."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ctl.bridge.write_buffer import WriteBuffer


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.lists(st.integers(0, 12)))
@example([b"abc", b"123456789", b"xyz", b"42"], [2, 12, 3])  # the rest is as long as its first frame
def test_partly_written_frames_stay_in_the_buffer(frames: list[bytes], takes: list[int]) -> None:
    """Only these frames may be sent again, each from its first byte."""
    taken = bytearray()
    buffer = WriteBuffer()
    for frame in frames:
        buffer.put(frame)
    for most in takes:
        left = [most]

        def write(data: bytes | memoryview, left: list[int] = left) -> int:
            if not left[0]:
                raise BlockingIOError
            count = min(left[0], len(data))
            left[0] -= count
            taken.extend(data[:count])
            return count

        buffer.flush(write)
        whole, size = 0, 0
        for frame in frames:
            size += len(frame)
            whole += size <= len(taken)
        assert list(buffer.frames) == frames[whole:]
        assert buffer.size == sum(map(len, frames)) - len(taken)
        assert b"".join(frames).startswith(bytes(taken))
