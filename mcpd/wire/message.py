"""JSON-RPC messages: read the envelope, keep the bytes of every member, put new envelopes around them.

Nothing here re-encodes what another program wrote. `parse` decodes only the envelope, and each member keeps
its bytes; `request`, `result`, `error` and `notification` put bytes into a new envelope.

The bridge uses this module too, so it must not import anything that is slow to start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcpd.model import json_text
from mcpd.model.json_text import MAX_BYTES, MAX_ITEMS, MAX_VALUES, encode_json
from mcpd.model.text import shorten
from mcpd.wire.json_repair import repair_json

ABSENT = Raw(b"")
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, SERVER_ERROR = -32603, -32000
DECODE_ERRORS = (ValueError, RecursionError)
"""What msgspec raises for a document that it cannot read: its own errors are ValueErrors, and invalid UTF-8
inside a Raw member is found only when this member is decoded, as UnicodeDecodeError."""


MAX_ID = 1024
"""Bytes of the longest id of a message: it is compared, stored, and copied more often than other members."""


class BadFrame(ValueError):
    """The bytes are not a JSON-RPC message. `code`: of the error response."""

    code = PARSE_ERROR


class LongId(BadFrame):
    """The `id` of a message exceeds MAX_ID."""

    code = INVALID_REQUEST

    def __init__(self, size: int) -> None:
        super().__init__(f"its `id` has {size} bytes, and mcpd accepts at most {MAX_ID}; use a shorter one")


class TooLarge(BadFrame):
    """The JSON has more values, members, items, levels or bytes than mcpd decodes (`model/json_text.py`).

    It may be valid, and can be forwarded as bytes. The message names the limit and its value.
    """


class Message(msgspec.Struct, gc=False):
    """An envelope. A missing member is ABSENT; `id` keeps its exact JSON spelling."""

    id: Raw = ABSENT
    method: str = ""
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT

    @property
    def key(self) -> bytes:
        """The bytes of the id: `1`, `1.0` and `"1"` are three different keys."""
        return bytes(self.id)

    def drop_null_members(self) -> None:
        """Remove the members of the result that are null."""
        members = members_or_empty(self.result).items()
        self.result = Raw(join_members({name: text for name, text in members if bytes(text) != b"null"}))


decode_envelope = msgspec.json.Decoder(Message).decode
"""`parse` without checking or repairing the text inside. Raises one of DECODE_ERRORS.

ASCII of at most MAX_ID bytes needs no check, so each usual call uses this directly."""


def check_id(message: Message) -> None:
    """Raise LongId if the id is too long. Only lines of more than MAX_ID bytes need this."""
    if len(message.id) > MAX_ID:
        raise LongId(len(message.id))


def parse(line: bytes) -> Message:
    """Read one message. Raises BadFrame for anything but a JSON object with members of the right types.

    Two kinds of bytes are replaced by U+FFFD, because not every reader would accept them: invalid UTF-8, and
    half a surrogate pair (`"\\ud83d"`, which Node writes when it cuts an emoji in two).
    """
    try:
        if not line.isascii():
            line.decode()  # Raw members are not checked for UTF-8
        message = decode_envelope(line)
    except DECODE_ERRORS as error:
        reason = str(error)
    else:
        if len(line) > MAX_ID:
            check_id(message)
        return message
    sound = repair_json(line)
    if sound == line and bytes((outer := members_or_empty(line)).get("method", b"")) == b"null":
        del outer["method"]  # a response of a program that writes every member that it knows
        sound = join_members(outer)
    if sound == line:
        raise BadFrame(f"{reason}: {shorten(line)}")
    return parse(sound)


def is_null_notification(message: Message) -> bool:
    """Return whether this is a notification of a program that writes `"id": null`."""
    return bytes(message.id) == b"null" and message.method.startswith("notifications/")


def method_of(line: bytes) -> str:
    """Return the method that a message calls; empty for a response, or if it is not a message."""
    try:
        return parse(line).method
    except BadFrame:
        return ""


_LOOSE_NUMBER = re.compile(rb'"([0-9]{1,20})"|([0-9]{1,20})\.0+')


def normalize_id(key: bytes) -> bytes:
    """Return the integer id that came back as `"7"` or `7.0`; any other id unchanged.

    For mcpd's own ids only: they are all integers, so the match is unambiguous.
    """
    loose = _LOOSE_NUMBER.fullmatch(key)
    return key if loose is None else loose[1] or loose[2]


def split_batch(line: bytes, limit: int = MAX_ITEMS) -> list[bytes]:
    """Return the messages of a batch array (MCP 2025-03-26 only). Raises BadFrame, and TooLarge."""
    return [bytes(part) for part in items(line, limit)]


def items(raw: Raw | bytes, limit: int = MAX_ITEMS) -> list[Raw]:
    """Decode one level of an array: its items, each as its own bytes. Raises BadFrame, and TooLarge."""
    try:
        return json_text.items(raw, limit)
    except json_text.JsonTooLarge as error:
        raise TooLarge(f"{error}: {shorten(bytes(raw))}") from None
    except DECODE_ERRORS as error:
        raise BadFrame(f"{error}: {shorten(bytes(raw))}") from None


def first_items(raw: Raw | bytes, limit: int = MAX_ITEMS) -> tuple[list[Raw], bool]:
    """Return the first items of an array as `items` does, and whether there are more. Raises BadFrame."""
    try:
        return json_text.first_items(raw, limit)
    except DECODE_ERRORS as error:
        raise BadFrame(f"{error}: {shorten(bytes(raw))}") from None


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """Decode one level of an object: its members, each as its own bytes. Raises BadFrame, and TooLarge."""
    try:
        return json_text.members(raw)
    except DECODE_ERRORS as error:
        raise _not_an_object(raw, error) from None


def _not_an_object(raw: Raw | bytes, error: Exception) -> BadFrame:
    text = f"{error}: {shorten(bytes(raw))}"
    return TooLarge(text) if isinstance(error, json_text.JsonTooLarge) else BadFrame(f"not an object: {text}")


def join_members(members: Mapping[str, Raw], start: bytes = b"{") -> bytes:
    """Return an object with these members, after those in `start`, which begins the object."""
    parts: list[bytes | Raw] = [start]
    separator = b"," if len(start) > 1 else b""
    for name, text in members.items():
        parts += (separator, msgspec.json.encode(name), b":", text)
        separator = b","
    parts.append(b"}")
    return b"".join(parts)


def members_or_empty(raw: Raw | bytes) -> dict[str, Raw]:
    """Return the members of an object as `members` does; empty for anything else."""
    try:
        return json_text.members(raw)
    except DECODE_ERRORS:
        return {}


def string(members: Mapping[str, Raw], name: str) -> str:
    """Return a member that must be a string. Raises BadFrame."""
    if name not in members:
        raise BadFrame(f"`{name}` is missing")
    try:
        return msgspec.json.decode(members[name], type=str)
    except DECODE_ERRORS as error:
        raise BadFrame(f"`{name}`: {error}") from None


def string_or(members: Mapping[str, Raw], name: str) -> str:
    """Return a member that should be a string; empty if it is not."""
    try:
        return string(members, name)
    except BadFrame:
        return ""


def error_code(error: Mapping[str, Raw]) -> str:
    """Return the code of an error object as text; empty if it is not an integer, as JSON-RPC requires."""
    code = bytes(error.get("code", b""))
    return code.decode() if len(code) < 12 and code.lstrip(b"-").isdigit() else ""


def value(raw: Raw | bytes, max_values: int = MAX_VALUES, max_bytes: int = MAX_BYTES) -> object:
    """Decode a whole document. Raises BadFrame, and TooLarge when it exceeds the limits or nests too deep."""
    data = bytes(raw)
    try:
        json_text.check_size(data, max_values, max_bytes)
        try:
            decoded: object = msgspec.json.decode(data)
        except ValueError:
            sound = repair_json(data)
            if sound == data:
                raise
            decoded = msgspec.json.decode(sound)
    except json_text.JsonTooLarge as error:
        raise TooLarge(f"{error}: {shorten(data)}") from None
    except DECODE_ERRORS as error:
        raise BadFrame(f"{error}: {shorten(data)}") from None
    return decoded


def mapping(raw: Raw | None) -> dict[str, object]:
    """Decode a whole object; empty for None and for other types. Raises BadFrame as `value` does."""
    decoded = {} if raw is None else value(raw)
    return decoded if isinstance(decoded, dict) else {}


ENVELOPE_START = b'{"jsonrpc":"2.0","id":'
"""The first bytes of every request and response that mcpd writes."""
_METHODS: dict[str, bytes] = {}


def method_json(method: str) -> bytes:
    known = _METHODS.get(method)
    if known is None:
        known = msgspec.json.encode(method)
        if len(_METHODS) < 100 and len(method) < 64:  # clients choose the names, so the cache is bounded
            _METHODS[method] = known
    return known


def request(key: bytes, method: str, params: bytes) -> bytes:
    """Return the line of a request. `key` is the id as JSON, `params` is JSON or empty."""
    if params:
        return b"".join(
            (ENVELOPE_START, key, b',"method":', method_json(method), b',"params":', params, b"}\n")
        )
    return b"".join((ENVELOPE_START, key, b',"method":', method_json(method), b"}\n"))


def notification(method: str, params: bytes = b"") -> bytes:
    if params:
        return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (method_json(method), params)
    return b'{"jsonrpc":"2.0","method":%b}\n' % method_json(method)


def result(key: bytes, body: Raw | bytes) -> bytes:
    return b"".join((ENVELOPE_START, key, b',"result":', body, b"}\n"))


def error(key: bytes, body: Raw | bytes) -> bytes:
    """Return the line of an error response. `body` is the whole error object; an empty `key` becomes null."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (key or b"null", body)


def error_body(code: int, message: str, data: object = None) -> bytes:
    body: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return encode_json(body)


RESERVED_PREFIX = "io.modelcontextprotocol/"


def may_have_meta(params: bytes) -> bool:
    """Return False if `params` certainly has no `_meta`, which is nearly always the case."""
    # Escapes can hide it. `find` takes a third of the time of `in`, which first tries to read a number.
    return params.find(b'_meta"') >= 0 or params.find(b"\\u") >= 0


_ENDS = 1 << 20


def may_have_member(params: bytes, name: bytes) -> bool:
    """Return whether the params may have the member `name` (with its quotes).

    Of long params, only the first and the last MiB are searched: the arguments are between them, and each
    search of a MiB takes up to 4 ms.
    """
    if len(params) <= 2 * _ENDS:
        return params.find(name) >= 0
    return params.find(name, 0, _ENDS) >= 0 or params.find(name, -_ENDS) >= 0


def request_with_meta(
    key: bytes, method: str, params: Raw | bytes, ours: bytes, token: bytes = b"", *, plain: bool
) -> bytes:
    """Return the line of a request with `ours` in `params._meta`, as `merge_meta` adds it.

    `token`: the value of the last member of `ours`, if that ends with a colon. `plain`: `may_have_meta` has
    returned False, so the line is joined in one step.
    """
    body = bytes(params)
    if plain and ours and body[:2] == b'{"':
        name, head = _METHODS.get(method) or method_json(method), b',"params":{"_meta":{'
        return b"".join(
            (ENVELOPE_START, key, b',"method":', name, head, ours, token, b"},", body[1:], b"}\n")
        )
    return request(key, method, merge_meta(body, ours + token) if ours or body else b"")


def merge_meta(params: Raw | bytes, ours: bytes) -> bytes:
    """Add members (`"name":value,…` as JSON, possibly empty) to `params._meta`.

    The client's `progressToken` and reserved members are dropped. All other members of `params` and `_meta`
    keep their bytes. Raises BadFrame if `params` is not an object.
    """
    body = bytes(params)
    if not may_have_meta(body) and body[:2] == b'{"':
        return b"".join((b'{"_meta":{', ours, b"},", body[1:])) if ours else body
    if not body or body == b"{}":
        return b'{"_meta":{%b}}' % ours if ours else b"{}"
    outer = members(body)
    given = outer.pop("_meta", None)
    inner = members(given) if given is not None and bytes(given) != b"null" else {}
    kept = {
        name: text
        for name, text in inner.items()
        if name != "progressToken" and not name.startswith(RESERVED_PREFIX)
    }
    if not ours and not kept:
        return join_members(outer)
    meta = join_members(kept, b"{" + ours)
    return join_members(outer, b'{"_meta":' + meta)


def strip_reserved(outer: dict[str, Raw]) -> None:
    """Remove the reserved members of `_meta`. All others stay, such as the trace context."""
    raw = outer.get("_meta")
    if raw is None:
        return
    try:
        meta = {name: value for name, value in members(raw).items() if not name.startswith(RESERVED_PREFIX)}
    except BadFrame:
        del outer["_meta"]
        return
    if meta:
        outer["_meta"] = Raw(msgspec.json.encode(meta))
    else:
        del outer["_meta"]
