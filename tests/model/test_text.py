"""Quotes and suggestions cost little, however long the text is."""

from __future__ import annotations

from mcpd.model.text import count_up_to, shorten, similar_names
from tests.stopwatch import assert_cheap

LARGE = 30 * 1024 * 1024


def test_similar_names_are_found() -> None:
    known = ["echo", "fetch", "search", "x" * 1000, ""]
    assert similar_names("serch", known, count=1) == ["search"]
    assert similar_names("", known) == []
    assert similar_names("zzz", known) == []


def test_suggestion_takes_no_time() -> None:
    """A name of 30 MiB took 3 s; long names of many tools took 0.7 s."""
    names = ["ab" * 32 + str(number) for number in range(100_000)]

    def suggest() -> None:
        similar_names("x" * LARGE, names)
        similar_names("ba" * 32, [name[:64] for name in names[:1000]])
        similar_names("ba" * 32, (name[:64] for name in names))

    assert_cheap(suggest, 0.2)


def test_beginning_of_a_large_text_is_quoted() -> None:
    def quote() -> None:
        assert shorten("\u20ac".encode() * (LARGE // 3)) == "\u20ac" * 120 + "\u2026"
        assert shorten("\u20ac" * LARGE) == "\u20ac" * 120 + "\u2026"

    assert_cheap(quote, 0.05)


def test_parts_are_counted_across_portions() -> None:
    text = b"ab" * 500_000
    for part in (b"a", b"ab", b"ba"):
        assert count_up_to(text, part, 10**9) == text.count(part)
    assert 1000 < count_up_to(text, b"a", 1000) < 200_000
