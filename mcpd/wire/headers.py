"""HTTP headers that repeat parts of a message: encoding of values, and the arguments of tools.

A property in a tool's schema may have `"x-mcp-header": "Region"`. The argument is then sent as the header
`Mcp-Param-Region` too, for proxies that route without reading the body (MCP 2026-07-28, Streamable HTTP).
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
"""Method → member of `params` that the header `Mcp-Name` repeats."""
_ANNOTATION = "x-mcp-header"
_PLAIN_VALUE = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_BASE64_VALUE = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES = ("string", "integer", "boolean")

_DATA_KEYWORDS = frozenset(("const", "default", "enum", "examples"))
"""Where a schema contains data; everywhere else, an object is a schema or has schemas as its members."""


def encode_header_value(text: str) -> str:
    """Return the text as an HTTP header value, in base64 between markers if it is not plain ASCII."""
    if _PLAIN_VALUE.fullmatch(text) and not _BASE64_VALUE.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def decode_header_value(text: str) -> str:
    """Undo `encode_header_value`. Raises ValueError for invalid base64 between the markers."""
    found = _BASE64_VALUE.fullmatch(text)
    if found is None:
        return text
    try:
        data = base64.b64decode(found[1], validate=True)
        if base64.b64encode(data).decode() != found[1]:  # unused bits that are not zero
            raise ValueError("invalid base64 padding")
        return data.decode()
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"cannot be decoded ({error}): {shorten(text)}") from None


def mirrored_properties(schema: Mapping[str, object]) -> dict[tuple[str, ...], str]:
    """Return the annotated properties, as paths into the arguments, and their header names.

    Empty for nearly every tool. Meaningless for a schema in which `invalid_annotations` finds an error.
    """
    return {
        path: PARAM_PREFIX + name
        for path, place in _subschemas(schema)
        if path and isinstance(name := place.get(_ANNOTATION), str)
    }


def param_headers(schema: Mapping[str, object], arguments: Mapping[str, object]) -> dict[str, str]:
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
    """Return an argument as header text; None if it cannot be mirrored."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 5.0 is an integer in JSON Schema, and servers compare it as 5
    try:
        return str(value) if isinstance(value, int | float) else None
    except ValueError:  # an integer with more digits than Python converts
        return None


def invalid_annotations(schema: Mapping[str, object]) -> str | None:
    """Return why a tool with this input schema must not be called over HTTP; None if it may."""
    seen: dict[str, tuple[str, ...]] = {}
    for path, place in _subschemas(schema):
        if _ANNOTATION not in place:
            continue
        name, kind = place[_ANNOTATION], place.get("type")
        if not path:
            return f"`{_ANNOTATION}` is not at a named argument"
        where = _quoted_path(path)
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return f"`{_ANNOTATION}` of {where} is not a valid header name"
        if kind not in _TYPES:
            return f"`{_ANNOTATION}` of {where}: only strings, integers and booleans can be mirrored"
        other = seen.setdefault(name.lower(), path)
        if other != path:
            return f"`{_ANNOTATION}` {shorten(name)} is used by both {_quoted_path(other)} and {where}"
    return None


def _quoted_path(path: tuple[str, ...]) -> str:
    return shorten(".".join(path))


def _subschemas(
    schema: Mapping[str, object],
) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, object]]]:
    """Yield all nested schemas with the path of the argument that they describe.

    The path is () at the root, and None inside `items`, `anyOf` and similar keywords.
    """
    left: list[tuple[tuple[str, ...] | None, object]] = [((), schema)]
    while left:  # no recursion, because the server chooses the depth
        path, place = left.pop()
        if not isinstance(place, Mapping):
            continue
        yield path, place
        for word, inner in place.items():
            if word in _DATA_KEYWORDS:
                continue
            if word == "properties" and isinstance(inner, Mapping):
                left += [(None if path is None else (*path, name), sub) for name, sub in inner.items()]
            else:
                left += [(None, sub) for sub in (inner if isinstance(inner, list) else (inner,))]
