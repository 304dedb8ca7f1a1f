"""Counting what a JSON text contains besides strings."""

from __future__ import annotations

import re

import pytest

from mcpd.wire.event_stream import EventTooLong, SseDecoder
from mcpd.wire.framing import LineSplitter, LineTooLong
from mcpd.wire.limits import StructureCounter, TooMuchStructure

MIB = 1 << 20
LIMIT = 2 * MIB
"""What is allowed of a message of at most 8 MiB."""
SMALL = {
    "numbers": b"1,",
    "arrays": b"[],",
    "objects": b"{},",
    "members": b'{"a":1},',
    "short strings": b'"",',
    "escaped strings": rb'"\\",',
    "spaces": b" ",
    "brackets": b"[",
    "fractions": b"0.5e-1,",
}
TEXTS = {
    "base64": b"QUJDRA==",
    "escapes": rb"\n\"\\",
    "JSON in a string": rb"{\"a\": [1, 2]}, ",
    "many quotes": rb"\"",
    "not ASCII": "ä[]🎉".encode(),
    "words": b"[a, b, 1, 2] ",
}


def counts(counter: StructureCounter) -> int:
    return counter._count


def test_bytes_outside_of_long_strings_are_counted_exactly() -> None:
    text = b'{"' + b"k" * 50 + b'": [1, 22, "' + rb"\"[1,2]\\" * 20 + b'", null]}'
    counter = StructureCounter(8 * MIB)
    counter.feed(text)
    assert counts(counter) == len(re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text))


@pytest.mark.parametrize("kind", SMALL)
def test_small_values_are_limited(kind: str) -> None:
    counter = StructureCounter(8 * MIB)
    portion = SMALL[kind] * (MIB // 8 // len(SMALL[kind]))
    for _ in range(15):
        counter.feed(portion)
    with pytest.raises(TooMuchStructure, match=f"more than {LIMIT} bytes outside of strings"):
        counter.feed(portion * 40)


@pytest.mark.parametrize("kind", TEXTS)
def test_text_is_not_limited(kind: str) -> None:
    counter = StructureCounter(8 * MIB)
    counter.feed(b'{"text":"')
    for _ in range(64):
        counter.feed(TEXTS[kind] * (MIB // 8 // len(TEXTS[kind])))
    counter.feed(b'"}')
    assert counts(counter) < 100


# ── lines ───────────────────────────────────────────────────────────────────────────────────────


def feed(splitter: LineSplitter, data: bytes, size: int = 65_537) -> list[bytes]:
    found = []
    for start in range(0, len(data), size):
        found += splitter.feed(data[start : start + size])
    return found


def small_values(size: int) -> bytes:
    return b"[" + b"[]," * (size // 3) + b"1]"


@pytest.mark.parametrize("end", [b',"id":7}', b"}"])
def test_line_of_small_values_is_dropped_and_others_are_kept(end: bytes) -> None:
    splitter = LineSplitter(8 * MIB, limit_structure=True)
    text = b'{"text":"' + b"[1,2]" * MIB + b'"}'
    head = b'{"result":' if b"id" in end else b'{"jsonrpc":"2.0","id":7,"result":'
    data = b'{"a":1}\n' + text + b"\n" + head + small_values(5 * MIB) + end + b'\n{"b":2}\n{"c"'
    assert feed(splitter, data) == [b'{"a":1}', text, b'{"b":2}']
    (dropped,) = splitter.dropped
    message = dropped.envelope()
    assert message is not None
    assert message.key == b"7"
    assert "more than 2097152 bytes outside of strings" in dropped.reason
    assert len(dropped.start) == len(dropped.end) == 1024
    assert splitter.feed(b":3}\n") == [b'{"c":3}']


def test_dropped_line_must_end_before_the_limit() -> None:
    splitter = LineSplitter(8 * MIB, limit_structure=True)
    feed(splitter, small_values(7 * MIB))
    with pytest.raises(LineTooLong):
        feed(splitter, small_values(2 * MIB))


# ── event streams ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("line", [3 * MIB, 4000], ids=["one line", "many lines"])
@pytest.mark.parametrize("portion", [8192, 3 * MIB])
def test_event_of_small_values_is_refused(line: int, portion: int) -> None:
    decoder = SseDecoder(8 * MIB)
    values = small_values(3 * MIB)
    data = b"".join(b"data: " + values[start : start + line] + b"\n" for start in range(0, len(values), line))
    with pytest.raises(EventTooLong, match="more than 2097152 bytes outside of strings"):
        [decoder.feed(data[start : start + portion]) for start in range(0, len(data), portion)]
