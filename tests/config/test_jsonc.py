"""JSON with comments and trailing commas: what is accepted, and where an error is."""

from __future__ import annotations

import tracemalloc

import pytest

from mcpd.config.jsonc import DocumentSyntaxError, JsonObject, blank_comments, parse_jsonc


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        (" // nothing\n", {}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2,],}', {"a": [1, 2]}),
        ('{"a": 1 /* , */ , // }\n}', {"a": 1}),
        ('{"a": "// , } /* ,]"}', {"a": "// , } /* ,]"}),
        ('{"a": "// ,}",}', {"a": "// ,}"}),
        ("[]", []),
        ("[1,]", [1]),
        ("5", 5),
    ],
)
def test_comments_and_trailing_commas_are_ignored(text: str, value: object) -> None:
    assert parse_jsonc(text) == value


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("{,}", 1, 2),
        ("[,]", 1, 2),
        ('{"a":,}', 1, 6),
        ('{"a": 1,,}', 1, 9),
        (",}", 1, 1),
        ('{\n  /* c */ "a" 1}', 2, 15),
        ('{"a": 1}\n /* open', 2, 2),
        ("NaN", 1, 1),
        ("[" * 100_000, 1, 1),
    ],
)
def test_anything_else_is_an_error_with_its_position(text: str, line: int, column: int) -> None:
    with pytest.raises(DocumentSyntaxError) as caught:
        parse_jsonc(text)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_only_keys_that_are_defined_twice_are_duplicates() -> None:
    value = parse_jsonc('{"a": 1, "b": 2, "a": 3, "c": {"d": 1}}')
    assert isinstance(value, JsonObject)
    assert value.duplicates == ("a",)
    assert isinstance(value["c"], JsonObject)
    assert value["c"].duplicates == ()


@pytest.mark.parametrize("text", ["/*" + "*" * 60_000 + "*/ {}", "//\n" * 20_000 + "{}"])
def test_memory_for_comments_is_a_small_multiple_of_the_text(text: str) -> None:
    """A comment of 4 MiB took half a gigabyte."""
    tracemalloc.start()
    try:
        assert parse_jsonc(text) == {}
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 30 * len(text)


def test_carriage_returns_in_comments_stay() -> None:
    text = '{ /* a\r\n b */ "a": 1, // c\r\n}'
    blanked = blank_comments(text)
    assert blanked == '{     \r\n      "a": 1,     \r\n}'
    assert parse_jsonc(text) == {"a": 1}
