"""Newline framing: lines in any portions, and the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.wire.framing import LineSplitter, LineTooLong
from tests.sampling import scaled
from tests.stopwatch import assert_cheap


@settings(derandomize=True, max_examples=scaled(300))
@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_do_not_depend_on_how_the_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    """The cut may be inside a character, and the last line may have no newline. Empty lines are left out."""
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter, found, at = LineSplitter(1000), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 30))
        found += splitter.feed(stream[at : at + size])
        at += size

    assert found == list(filter(None, lines))
    assert splitter.feed(b"\n") == [b"rest"]


def test_only_a_newline_ends_a_line() -> None:
    """U+2028, NEL, form feed and CR are legal inside JSON text, or whitespace (RFC 8259)."""
    line = '{"a":"\u2028\u2029\x85\x0b\x0c"}\r'.encode()
    assert LineSplitter(100).feed(line + b"\n\n") == [line]


@pytest.mark.parametrize("portion", [1, 7, 64, 1000])
def test_line_over_the_limit_raises_and_is_dropped(portion: int) -> None:
    """A line of exactly the limit passes."""
    splitter = LineSplitter(100)
    stream = b"x" * 100 + b"\n" + b"y" * 101
    found: list[bytes] = []

    def feed_all() -> None:
        for at in range(0, len(stream), portion):
            found.extend(splitter.feed(stream[at : at + portion]))
        splitter.feed(b"\n")

    with pytest.raises(LineTooLong, match="100"):
        feed_all()
    assert found == [b"x" * 100]
    assert splitter.feed(b"z\n") == [b"z"]


def test_long_line_is_searched_only_once() -> None:
    """Searching from the start for each portion took 354 ms for 32 MiB."""

    def feed_all() -> None:
        splitter, portion = LineSplitter(64 << 20), b"x" * 65536
        for _ in range(32 * 16):
            splitter.feed(portion)
        assert len(splitter.feed(b"\n")[0]) == 32 << 20

    assert_cheap(feed_all, 0.2)


@settings(derandomize=True, max_examples=scaled(300))
@given(
    st.lists(st.binary(max_size=14).filter(lambda line: b"\n" not in line), max_size=8),
    st.binary(max_size=5).filter(lambda rest: b"\n" not in rest),
    st.data(),
)
def test_long_lines_are_dropped_however_the_stream_is_cut(
    lines: list[bytes], rest: bytes, data: st.DataObject
) -> None:
    """All others are returned, and the open line is kept."""
    stream = b"".join(line + b"\n" for line in lines) + rest
    splitter, found, start = LineSplitter(8, longest=14), [], 0
    while start < len(stream):
        end = data.draw(st.integers(start + 1, len(stream)))
        found += splitter.feed(stream[start:end])
        start = end
    assert found == [line for line in lines if 0 < len(line) <= 8]
    dropped = [(each.start, each.end, each.size, each.reason) for each in splitter.dropped]
    assert dropped == [(line, line, len(line), "more than 8 bytes") for line in lines if len(line) > 8]
    assert splitter.rest() == rest


@pytest.mark.parametrize("portion", [1, 7, 64, 100])
def test_dropped_line_that_does_not_end_raises(portion: int) -> None:
    splitter = LineSplitter(10, longest=100)
    assert splitter.feed(b"a\n") == [b"a"]
    for _ in range(0, 101 - portion, portion):
        assert splitter.feed(b"x" * portion) == []
    with pytest.raises(LineTooLong, match="100"):
        splitter.feed(b"x" * portion)
    assert splitter.dropped == []
    assert splitter.feed(b"\nz\n") == [b"z"]
