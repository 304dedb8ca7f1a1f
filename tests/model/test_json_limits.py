"""The number of values is bounded before anything is decoded, at a cost in proportion to the bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from msgspec import Raw

from mcpd.model.json_text import JsonTooLarge, check_size, first_items, items, members
from tests.stopwatch import assert_cheap

LARGEST = 31 * 1024 * 1024
"""Bytes; a frame has at most 32 MiB."""


@pytest.mark.parametrize("number", [1, 9_999, 10_000, 10_001, 30_000])
def test_members_and_items_of_one_level_are_counted_exactly(number: int) -> None:
    """What is inside them does not count."""
    inside = b'{"a":[1,2,3],"b":{}}'
    whole = b"{" + b",".join(b'"%d":%b' % (index, inside) for index in range(number)) + b"}"
    array = b" [" + b",".join([inside] * number) + b"]"
    if number <= 10_000:
        assert len(members(whole)) == number
        assert len(items(Raw(array))) == number
    else:
        with pytest.raises(JsonTooLarge, match="more than 10000 members"):
            members(Raw(whole))
        with pytest.raises(JsonTooLarge, match="more than 10000 items"):
            items(Raw(array))


@pytest.mark.parametrize("number", [0, 1, 9_999, 10_000, 10_001, 100_000])
def test_first_items_are_decoded(number: int) -> None:
    array = b"[" + b",".join(b"%d" % item for item in range(number)) + b"]"
    found, has_more = first_items(array)
    assert [int(bytes(item)) for item in found] == list(range(min(number, 10_000)))
    assert has_more == (number > 10_000)


def test_ordinary_list_needs_no_decoder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop the event loop for 80 ms, and take 3 MB for good."""
    monkeypatch.setattr("mcpd.model.json_text._first_as_fields", None)
    tool = b'{"name":"a","description":"b","inputSchema":{"type":"object"}}'
    array = b"[" + b",".join([tool] * 10_001) + b"]"
    found, has_more = first_items(array)
    assert (len(found), has_more) == (10_000, True)
    with pytest.raises(JsonTooLarge, match="more than 10000 items"):
        items(array)


def test_other_types_are_refused_as_before() -> None:
    for decode in (members, items):
        for wrong in (b"1", b'"' + b"x" * 100_000 + b'"', b"[1", b"{" + b'"a":' * 50_000, b"", b"[" * 10**6):
            with pytest.raises((msgspec.MsgspecError, RecursionError)):
                decode(wrong)


def endless(part: bytes, start: bytes = b"[", end: bytes = b"1]") -> bytes:
    return start + part * (LARGEST // len(part)) + end


HOSTILE = {
    "arrays": endless(b"[],"),
    "objects": endless(b"{},"),
    "strings": endless(b'"",'),
    "members": b"{" + b",".join(b'"k%d":1' % number for number in range(2_500_000)) + b"}",
    "one string": endless(b"xxxx", b'["', b'"]'),
    "commas in a string": endless(b",", b'["', b'"]'),
    "quotes in a string": endless(b'\\",', b'["', b'"]'),
    "backslashes": endless(b"\\"),
    "colons": endless(b":", b'["', b'"]'),
    "deep": b"[" * LARGEST,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_largest_document_takes_no_time(kind: str) -> None:
    """Decoding them takes up to 6 s. What is scanned here is only skipped, at a gigabyte per second."""

    def takes_at_most(seconds: float, read: Callable[[bytes], object]) -> None:
        def attempt() -> None:
            with suppress(JsonTooLarge, msgspec.MsgspecError, RecursionError):
                read(HOSTILE[kind])

        assert_cheap(attempt, seconds)

    takes_at_most(0.2, check_size)
    takes_at_most(1.5, lambda data: check_size(data, max_bytes=LARGEST + 1))
    takes_at_most(1.5, members)
    takes_at_most(1.5, items)
    takes_at_most(1.5, first_items)
