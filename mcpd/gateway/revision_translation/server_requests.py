"""What a server asks of a client's person, as that client's revision has it."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import Raw

from mcpd.gateway.revision_translation.revisions import R3, R4, R5
from mcpd.wire import message as wire
from mcpd.wire.request_meta import strip_reserved

_Object = dict[str, Any]


def translate_server_request(method: str, params: Raw, client: str, label: str) -> bytes | None:
    """What a server asks, as a client's revision says it, `label` before its message; None where that has
    no words for it. Raises BadFrame for params that are no object."""
    if client < R3 and method == "elicitation/create":
        return None
    members = wire.members(params or b"{}")
    strip_reserved(members)
    if client < R4:
        members.pop("task", None)
    if method == "elicitation/create":
        schema = members.get("requestedSchema")
        if client < R4:
            if wire.value(members.pop("mode", Raw(b'"form"'))) != "form":
                return None
            simple = _simplify_form(wire.mapping(schema))
            if simple is None:
                return None
            members["requestedSchema"] = Raw(msgspec.json.encode(simple))
        elif client < R5 and wire.value(members.get("mode", Raw(b'"form"'))) == "url":
            if "elicitationId" not in members:  # this revision cannot do without
                members["elicitationId"] = Raw(msgspec.json.encode(secrets.token_urlsafe(12)))
        elif client >= R5:
            members.pop("elicitationId", None)
        if label and "message" in members:
            words = wire.value(members["message"])
            members["message"] = Raw(msgspec.json.encode(f"{label}{words}"))
    return msgspec.json.encode(members)


def _simplify_form(schema: _Object) -> _Object | None:
    """A form as 2025-06-18 has it: one choice by name, defaults for yes and no only; None if it cannot."""
    properties: _Object = {}
    fields = schema.get("properties")
    for name, field in fields.items() if isinstance(fields, dict) else ():
        if not isinstance(field, dict) or field.get("type") == "array":
            return None
        field = dict(field)
        choices = field.pop("oneOf", None)
        if isinstance(choices, list):
            field["enum"] = [str(each.get("const")) for each in choices if isinstance(each, dict)]
            field["enumNames"] = [str(each.get("title")) for each in choices if isinstance(each, dict)]
        if field.get("type") != "boolean":
            field.pop("default", None)
        properties[name] = field
    return {**schema, "properties": properties}
