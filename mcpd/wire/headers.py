"""What goes from a message into HTTP headers: encoding a value, and the parameters a tool wants mirrored.

A tool's schema may say `"x-mcp-header": "Region"` beside a property; the argument then also travels
as `Mcp-Param-Region`, for proxies that route without opening the body (revision 2026-07-28).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping

from mcpd.model.text import shorten

PARAM_PREFIX = "Mcp-Param-"
NAME_PARAMETERS = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""By method: the member of `params` that the header `Mcp-Name` repeats."""
_ANNOTATION = "x-mcp-header"
_PLAIN_VALUE = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_BASE64_VALUE = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES = ("string", "integer", "boolean")

_SCHEMA_KEYWORDS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_SCHEMA_LIST_KEYWORDS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_SCHEMA_MAP_KEYWORDS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"}
)
"""Where a schema holds others, besides `properties`. Not here: `default`, `const`, `enum` and `examples`,
which hold data, and `$ref`, which is never followed."""


def encode_header_value(text: str) -> str:
    """The text as an HTTP header value: itself where it survives that, else in base64 between marks."""
    if _PLAIN_VALUE.fullmatch(text) and not _BASE64_VALUE.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def decode_header_value(text: str) -> str:
    """What `encode_header_value` was given. Raises ValueError for marks with anything wrong between."""
    found = _BASE64_VALUE.fullmatch(text)
    if found is None:
        return text
    try:
        data = base64.b64decode(found[1], validate=True)
        if base64.b64encode(data).decode() != found[1]:  # bits beyond the end are none of the text's
            raise ValueError("not the base64 of anything")
        return data.decode()
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"cannot be decoded ({error}): {shorten(text)}") from None


def mirrored_properties(schema: Mapping[str, object]) -> dict[tuple[str, ...], str]:
    """The properties to mirror, as paths into the arguments, and the header names for them.

    Empty for nearly every tool: then its arguments need not be looked at. For a schema in which
    `invalid_annotations` finds something, this is of no use.
    """
    return {
        path: PARAM_PREFIX + name
        for path, place in _subschemas(schema)
        if path and isinstance(name := place.get(_ANNOTATION), str)
    }


def param_headers(schema: Mapping[str, object], arguments: Mapping[str, object]) -> dict[str, str]:
    """The headers that go with a call of the tool which has this input schema."""
    headers = {}
    for path, name in mirrored_properties(schema).items():
        text = _header_text(_argument_at(arguments, path))
        if text is not None:
            headers[name] = encode_header_value(text)
    return headers


def _argument_at(arguments: object, path: tuple[str, ...]) -> object:
    for name in path:
        if not isinstance(arguments, Mapping):
            return None
        arguments = arguments.get(name)
    return arguments


def _header_text(value: object) -> str | None:
    """As the header has it; None where there is nothing to mirror."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 5.0 is an integer to JSON Schema, and 5 is how the other side compares it
    try:
        return str(value) if isinstance(value, int | float) else None
    except ValueError:  # more digits than Python writes out
        return None


def invalid_annotations(schema: Mapping[str, object]) -> str | None:
    """Why a tool with this input schema must not be offered over HTTP; None when it may be."""
    seen: dict[str, tuple[str, ...]] = {}
    for path, place in _subschemas(schema):
        if _ANNOTATION not in place:
            continue
        name, kind = place[_ANNOTATION], place.get("type")
        if not path:
            return f"`{_ANNOTATION}` stands where no argument can be named"
        where = _quoted_path(path)
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return f"`{_ANNOTATION}` of {where} is no header name"
        if kind not in _TYPES:
            return f"`{_ANNOTATION}` of {where}: only a string, an integer or a boolean can be mirrored"
        other = seen.setdefault(name.lower(), path)
        if other != path:
            return f"`{_ANNOTATION}` {shorten(name)} is claimed by both {_quoted_path(other)} and {where}"
    return None


def _quoted_path(path: tuple[str, ...]) -> str:
    return shorten(".".join(path))


def _subschemas(
    schema: Mapping[str, object],
) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, object]]]:
    """Every schema in the schema, with the path of the argument it is about.

    The path is () at the root, and None where there is none: inside `items`, `anyOf` and the like.
    """
    left: list[tuple[tuple[str, ...] | None, object]] = [((), schema)]
    while left:  # no recursion: the depth is the server's choice
        path, place = left.pop()
        if not isinstance(place, Mapping):
            continue
        yield path, place
        for word, inner in place.items():
            if word == "properties" and isinstance(inner, Mapping):
                left += [(None if path is None else (*path, name), sub) for name, sub in inner.items()]
            elif word in _SCHEMA_MAP_KEYWORDS and isinstance(inner, Mapping):
                left += [(None, sub) for sub in inner.values()]
            elif word in _SCHEMA_LIST_KEYWORDS and isinstance(inner, list):
                left += [(None, sub) for sub in inner]
            elif word in _SCHEMA_KEYWORDS:
                left.append((None, inner))
