"""Content in results, as far as a legacy client knows it: what it lacks is left out, or said as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from mcpd.gateway.revision_translation.revisions import R2, R3, R4
from mcpd.wire import message as wire


def needs_narrowing(method: str, members: Mapping[str, Raw], client: str) -> bool:
    """Whether it may hold what that revision does not know. The newest legacy one knows all but one thing."""
    if client < R4:
        return True
    structured = members.get("structuredContent")
    return method == "tools/call" and structured is not None and not _is_object(structured)


def _is_object(raw: Raw) -> bool:
    return bytes(raw).lstrip().startswith(b"{")


def narrow_content(method: str, members: dict[str, Raw], client: str) -> dict[str, Raw]:
    """The content in a result, as far as `client` knows it. Raises BadFrame."""
    narrowed = dict(members)
    if method == "tools/call":
        content = _list(members.get("content"))
        structured = members.get("structuredContent")
        if structured is not None and (client < R3 or not _is_object(structured)):
            del narrowed["structuredContent"]
            if not any(isinstance(item, dict) and item.get("type") == "text" for item in content):
                content.append({"type": "text", "text": bytes(structured).decode("utf-8", "replace")})
        narrowed["content"] = Raw(msgspec.json.encode([_narrow_item(item, client) for item in content]))
    elif method == "prompts/get":
        messages = [
            {**message, "content": _narrow_item(message.get("content"), client)}
            if isinstance(message, dict)
            else message
            for message in _list(members.get("messages"))
        ]
        narrowed["messages"] = Raw(msgspec.json.encode(messages))
    elif client < R3:
        contents = [_without_members(item, "_meta") for item in _list(members.get("contents"))]
        narrowed["contents"] = Raw(msgspec.json.encode(contents))
    return narrowed


def _list(raw: Raw | None) -> list[Any]:
    value = [] if raw is None else wire.value(raw)
    return value if isinstance(value, list) else []


def _without_members(item: object, *names: str) -> object:
    return {k: v for k, v in item.items() if k not in names} if isinstance(item, dict) else item


def _narrow_item(item: object, client: str) -> object:
    """One piece of content."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    unknown = ("icons", "_meta") if client < R3 else ("icons",) if client < R4 else ()
    item = {k: v for k, v in item.items() if k not in unknown}
    if client < R3:
        if isinstance(item.get("annotations"), dict):
            item = {**item, "annotations": _without_members(item["annotations"], "lastModified")}
        if kind == "resource_link":
            about = f" ({item['mimeType']})" if isinstance(item.get("mimeType"), str) else ""
            return {"type": "text", "text": f"{item.get('name', '')}: {item.get('uri', '')}{about}"}
        if kind == "resource":
            item = {**item, "resource": _without_members(item.get("resource"), "_meta")}
    if client < R2 and kind == "audio":
        resource = {
            "uri": "about:audio",
            "mimeType": item.get("mimeType", "audio/*"),
            "blob": item.get("data", ""),
        }
        return {"type": "resource", "resource": resource}
    return item
