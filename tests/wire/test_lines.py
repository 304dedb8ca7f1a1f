"""Lines out of bytes in any portions, bounded, in one pass."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpd.wire.framing import LineSplitter, LineTooLong
from tests.sampling import scaled


@settings(derandomize=True, max_examples=scaled(300))
@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)), st.data())
def test_any_portions_give_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    """However the stream is cut, also inside a character, and with a rest that no newline ends."""
    stream = b"".join(line + b"\n" for line in lines) + b"rest"
    splitter, found, at = LineSplitter(1000), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 30))
        found += splitter.feed(stream[at : at + size])
        at += size

    assert found == lines
    assert splitter.feed(b"\n") == [b"rest"]


def test_only_a_newline_ends_a_line() -> None:
    """Digest 7.29: U+2028, NEL, form feed and CR are legal inside JSON text, or whitespace."""
    line = '{"a":"\u2028\u2029\x85\x0b\x0c"}\r'.encode()
    assert LineSplitter(100).feed(line + b"\n\n") == [line, b""]


@pytest.mark.parametrize("portion", [1, 7, 64, 1000])
def test_a_line_beyond_the_limit_is_refused_and_forgotten(portion: int) -> None:
    """One of exactly the limit passes."""
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


def test_a_long_line_is_searched_once() -> None:
    """Trap T10: 32 MiB took 354 ms when every portion was searched anew from the beginning."""

    def seconds(mib: int) -> float:
        splitter, portion = LineSplitter(64 << 20), b"x" * 65536
        began = time.thread_time()  # of the processor: the machine may be busy
        for _ in range(mib * 16):
            splitter.feed(portion)
        assert len(splitter.feed(b"\n")[0]) == mib << 20
        return time.thread_time() - began

    assert min(seconds(32) for _ in range(5)) < 0.2
