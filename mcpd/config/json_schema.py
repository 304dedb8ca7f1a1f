"""The JSON Schema of the configuration file, for completion and validation in editors."""

from __future__ import annotations

from mcpd.config.definition import server_schema
from mcpd.config.fields import object_schema
from mcpd.config.settings import WrittenSettings


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
        "$defs": {"server": server_schema(), "settings": object_schema(WrittenSettings)},
        "allowTrailingCommas": True,
    }
