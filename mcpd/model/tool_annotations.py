"""What a server declares about a tool in its list."""

from __future__ import annotations

from mcpd.model import json_limits


def declares(tool: bytes, section: str, member: str, value: bytes) -> bool:
    """Return whether the list entry `tool` has exactly this value for a member of one of its sections."""
    if member.encode() not in tool:
        return False
    try:
        declared = json_limits.members(json_limits.members(tool).get(section, b"{}"))
    except (ValueError, RecursionError):
        return False
    return bytes(declared.get(member, b"")) == value


def is_read_only(tool: bytes) -> bool:
    """Return the `annotations.readOnlyHint` of the list entry `tool`."""
    return declares(tool, "annotations", "readOnlyHint", b"true")
