"""Extensions to MCP (the capability `extensions`): which of them pass through mcpd.

An extension passes if mcpd need not understand it: declarations, and additions to `_meta` and to lists, are
forwarded. Tasks have methods and results of their own, so mcpd implements them itself (`mcp_tasks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcpd.wire.message import RESERVED_PREFIX

TASKS = f"{RESERVED_PREFIX}tasks"
UI = f"{RESERVED_PREFIX}ui"
"""MCP Apps: tools whose results a host shows in an HTML page of the server."""
UI_CLIENT: Mapping[str, object] = {"mimeTypes": ["text/html;profile=mcp-app"]}
"""What a host declares that supports MCP Apps."""


def transparent(declared: object) -> dict[str, object]:
    """Return the extensions in a declaration that pass through mcpd between any two revisions."""
    if not isinstance(declared, Mapping):
        return {}
    return {name: value for name, value in declared.items() if name != TASKS and isinstance(value, Mapping)}


def united(declarations: Iterable[object]) -> dict[str, object]:
    """Return the transparent extensions of several peers. Members and list elements of one extension are
    united; if two peers declare different values for a member, the first one's is kept.
    """
    result: dict[str, object] = {}
    for declared in declarations:
        for name, value in transparent(declared).items():
            result[name] = _united_value(result[name], value) if name in result else value
    return result


def _united_value(one: object, other: object) -> object:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        both = {name: _united_value(one[name], other[name]) for name in one if name in other}
        return {**other, **one, **both}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *(each for each in other if each not in one)]
    return one
