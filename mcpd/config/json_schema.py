"""The JSON Schema of the configuration file, for completion and validation in editors."""

from __future__ import annotations

import attrs

from mcpd.config.field_names import FIELDS, IGNORED_FIELDS
from mcpd.config.field_spec import FieldSpec
from mcpd.config.settings import SETTINGS
from mcpd.model.server_spec import RestartPolicy, Timeouts


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of both layouts. It does not check URLs, names or variables."""
    servers = {"type": "object", "additionalProperties": {"$ref": "#/$defs/server"}}
    listed = {
        "type": "array",
        "items": {"$ref": "#/$defs/server", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mcpd configuration",
        "type": "object",
        "properties": {
            "mcpServers": servers,
            "settings": {"$ref": "#/$defs/settings"},
            "mcp": {
                "type": "object",
                "properties": {
                    "enabled": {"type": "boolean"},
                    "servers": {"anyOf": [servers, listed]},
                    "globalSettings": {"$ref": "#/$defs/settings"},
                },
                "additionalProperties": False,
            },
        },
        "not": {"required": ["mcpServers", "mcp"]},
        "$defs": {"server": _server(), "settings": _object(SETTINGS)},
        "allowTrailingCommas": True,
    }


def _server() -> dict[str, object]:
    server = _object(FIELDS)
    properties = server["properties"]
    assert isinstance(properties, dict)
    properties |= {"name": {"type": "string"}, **dict.fromkeys(IGNORED_FIELDS, True)}
    return {**server, "patternProperties": {"^(_|//|#|x-|\\$)": True}}


def _object(fields: tuple[FieldSpec, ...]) -> dict[str, object]:
    properties: dict[str, object] = {}
    for field in fields:
        shape = {**field.shape, "description": field.description}
        if field.name == "timeouts":
            shape["properties"] = _numbers(Timeouts())
        if field.name == "restart":
            shape["properties"] = _numbers(RestartPolicy())
        for spelling in (field.name, *field.aliases):
            properties[spelling] = shape
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _numbers(policy: Timeouts | RestartPolicy) -> dict[str, object]:
    types: dict[type, dict[str, object]] = {
        int: {"type": "integer"},
        float: {"type": "number"},
        dict: {"type": "object", "additionalProperties": {"type": "number"}},
    }
    return {name: {**types[type(value)], "default": value} for name, value in attrs.asdict(policy).items()}
