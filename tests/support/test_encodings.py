"""Encoded parts of a text are found in limited time."""

from __future__ import annotations

import base64
import random

import pytest

from mcpd.support.encodings import find_encoded

SECRET = "sk-live-0123456789abcdef"
ENCODED = base64.b64encode(SECRET.encode()).decode()


def contains(text: str) -> bool:
    return SECRET in text


def test_only_the_part_that_contains_the_secret_is_found() -> None:
    text = f"authorization first {ENCODED} second authorization"
    assert find_encoded(text, contains) == [(text.index(ENCODED), text.index(ENCODED) + len(ENCODED))]
    assert find_encoded(text.replace(ENCODED, ENCODED[::-1]), contains) == []


@pytest.mark.parametrize("count", [1, 16, 500])
def test_all_parts_are_found_however_many_they_are(count: int) -> None:
    """From some number on with what is between them, so that hundreds take no longer than a few."""
    text = f"before, {f'{ENCODED} and '.join([''] * (count + 1))}at last."
    places = find_encoded(text, contains)
    assert len(places) <= min(count, 40)
    for start, end in places:
        text = text[:start] + "*" * (end - start) + text[end:]
    assert ENCODED[:12] not in text
    assert text.startswith("before, ")
    assert text.endswith("at last.")


@pytest.mark.parametrize(
    "text",
    [
        "7" * 50_000,
        "A2B3C4D5" * 6000,
        base64.b64encode(random.Random(1).randbytes(30_000)).decode(),
        base64.b32encode(base64.b32encode(base64.b32encode(b"HELLO" * 2000))).decode(),
        "aa bb " * 8000,
        "1, 2, " * 8000,
    ],
    ids=["digits", "base32", "random", "base32 of base32", "hexadecimal list", "decimal list"],
)
def test_decoded_text_is_limited_by_the_text(text: str) -> None:
    """Counted in characters that are searched, which take the time."""
    searched: list[int] = []

    def count(decoded: str) -> bool:
        searched.append(len(decoded))
        return False

    assert find_encoded(text, count) == []
    assert sum(searched) < 40 * len(text)
