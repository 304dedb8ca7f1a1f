"""`rpc.discover`: the OpenRPC document, made from the table of methods and its attrs classes.

https://spec.open-rpc.org
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Mapping
from typing import Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from mcpd import __version__
from mcpd.api.control.methods import MCP_RESULT, METHODS

_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", msgspec.Raw: "object"}


@functools.cache
def openrpc_document() -> bytes:
    """Return the document as JSON. It is made at the first request, and then kept."""
    schemas: dict[str, object] = {}
    methods = [
        {
            "name": name,
            "summary": method.summary,
            "paramStructure": "by-name",
            "params": [
                {"name": member, "required": required, "schema": schema}
                for member, required, schema in _members(method.params, schemas)
            ],
            "result": {
                "name": "result",
                "schema": {"description": MCP_RESULT, "type": "object"}
                if method.result == MCP_RESULT
                else _json_schema(method.result, schemas),
            },
        }
        for name, method in sorted(METHODS.items())
    ]
    return msgspec.json.encode(
        {
            "openrpc": "1.3.2",
            "info": {"title": "mcpd control API", "version": __version__},
            "methods": methods,
            "components": {"schemas": dict(sorted(schemas.items()))},
        }
    )


def _json_schema(kind: object, schemas: dict[str, object]) -> dict[str, object]:
    """Return the JSON Schema of a type. Classes are added to `schemas` and referenced."""
    if isinstance(kind, type):
        if attrs.has(kind):
            return _class_schema(kind, schemas)
        if issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        return {"type": _NAMES[kind]} if kind in _NAMES else {}
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        return {"type": "array", "items": _json_schema(args[0], schemas)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _json_schema(args[1], schemas)}
    if origin in (Union, types.UnionType):
        return {
            "anyOf": [{"type": "null"} if arg is type(None) else _json_schema(arg, schemas) for arg in args]
        }
    return {}


def _class_schema(kind: type, schemas: dict[str, object]) -> dict[str, object]:
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}  # a placeholder, in case the class refers to itself
        members = _members(kind, schemas)
        schemas[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").split("\n\n")[0],
            "properties": {name: schema for name, _, schema in members},
            "required": [name for name, required, _ in members if required],
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _members(kind: type, schemas: dict[str, object]) -> list[tuple[str, bool, dict[str, object]]]:
    hints = get_type_hints(kind)
    return [
        (field.name, field.default is attrs.NOTHING, _json_schema(hints[field.name], schemas))
        for field in attrs.fields(kind)
    ]
