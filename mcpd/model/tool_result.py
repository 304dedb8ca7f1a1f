"""Converts an MCP tool result into a form for scripts: success, text, structured data, error.

Text is copied as the server has encoded it, because a result may have 32 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec
from msgspec import Raw

from mcpd.model import codec
from mcpd.model.json_text import encode_json, first_items
from mcpd.model.steps import Steps
from mcpd.model.text import shorten

MAX_BLOCKS = 5000
"""Content blocks that are converted, which takes about 10 ms."""
MAX_CHECKED = 1024 * 1024
"""Bytes of a text that is decoded to check it, which takes 3 ms."""


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


def normalize_result(result: Raw | bytes, warnings: Sequence[str] = ()) -> Steps[bytes]:
    """Convert the `result` member (JSON text) of a `tools/call` response to an encoded CallResult. Never
    raises. Each step takes at most 2 ms per MiB.

    Violations of the specification (`content` is not a list, blocks are not objects) become warnings. Content
    blocks beyond MAX_BLOCKS are left out, with a warning.
    """
    notes = list(warnings)
    try:
        members = _decode_result(result)
    except _DECODE_ERRORS:
        notes.append("the server's result is not an object")
        return codec.encode(
            CallResult(success=False, error="malformed result", data=Raw(result), warnings=tuple(notes))
        )
    yield
    try:
        blocks, has_more = first_items(members.content if len(members.content) else b"[]", MAX_BLOCKS)
    except _DECODE_ERRORS:
        notes.append("the result's content is not a list")
        blocks, has_more = [], False
    texts: list[bytes] = []
    others: list[Raw] = []
    malformed = 0
    for raw in blocks:
        try:
            block = _decode_block(raw)
        except _DECODE_ERRORS:
            malformed += 1
            continue
        yield
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
    yield
    output = Raw(b"".join([b'"', b"\\n".join(texts), b'"']))
    failed = bytes(members.isError) == b"true"
    encoded = {
        "success": not failed,
        "output": output,
        "data": members.structuredContent if len(members.structuredContent) else None,
        "error": (output if len(output) > 2 else "the tool reported an error without a message")
        if failed
        else None,
        "content": others,
        "warnings": notes,
    }
    return encode_json(encoded)


def _base64_size(data: Raw) -> int:
    """Return the bytes that a JSON string encodes in base64, without decoding it; 0 for another value."""
    text = memoryview(data)
    if bytes(text[:1]) != b'"':
        return 0
    return max(0, (len(text) - 2) * 3 // 4 - bytes(text[-3:-1]).count(b"="))


def _block_text(block: _Block) -> bytes:
    """Return the text of a block as the inside of a JSON string."""
    kind = _string(block.type)
    if kind == "text":
        return _text(block.text)
    if kind == "resource":
        try:
            inner = _decode_block(block.resource if len(block.resource) else b"{}")
        except _DECODE_ERRORS:
            inner = _Block()
        if len(inner.text):
            return _text(inner.text)
        uri = _string(inner.uri)
        shown = f"[resource {uri} {_string(inner.mimeType)}]".replace(" ]", "]")
    elif kind in ("image", "audio"):
        size = _base64_size(block.data)
        shown = f"[{kind} {_string(block.mimeType) or 'of unknown type'}, {size} bytes]"
    elif kind == "resource_link":
        shown = f"[resource {_string(block.name)} {_string(block.uri)}]"
    else:
        shown = f"[content of type {shorten(kind, 60)}]"
    return encode_json(shown)[1:-1]


def _text(raw: Raw) -> bytes:
    """Return the inside of a JSON string as the server has encoded it.

    Returns nothing for another value, and for text that is not UTF-8 or has half of a surrogate pair. Text
    of more than MAX_CHECKED bytes is not checked.
    """
    text = bytes(raw)
    is_text = text.startswith(b'"') and (len(text) > MAX_CHECKED or _string(raw))
    return text[1:-1] if is_text else b""


def _string(raw: Raw) -> str:
    """Return the string, or an empty one if the member is missing or of another type."""
    try:
        return _decode_text(raw) if len(raw) else ""
    except _DECODE_ERRORS:
        return ""
