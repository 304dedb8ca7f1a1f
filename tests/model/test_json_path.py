"""JSON paths, limits of parsed documents, and the names of types and of similar words."""

from __future__ import annotations

import pytest

from mcpd.model.json_path import closest_match, is_too_large, join_path, type_name


def test_unusual_keys_are_quoted_in_a_path() -> None:
    assert [join_path("$", key) for key in ("git", "a b", "", 0)] == ["$.git", '$["a b"]', '$[""]', "$[0]"]


def nested(depth: int) -> object:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def test_document_is_too_large_just_above_the_limits() -> None:
    assert not is_too_large(nested(64))
    assert is_too_large(nested(65))
    assert not is_too_large([0] * 9, max_values=10)
    assert is_too_large([0] * 10, max_values=10)
    assert is_too_large({str(n): 0 for n in range(10)}, max_values=10)


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("include_tools", "includeTools"),
        ("timout", "timeout"),
        ("TIMEOUTT", "timeout"),
        ("comand", "command"),
        ("zzz", None),
    ],
)
def test_closest_match_is_the_intended_word(word: str, match: str | None) -> None:
    assert closest_match(word, ["command", "includeTools", "timeout"]) == match


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "null"),
        (True, "true or false"),
        (1, "a number"),
        (1.5, "a number"),
        ("", "a string"),
        ([], "a list"),
        ({}, "an object"),
        (b"", "a bytes"),
    ],
)
def test_types_have_names_for_people(value: object, name: str) -> None:
    assert type_name(value) == name
