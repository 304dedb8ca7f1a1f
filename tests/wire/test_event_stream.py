"""The decoder of server-sent events, compared with the HTML standard and with two other decoders."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.wire.event_stream import EventTooLong, SseDecoder, SseEvent

LIMIT = 1 << 20


def decoded(stream: bytes, *cuts: int) -> list[SseEvent]:
    """Return all events of a stream that is cut at these positions."""
    decoder = SseDecoder(LIMIT)
    edges = [0, *sorted(cuts), len(stream)]
    return [event for start, end in pairwise(edges) for event in decoder.feed(stream[start:end])]


RULES = {
    "a plain message": (b"data: hi\n\n", [SseEvent("message", b"hi", None, None)]),
    "all fields": (
        b"event: endpoint\nid: 7\nretry: 250\ndata: /post\n\n",
        [SseEvent("endpoint", b"/post", "7", 250)],
    ),
    "CRLF ends lines": (b"data: a\r\n\r\n", [SseEvent("message", b"a", None, None)]),
    "CRLF is one end": (b"data: a\r\ndata: b\r\n\r\n", [SseEvent("message", b"a\nb", None, None)]),
    "CR ends lines": (b"data: a\r\r", [SseEvent("message", b"a", None, None)]),
    "all three ends mixed": (
        b"data: a\rdata: b\ndata: c\r\n\n",
        [SseEvent("message", b"a\nb\nc", None, None)],
    ),
    "one space after the colon goes, a second stays": (
        b"data:  a\ndata:b\n\n",
        [SseEvent("message", b" a\nb", None, None)],
    ),
    "empty data lines count": (b"data\ndata: a\ndata:\n\n", [SseEvent("message", b"\na\n", None, None)]),
    "comments and unknown fields say nothing": (b": ping\nfoo: bar\nDATA: x\n\n", []),
    "a byte order mark at the start": (b"\xef\xbb\xbfdata: a\n\n", [SseEvent("message", b"a", None, None)]),
    "a second byte order mark is part of a name": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "a priming event": (b"id: e1\ndata:\n\n", [SseEvent("message", b"", "e1", None)]),
    "a priming event without a data line": (b"id: e1\n\n", [SseEvent("message", b"", "e1", None)]),
    "a time to wait and nothing else": (b"retry: 1500\n\n", [SseEvent("message", b"", None, 1500)]),
    "a name without a data line": (b"event: endpoint\n\n", [SseEvent("endpoint", b"", None, None)]),
    "the longest id and time to wait": (
        b"id: %b\nretry: %b\n\n" % (b"x" * 4096, b"9" * 18),
        [SseEvent("message", b"", "x" * 4096, 10**18 - 1)],
    ),
    "the id stays until the next one": (
        b"id: 1\ndata: a\n\ndata: b\n\nid: 2\ndata: c\n\n",
        [SseEvent("message", d, i, None) for d, i in ((b"a", "1"), (b"b", "1"), (b"c", "2"))],
    ),
    "an empty id takes it back": (
        b"id: 1\ndata: a\n\nid\ndata: b\n\n",
        [SseEvent("message", b"a", "1", None), SseEvent("message", b"b", None, None)],
    ),
    "an id with NUL is none": (
        b"id: 1\ndata: a\n\nid: 2\x003\ndata: b\n\n",
        [SseEvent("message", b"a", "1", None), SseEvent("message", b"b", "1", None)],
    ),
    "an id that no header could carry is none": (
        b"id: a\x01b\ndata: a\n\n",
        [SseEvent("message", b"a", None, None)],
    ),
    "nor is one with spaces around it": (b"id:  a\ndata: a\n\n", [SseEvent("message", b"a", None, None)]),
    "an endless id is none": (
        b"id: %b\ndata: a\n\n" % (b"x" * 5000),
        [SseEvent("message", b"a", None, None)],
    ),
    "retry is digits": (
        b"retry: -5\nretry: 1_0\nretry: +1\nretry: \xd9\xa1\nretry: 1s\nretry:\ndata: a\n\n",
        [SseEvent("message", b"a", None, None)],
    ),
    "retry that nobody lives to see": (
        b"retry: %b\ndata: a\n\n" % (b"9" * 5000),
        [SseEvent("message", b"a", None, None)],
    ),
    "an unfinished event is none": (b"data: a\n\ndata: b\n", [SseEvent("message", b"a", None, None)]),
    "U+2028 and form feed end no line": (
        "data: a\u2028b\x0cc\x85d\n\n".encode(),
        [SseEvent("message", "a\u2028b\x0cc\x85d".encode(), None, None)],
    ),
    "data keeps bytes that are no UTF-8": (
        b"data: \xff\xfe\n\n",
        [SseEvent("message", b"\xff\xfe", None, None)],
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_parsing_follows_the_html_standard(rule: str) -> None:
    """In one portion, byte by byte, and with empty portions in between."""
    stream, events = RULES[rule]
    assert decoded(stream) == events
    every = range(1, len(stream))
    assert decoded(stream, *every) == events
    assert decoded(stream, *every, *every) == events


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (b'data: {"a":1}', [b'{"a":1}']),
        (b'data: {"a":1}\n', [b'{"a":1}']),
        (b'data: {"a"', []),
        (b"id: 1", []),
    ],
)
def test_last_event_may_lack_its_blank_line(rest: bytes, expected: list[bytes]) -> None:
    decoder = SseDecoder(LIMIT)
    assert decoder.feed(b"data: 1\n\n" + rest) == decoded(b"data: 1\n\n")
    assert [event.data for event in decoder.end()] == expected


@pytest.mark.parametrize("step", [1, 7, 30, 1000])
@pytest.mark.parametrize("size", [100, 24], ids=["one line", "several lines"])
def test_event_over_the_limit_is_refused(step: int, size: int) -> None:
    """One of exactly the limit is returned."""
    data = b"\n".join([b"x" * size] * (100 // size))
    stream = b"".join(b"data: %b\n" % line for line in data.split(b"\n")) + b"id: 5\n\n"
    portions = [stream[at : at + step] for at in range(0, len(stream), step)]
    exact, tight = SseDecoder(len(data)), SseDecoder(len(data) - 1)
    assert [e.data for portion in portions for e in exact.feed(portion)] == [data]
    with pytest.raises(EventTooLong, match=f"more than {len(data) - 1} bytes"):
        [tight.feed(portion) for portion in portions]


@pytest.mark.parametrize("endless", [b"x" * 200, b": " + b"x" * 200])
def test_endless_line_is_refused(endless: bytes) -> None:
    """A name or a comment."""
    decoder = SseDecoder(150)
    with pytest.raises(EventTooLong):
        decoder.feed(endless)


def test_portions_of_an_open_line_are_not_kept_apart() -> None:
    """A line may arrive in thousands of chunks; an object for each would take twenty times as much."""
    decoder = SseDecoder(1 << 20)
    tracemalloc.start()
    try:
        decoder.feed(b"data: ")
        for number in range(50_000):
            decoder.feed(b"%02d" % (number % 100))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    (event,) = decoder.feed(b"\n\n")
    assert len(event.data) == 100_000


def test_bytes_without_an_event_are_counted() -> None:
    """Comments, blank lines and fields other than `data` count until the next event."""
    decoder = SseDecoder(1000)
    decoder.feed(b": hi\n\n\nx: y\nevent: a\ndata: {}\n")
    assert decoder.overhead == len(b": hi\n\n\nx: y\nevent: a\n")
    assert decoder.feed(b"\n")
    assert decoder.overhead == 0


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_events_do_not_depend_on_how_the_stream_is_cut(stream: bytes, cuts: list[int]) -> None:
    """Any bytes, cut anywhere, never raise an error."""
    assert decoded(stream, *(cut for cut in cuts if cut < len(stream))) == decoded(stream)
