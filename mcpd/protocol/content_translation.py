"""Reduces the content of results to what the revision of a client knows. All other bytes are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from mcpd.model.json_text import encode_json
from mcpd.protocol.negotiate import PROTOCOL_VERSIONS
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, TooLarge

R1, R2, R3, R4, R5 = sorted(PROTOCOL_VERSIONS)[:5]
"""The revisions from oldest to newest. They are dates, so they compare as strings."""

_OBJECT = re.compile(rb"\s*\{")
_Part = Callable[[Raw, str], Raw | None]
"""Returns a part of a result as the revision knows it; None if it stays unchanged."""


def needs_narrowing(method: str, members: Mapping[str, Raw], client: str) -> bool:
    """Return whether the result may hold something unknown to the revision `client`."""
    if client < R4:
        return True
    structured = members.get("structuredContent")
    return method == "tools/call" and structured is not None and not _is_object(structured)


def narrow_content(method: str, members: Mapping[str, Raw], client: str) -> dict[str, Raw] | None:
    """Return the members of a result as `client` knows them; None if they stay unchanged. Raises TooLarge."""
    narrowed = dict(members)
    if method == "tools/call":
        more: list[Raw] = []
        structured = members.get("structuredContent")
        content = _items(members.get("content"))
        if structured is not None and (client < R3 or not _is_object(structured)):
            del narrowed["structuredContent"]
            has_text = False
            for item in content or ():
                has_text |= wire.string_or(_members(item) or {}, "type") == "text"
            if not has_text:
                text = bytes(structured).decode("utf-8", "replace")
                more = [Raw(b'{"type":"text","text":%b}' % encode_json(text))]
        if (changed := (_narrow_all(content, more, _narrow_item, client))) is not None:
            narrowed["content"] = changed
    elif method == "prompts/get":
        messages = _items(members.get("messages"))
        if (changed := (_narrow_all(messages, [], _narrow_message, client))) is not None:
            narrowed["messages"] = changed
    elif client < R3:
        contents = _items(members.get("contents"))
        if (changed := (_narrow_all(contents, [], _without_meta, client))) is not None:
            narrowed["contents"] = changed
    return None if narrowed == members else narrowed


def _items(raw: Raw | None) -> list[Raw] | None:
    """Return the items of a list; None for anything else. Raises TooLarge."""
    if raw is None:
        return None
    try:
        return wire.items(raw)
    except TooLarge:
        raise
    except BadFrame:
        return None


def _narrow_all(items: list[Raw] | None, more: list[Raw], narrow: _Part, client: str) -> Raw | None:
    """Return a list of all items as `client` knows them, and of `more`; None if the list stays unchanged.

    The list is required, so it is empty if there was none.
    """
    is_changed = items is None or bool(more)
    found: list[Raw] = []
    for item in items or ():
        narrowed = narrow(item, client)
        is_changed |= narrowed is not None
        found.append(item if narrowed is None else narrowed)
    return Raw(b"[%b]" % b",".join([*found, *more])) if is_changed else None


def _members(raw: Raw | None) -> dict[str, Raw] | None:
    """Return the members of an object; None for anything else. Raises TooLarge."""
    if raw is None or not _is_object(raw):
        return None
    try:
        return wire.members(raw)
    except TooLarge:
        raise
    except BadFrame:
        return None


def _is_object(raw: Raw) -> bool:
    return _OBJECT.match(raw) is not None


def _narrow_message(message: Raw, client: str) -> Raw | None:
    members = _members(message)
    if members is None or "content" not in members:
        return None
    content = _narrow_item(members["content"], client)
    return None if content is None else Raw(wire.join_members({**members, "content": content}))


def _narrow_item(item: Raw, client: str) -> Raw | None:
    members = _members(item)
    if members is None:
        return None
    kept = dict(members)
    for name in ("icons", "_meta") if client < R3 else ("icons",) if client < R4 else ():
        kept.pop(name, None)
    if client < R3:
        kind = wire.string_or(members, "type")
        if kind == "resource_link":
            name, uri = wire.string_or(members, "name"), wire.string_or(members, "uri")
            kind_of_file = wire.string_or(members, "mimeType")
            about = f" ({kind_of_file})" if kind_of_file else ""
            return _encode({"type": "text", "text": f"{name}: {uri}{about}"})
        if (annotations := _without(members.get("annotations"), "lastModified")) is not None:
            kept["annotations"] = annotations
        if kind == "resource" and (resource := _without(members.get("resource"), "_meta")) is not None:
            kept["resource"] = resource
        if client < R2 and kind == "audio":
            audio = {
                "uri": "about:audio",
                "mimeType": members.get("mimeType", "audio/*"),
                "blob": members.get("data", ""),
            }
            return _encode({"type": "resource", "resource": audio})
    return None if kept == members else Raw(wire.join_members(kept))


def _without_meta(item: Raw, _: str) -> Raw | None:
    return _without(item, "_meta")


def _without(raw: Raw | None, name: str) -> Raw | None:
    """Return an object without a member; None if it has none, or is none."""
    members = _members(raw)
    if members is None or members.pop(name, None) is None:
        return None
    return Raw(wire.join_members(members))


def _encode(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
