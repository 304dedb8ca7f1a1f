"""Lines and frames through pipes that cut them anywhere."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ctl.bridge.pipes import LineReader, WriteBuffer

LINES = st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=8)


@given(LINES, st.binary(max_size=5).filter(lambda rest: b"\n" not in rest), st.data())
def test_lines_are_the_same_however_they_are_cut(
    lines: list[bytes], rest: bytes, data: st.DataObject
) -> None:
    """Those longer than the limit are left out and counted; the last one has not ended yet."""
    stream = b"".join(line + b"\n" for line in lines) + rest
    splitter, got, start = LineReader(8), [], 0
    while start < len(stream):
        end = data.draw(st.integers(start + 1, len(stream)))
        got += splitter.feed(stream[start:end])
        start = end
    fitting = [line + b"\n" for line in lines if len(line) <= 8]
    whole = [line for line in got if len(line) <= 9]
    assert whole == fitting
    assert len(got) - len(whole) + splitter.left_out == len(lines) - len(fitting)
    assert splitter.rest() == rest


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=9), st.lists(st.integers(0, 12)))
@example([b"abc", b"123456789", b"xyz", b"42"], [2, 12, 3])  # what was left was as long as its first frame
def test_what_has_not_left_as_a_whole_is_known_exactly(frames: list[bytes], takes: list[int]) -> None:
    """Only those may be sent again; each of them from its beginning."""
    taken = bytearray()
    outbox = WriteBuffer()
    for frame in frames:
        outbox.put(frame)
    for most in takes:
        left = [most]

        def write(data: bytes | memoryview, left: list[int] = left) -> int:
            if not left[0]:
                raise BlockingIOError
            count = min(left[0], len(data))
            left[0] -= count
            taken.extend(data[:count])
            return count

        outbox.flush(write)
        whole, size = 0, 0
        for frame in frames:
            size += len(frame)
            whole += size <= len(taken)
        assert list(outbox.frames) == frames[whole:]
        assert outbox.size == sum(map(len, frames)) - len(taken)
        assert b"".join(frames).startswith(bytes(taken))
