"""Converts an MCP tool result into a form for scripts: success, text, structured data, error."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from msgspec import Raw

from mcpd.model.json_text import first_items
from mcpd.model.text import shorten

MAX_BLOCKS = 5000
"""Content blocks that are converted, which takes about 10 ms."""


@attrs.frozen(kw_only=True)
class CallResult:
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


_NOTHING = Raw(b"")


class _Result(msgspec.Struct, gc=False):
    """The members of a result that are looked at. All others are skipped, however many there are."""

    content: Raw = _NOTHING
    structuredContent: Raw = _NOTHING
    isError: Raw = _NOTHING


class _Block(msgspec.Struct, gc=False):
    """The members of a content block, or of the resource in it, that are looked at."""

    type: Raw = _NOTHING
    text: Raw = _NOTHING
    data: Raw = _NOTHING
    mimeType: Raw = _NOTHING
    name: Raw = _NOTHING
    uri: Raw = _NOTHING
    resource: Raw = _NOTHING


_decode_result = msgspec.json.Decoder(_Result).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_text = msgspec.json.Decoder(str).decode
_DECODE_ERRORS = (ValueError, RecursionError)


def normalize_result(result: Raw | bytes, warnings: Sequence[str] = ()) -> CallResult:
    """Convert the `result` member (JSON text) of a `tools/call` response. Never raises.

    Violations of the specification (`content` is not a list, blocks are not objects) become warnings. Content
    blocks beyond MAX_BLOCKS are left out, with a warning.
    """
    notes = list(warnings)
    try:
        members = _decode_result(result)
    except _DECODE_ERRORS:
        notes.append("the server's result is not an object")
        return CallResult(success=False, error="malformed result", data=Raw(result), warnings=tuple(notes))
    try:
        blocks, has_more = first_items(members.content if len(members.content) else b"[]", MAX_BLOCKS)
    except _DECODE_ERRORS:
        notes.append("the result's content is not a list")
        blocks, has_more = [], False
    texts: list[str] = []
    others: list[Raw] = []
    malformed = 0
    for raw in blocks:
        try:
            block = _decode_block(raw)
        except _DECODE_ERRORS:
            malformed += 1
            continue
        texts.append(_block_text(block))
        if _string(block.type) != "text":
            others.append(raw)
    if malformed:
        one = malformed == 1
        notes.append(
            "a content block is not an object" if one else f"{malformed} content blocks are not objects"
        )
    if has_more:
        notes.append(
            f"the result has more than {MAX_BLOCKS} content blocks; the others are in the raw result only"
        )
    output = "\n".join(texts) if len(texts) != 1 else texts[0]
    failed = bytes(members.isError) == b"true"
    return CallResult(
        success=not failed,
        output=output,
        data=members.structuredContent if len(members.structuredContent) else None,
        error=(output or "the tool reported an error without a message") if failed else None,
        content=tuple(others),
        warnings=tuple(notes),
    )


def _base64_size(data: Raw) -> int:
    """Return the bytes that a JSON string encodes in base64, without decoding it; 0 for another value."""
    text = memoryview(data)
    if bytes(text[:1]) != b'"':
        return 0
    return max(0, (len(text) - 2) * 3 // 4 - bytes(text[-3:-1]).count(b"="))


def _block_text(block: _Block) -> str:
    kind = _string(block.type)
    if kind == "text":
        return _string(block.text)
    if kind in ("image", "audio"):
        size = _base64_size(block.data)
        return f"[{kind} {_string(block.mimeType) or 'of unknown type'}, {size} bytes]"
    if kind == "resource_link":
        name = _string(block.name)
        return f"[resource {name} {_string(block.uri)}]"
    if kind == "resource":
        try:
            inner = _decode_block(block.resource if len(block.resource) else b"{}")
        except _DECODE_ERRORS:
            inner = _Block()
        if len(inner.text):
            return _string(inner.text)
        uri = _string(inner.uri)
        return f"[resource {uri} {_string(inner.mimeType)}]".replace(" ]", "]")
    return f"[content of type {shorten(kind, 60)}]"


def _string(raw: Raw) -> str:
    """Return the string, or an empty one if the member is missing or of another type."""
    try:
        return _decode_text(raw) if len(raw) else ""
    except _DECODE_ERRORS:
        return ""
