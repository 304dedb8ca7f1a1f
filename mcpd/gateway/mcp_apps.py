"""MCP Apps in the entries of tools: which resource a host shows with the results of a tool.

https://github.com/modelcontextprotocol/ext-apps, specification 2026-01-26
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from mcpd.model.errors import UnknownTool
from mcpd.model.text import shorten
from mcpd.model.tool_names import OwnedName
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

SCHEME = "ui://"
_OLD_MEMBER = "ui/resourceUri"
"""In `_meta`, where servers put it before the specification moved it to `ui.resourceUri`."""


def resource_uri(entry: dict[str, Raw]) -> str:
    """Return the URI of the page that a tool's entry names; empty if it names none."""
    try:
        meta = wire.members(entry["_meta"])
        ui = wire.members_or_empty(meta.get("ui", Raw(b"{}")))
        return wire.string_or(ui, "resourceUri") or wire.string_or(meta, _OLD_MEMBER)
    except (KeyError, BadFrame):
        return ""


def replace_resource_uri(entry: dict[str, Raw], uri: str) -> None:
    """Let a tool's entry name another page, wherever it names one."""
    meta, raw = wire.members(entry["_meta"]), Raw(msgspec.json.encode(uri))
    ui = wire.members_or_empty(meta.get("ui", Raw(b"{}")))
    if "resourceUri" in ui:
        meta["ui"] = Raw(msgspec.json.encode({**ui, "resourceUri": raw}))
    if _OLD_MEMBER in meta:
        meta[_OLD_MEMBER] = raw
    entry["_meta"] = Raw(msgspec.json.encode(meta))


def choose_tool(found: Sequence[OwnedName]) -> OwnedName | None:
    """Return the tool that the page of an app calls by its own name, given all tools with this name.

    The client does not say which page calls. Raises UnknownTool if several servers have such a tool.
    """
    if len(found) > 1:
        servers = ", ".join(server for server, _ in found)
        raise UnknownTool(
            f"several servers with apps have a tool {shorten(found[0][1], 80)!r} ({servers}); use a name "
            "from tools/list, or attach the client to one server (mcpctl bridge --server)"
        )
    return found[0] if found else None
