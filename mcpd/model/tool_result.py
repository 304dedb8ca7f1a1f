"""Converts an MCP tool result into a form for scripts: success, text, structured data, error."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from msgspec import Raw


@attrs.frozen(kw_only=True)
class ToolResult:
    """The result of a tool call. `output` contains all text, separated by newlines, and placeholders for
    other content."""

    success: bool
    output: str = ""
    data: object = None
    """The unchanged `structuredContent` from the server."""
    error: str | None = None
    """The error text if the tool reported an error (`isError`)."""
    content: tuple[Raw, ...] = ()
    """The unchanged MCP content blocks that are not text. The data of images is encoded in base64."""
    warnings: tuple[str, ...] = ()


_members = msgspec.json.Decoder(dict[str, Raw]).decode
_items = msgspec.json.Decoder(list[Raw]).decode
_text = msgspec.json.Decoder(str).decode
_DECODE_ERRORS = (msgspec.MsgspecError, RecursionError)
_NOTHING = Raw(b"")


def normalize_result(result: Raw | bytes, warnings: Sequence[str] = ()) -> ToolResult:
    """Convert the `result` member (JSON text) of a `tools/call` response. Never raises.

    Violations of the specification (`content` is not a list, blocks are not objects) become warnings.
    """
    notes = list(warnings)
    try:
        members = _members(result)
    except _DECODE_ERRORS:
        notes.append("the server's result is not an object")
        return ToolResult(success=False, error="malformed result", data=Raw(result), warnings=tuple(notes))
    try:
        blocks = _items(members.get("content", b"[]"))
    except _DECODE_ERRORS:
        notes.append("the result's content is not a list")
        blocks = []
    texts: list[str] = []
    others: list[Raw] = []
    for raw in blocks:
        try:
            block = _members(raw)
        except _DECODE_ERRORS:
            notes.append("a content block is not an object")
            continue
        texts.append(_block_text(block))
        if _string(block, "type") != "text":
            others.append(raw)
    output = "\n".join(texts)
    failed = bytes(members.get("isError", _NOTHING)) == b"true"
    return ToolResult(
        success=not failed,
        output=output,
        data=members.get("structuredContent"),
        error=(output or "the tool reported an error without a message") if failed else None,
        content=tuple(others),
        warnings=tuple(notes),
    )


def _block_text(block: dict[str, Raw]) -> str:
    kind = _string(block, "type")
    if kind == "text":
        return _string(block, "text")
    if kind in ("image", "audio"):
        size = len(_string(block, "data")) * 3 // 4
        return f"[{kind} {_string(block, 'mimeType') or 'of unknown type'}, {size} bytes]"
    if kind == "resource_link":
        return f"[resource {_string(block, 'name')} {_string(block, 'uri')}]"
    if kind == "resource":
        try:
            inner = _members(block.get("resource", b"{}"))
        except _DECODE_ERRORS:
            inner = {}
        if "text" in inner:
            return _string(inner, "text")
        return f"[resource {_string(inner, 'uri')} {_string(inner, 'mimeType')}]".replace(" ]", "]")
    return f"[content of type {kind}]"


def _string(members: dict[str, Raw], name: str) -> str:
    """Return the member, or an empty string if it is missing or not a string."""
    try:
        return _text(members.get(name, b'""'))
    except _DECODE_ERRORS:
        return ""
