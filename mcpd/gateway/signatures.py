"""Describes a tool in one line: its name, its arguments with their types, and its first sentence."""

from __future__ import annotations

from mcpd.gateway.tool_index import SENTENCE_END, input_schema
from mcpd.model.text import shorten
from mcpd.wire import message as wire

_MAX_REQUIRED, _MAX_OPTIONAL = 50, 8
_MAX_NAME = 80
_MAX_TYPE = 40
_MAX_SENTENCE = 160


def signature(entry: bytes) -> str:
    """Return `name(required, optional?: type)`, on one line whatever the server calls its arguments."""
    members = wire.members(entry)
    schema = input_schema(members)
    shapes, wanted = schema.get("properties"), schema.get("required")
    shapes = shapes if isinstance(shapes, dict) else {}
    required = [each for each in wanted if isinstance(each, str)] if isinstance(wanted, list) else []
    needed = frozenset(required)
    optional = [name for name in shapes if name not in needed]
    shown = [f"{shorten(name, _MAX_NAME)}{_type(shapes.get(name))}" for name in required[:_MAX_REQUIRED]]
    if len(required) > _MAX_REQUIRED:
        shown.append(f"{len(required) - _MAX_REQUIRED} more required")
    shown += [f"{shorten(name, _MAX_NAME)}?{_type(shapes[name])}" for name in optional[:_MAX_OPTIONAL]]
    if len(optional) > _MAX_OPTIONAL:
        shown.append(f"{len(optional) - _MAX_OPTIONAL} more optional")
    return f"{wire.string_or(members, 'name')}({', '.join(shown)})"


def summary(entry: bytes, server: str) -> str:
    """Return the first sentence of the description, without the server in front of it."""
    members = wire.members(entry)
    text = wire.string_or(members, "description").removeprefix(f"[{server}]").strip()
    text = text or wire.string_or(members, "title")
    return shorten(SENTENCE_END.split(text[:1000], maxsplit=1)[0], _MAX_SENTENCE)


def _type(shape: object) -> str:
    """Return `: type`, or nothing for text."""
    kind = _kind(shape)
    return "" if kind == "string" else f": {shorten(kind, 2 * _MAX_TYPE)}"


def _kind(shape: object, depth: int = 0) -> str:
    if not isinstance(shape, dict):
        return "any"
    if isinstance(values := shape.get("enum"), list):
        text = "|".join(map(str, values[:20]))
        if len(text) <= _MAX_TYPE:
            return text
    options = shape.get("anyOf") or shape.get("oneOf")
    if isinstance(options, list) and depth < 3:
        kinds = dict.fromkeys(_kind(each, depth + 1) for each in options[:5])
        kinds.pop("null", None)
        return "|".join(kinds) or "any"
    kind = shape.get("type")
    if kind == "array":
        return f"{_kind(shape.get('items', {}), depth + 1) if depth < 3 else 'any'}[]"
    if isinstance(kind, list):
        return "|".join(str(each) for each in kind if each != "null")[:_MAX_TYPE]
    return kind if isinstance(kind, str) else "any"
