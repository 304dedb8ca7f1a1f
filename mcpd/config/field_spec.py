"""The description of one field: of a definition, of its member `oauth`, or of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Shape = Mapping[str, object]

STRING: Shape = {"type": "string"}
BOOLEAN: Shape = {"type": "boolean"}
STRINGS: Shape = {"type": "array", "items": {"type": "string"}}
STRING_MAP: Shape = {"type": "object", "additionalProperties": {"type": "string"}}
MILLISECONDS: Shape = {"type": "number", "exclusiveMinimum": 0}
NUMBERS: Shape = {"type": "object", "additionalProperties": {"type": ["number", "object"]}}


class FieldSpec(msgspec.Struct, frozen=True):
    """One field of a definition or of the settings."""

    name: str
    shape: Shape
    """The JSON Schema of the field, without the description."""
    description: str
    aliases: tuple[str, ...] = ()
    """Names in other products that mean exactly the same."""
    applies_to: Literal["stdio", "remote"] | None = None
    """None: servers of every transport."""
