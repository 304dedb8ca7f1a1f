"""Header values and mirrored arguments: encoding, and invalid annotations."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.wire.headers import (
    decode_header_value,
    encode_header_value,
    invalid_annotations,
    mirrored_properties,
    param_headers,
)

HTTP_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")


def schema(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


def mirrored(name: object = "Region", kind: object = "string", **more: object) -> dict[str, object]:
    return {"type": kind, "x-mcp-header": name, **more}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encoded_value_is_decoded_unchanged(text: str) -> None:
    """The header value is legal, and proxies trim nothing of it."""
    encoded = encode_header_value(text)
    assert HTTP_VALUE.fullmatch(encoded)
    assert decode_header_value(encoded) == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("eu-west", "eu-west"),
        ("", ""),
        ("a b", "a b"),
        ("café_menu", "=?base64?Y2Fmw6lfbWVudQ==?="),
        (" a", "=?base64?IGE=?="),
        ("a ", "=?base64?YSA=?="),
        ("a\tb", "=?base64?YQli?="),
        ("a\r\nX-Evil: 1", "=?base64?YQ0KWC1FdmlsOiAx?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
    ],
)
def test_value_is_encoded_only_if_needed(text: str, encoded: str) -> None:
    """Known values, so that both directions cannot be wrong in the same way."""
    assert encode_header_value(text) == encoded
    assert decode_header_value(encoded) == text


@pytest.mark.parametrize("inside", ["YQ=", "YQ", "Y Q==", "YR==", "é", "/w==", "YQ==\n"])
def test_damaged_value_is_refused(inside: str) -> None:
    """Wrong padding, invalid characters, additional bits, invalid UTF-8."""
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_header_value(f"=?base64?{inside}?=")


def test_annotated_arguments_become_headers() -> None:
    """Strings unchanged, integers as digits, booleans as words; nested arguments by their path."""
    shape = schema(
        region=mirrored("Region"),
        count=mirrored("Count", "integer"),
        dry=mirrored("Dry-Run", "boolean"),
        empty=mirrored("Empty"),
        none=mirrored("None"),
        absent=mirrored("Absent"),
        plain={"type": "string"},
        inner=schema(deep=mirrored("Deep", "integer")),
    )
    arguments = {
        "region": "köln",
        "count": 42.0,
        "dry": True,
        "empty": "",
        "none": None,
        "plain": "x",
        "inner": {"deep": -7},
    }
    assert invalid_annotations(shape) is None
    assert param_headers(shape, arguments) == {
        "Mcp-Param-Region": "=?base64?a8O2bG4=?=",
        "Mcp-Param-Count": "42",
        "Mcp-Param-Dry-Run": "true",
        "Mcp-Param-Empty": "",
        "Mcp-Param-Deep": "-7",
    }
    assert mirrored_properties(shape)["inner", "deep"] == "Mcp-Param-Deep"


@pytest.mark.parametrize(
    "value", [{"a": 1}, ["x"], 10**5000, None], ids=["object", "list", "endless", "null"]
)
def test_value_that_cannot_be_mirrored_has_no_header(value: object) -> None:
    """The tool's schema refuses such arguments anyway."""
    assert param_headers(schema(region=mirrored()), {"region": value}) == {}


def test_arguments_that_do_not_match_the_schema_have_no_headers() -> None:
    """No input from a client may raise an error here."""
    assert param_headers(schema(inner=schema(deep=mirrored())), {"inner": "text"}) == {}


@pytest.mark.parametrize(
    "properties",
    [
        {"a": mirrored("")},
        {"a": mirrored("Two Words")},
        {"a": mirrored("Colon:")},
        {"a": mirrored("Zeile\n")},
        {"a": mirrored("Größe")},
        {"a": mirrored(7)},
        {"a": mirrored(None)},
        {"a": mirrored(kind="number")},
        {"a": mirrored(kind="array")},
        {"a": mirrored(kind="object")},
        {"a": mirrored(kind=["string", "null"])},
        {"a": {"x-mcp-header": "Region"}},
        {"a": mirrored("Region"), "b": mirrored("REGION")},
        {"a.b": mirrored("Region"), "a": schema(b=mirrored("region"))},
        {"a": {"type": "array", "items": mirrored()}},
        {"a": {"type": "array", "items": [mirrored()]}},
        {"a": {"type": "array", "items": schema(b=mirrored())}},
        {"a": {"anyOf": [mirrored(), {"type": "null"}]}},
        {"a": {"additionalProperties": mirrored()}},
        {"a": {"$defs": {"b": mirrored()}}},
        {"a": {"if": schema(b=mirrored())}},
    ],
)
def test_invalid_annotation_is_reported(properties: dict[str, object]) -> None:
    """An invalid or duplicate header name, an unsupported type, or not at a named argument."""
    assert invalid_annotations(schema(**properties))


def test_deep_schema_needs_no_recursion() -> None:
    """The server chooses the depth."""
    deep: dict[str, object] = mirrored()
    for _ in range(5000):
        deep = {"items": deep}
    assert invalid_annotations(schema(a=deep))
