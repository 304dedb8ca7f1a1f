"""Entries of lists (tools, prompts, resources), as a client's revision has them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from mcpd.gateway.revision_translation.revisions import R2, R3, R4, R5
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

Entry = Callable[[bytes], bytes]
_MAY_NEED_CHANGE = (b'"execution"', b'"x-mcp-header"', b'"outputSchema"', b"\\u")


def entry_translation(member: str, client: str) -> Entry | None:
    """How an entry of the list `member` reads to `client`; None when it stays as it is."""
    if client >= R4 and member != "tools":
        return None
    return functools.partial(_translate_entry, member, client)


@functools.lru_cache(maxsize=4096)
def _translate_entry(member: str, client: str, raw: bytes) -> bytes:
    if client >= R4 and not any(raw.find(word) >= 0 for word in _MAY_NEED_CHANGE):
        return raw
    try:
        entry = wire.members(raw)
        return msgspec.json.encode(
            _translate_tool(entry, client) if member == "tools" else _translate_other(entry, client)
        )
    except (BadFrame, RecursionError):  # how deep a schema nests is the server's choice
        return raw


def _translate_tool(tool: dict[str, Raw], client: str) -> dict[str, Raw]:
    if client >= R5:
        tool.pop(
            "execution", None
        )  # the modern revision has no such member; its tasks are the server's choice
        return tool
    output = tool.get("outputSchema")
    if output is not None and (client < R3 or wire.mapping(output).get("type") != "object"):
        del tool["outputSchema"]
    if "inputSchema" in tool and b"x-mcp-header" in bytes(tool["inputSchema"]):
        tool["inputSchema"] = Raw(msgspec.json.encode(_without_headers(wire.value(tool["inputSchema"]))))
    if client < R4:
        tool.pop("execution", None)
    if client == R2 and "title" in tool:
        annotations = wire.mapping(tool.get("annotations"))
        tool["annotations"] = Raw(msgspec.json.encode({"title": tool["title"], **annotations}))
    if client < R2:
        tool.pop("annotations", None)
    return _translate_other(tool, client)


def _translate_other(entry: dict[str, Raw], client: str) -> dict[str, Raw]:
    if client < R4:
        entry.pop("icons", None)
    if client < R3:
        entry.pop("title", None)
        entry.pop("_meta", None)
        annotations = wire.mapping(entry.get("annotations"))
        if "lastModified" in annotations:
            del annotations["lastModified"]
            entry["annotations"] = Raw(msgspec.json.encode(annotations))
    return entry


def _without_headers(schema: object) -> object:
    """The schema without the words for mirroring arguments in HTTP headers: they are for modern clients."""
    if isinstance(schema, Mapping):
        return {name: _without_headers(value) for name, value in schema.items() if name != "x-mcp-header"}
    return [_without_headers(value) for value in schema] if isinstance(schema, list) else schema
