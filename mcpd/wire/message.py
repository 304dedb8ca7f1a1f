"""One JSON-RPC message: read the envelope, keep every member's bytes, splice new envelopes around them.

Nothing here rebuilds what somebody else wrote. `parse` decodes only the envelope, each member stays
the bytes it came as; `request`, `result`, `error` and `notification` put bytes into a new envelope.
"""

from __future__ import annotations

import re
from itertools import accumulate

import msgspec
from msgspec import Raw

from mcpd.model.text import shorten
from mcpd.support.json_repair import repair_json

ABSENT = Raw(b"")
MAX_DEPTH = 1000
"""Deeper documents are not opened: schema validators recurse on the C stack."""


class BadFrame(ValueError):
    """Bytes that are no JSON-RPC message."""


class Message(msgspec.Struct, gc=False):
    """An envelope. A member that was not there is ABSENT; `id` keeps its exact JSON spelling."""

    id: Raw = ABSENT
    method: str = ""
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT

    @property
    def key(self) -> bytes:
        """The id's bytes: `1`, `1.0` and `"1"` are three different keys."""
        return bytes(self.id)


_decode = msgspec.json.Decoder(Message).decode
_decode_batch = msgspec.json.Decoder(list[Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def parse(line: bytes) -> Message:
    """Read one message. Raises BadFrame for anything that is not a JSON object of the right types.

    Bytes change in two cases only, each time to U+FFFD: what is no UTF-8, and half a surrogate pair
    (`"\\ud83d"`, which Node writes for a cut emoji). Neither could be read by everybody further on.
    """
    try:
        if not line.isascii():
            line.decode()  # Raw members are not checked for UTF-8
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        sound = repair_json(line)
        if sound != line:
            return parse(sound)
        raise BadFrame(f"{error}: {shorten(line)}") from None


_VERSION = rb'\s*"jsonrpc"\s*:\s*"2.0"\s*'
_ID = rb'\s*"id"\s*:\s*([0-9]{1,20})\s*'
_BODY = rb'\s*"(?:result|error)"\s*:'
_ID_FIRST = re.compile(rb"\s*\{(?:%b,)?%b,(?:%b,)?%b" % (_VERSION, _ID, _VERSION, _BODY))
_BODY_FIRST = re.compile(rb"\s*\{(?:%b,)?%b" % (_VERSION, _BODY))
_ID_LAST = re.compile(rb",%b(?:,%b)?\}\s*$" % (_ID, _VERSION))


def method_of(line: bytes) -> str:
    """What a message calls; nothing when it is a response, or none."""
    try:
        return parse(line).method
    except BadFrame:
        return ""


def guess_response_id(line: bytes) -> bytes:
    """The id of the request that a line, too broken for `parse`, seems to answer; empty for none.

    For telling whoever waits that the answer cannot be read, and for nothing else.
    """
    found = _ID_FIRST.match(line[:200])
    if found is None and _BODY_FIRST.match(line[:200]):
        found = _ID_LAST.search(line[-200:])
    return b"" if found is None else found[1]


_LOOSE_NUMBER = re.compile(rb'"([0-9]{1,20})"|([0-9]{1,20})\.0+')


def normalize_id(key: bytes) -> bytes:
    """The number that an id stands for which was sent as one and came back as `"7"` or `7.0`; else the id.

    For ids of our own only: they are all integers, so nothing else can be meant.
    """
    loose = _LOOSE_NUMBER.fullmatch(key)
    return key if loose is None else loose[1] or loose[2]


def split_batch(line: bytes) -> list[bytes]:
    """The messages of a batch array (revision 2025-03-26 only). Raises BadFrame."""
    try:
        return [bytes(part) for part in _decode_batch(line)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFrame(f"{error}: {shorten(line)}") from None


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """Open one level: an object's members, each as its own bytes. Raises BadFrame."""
    try:
        return _decode_members(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadFrame(f"not an object: {error}: {shorten(bytes(raw))}") from None


def value(raw: Raw | bytes) -> object:
    """Decode the whole document. Raises BadFrame, also for one nested deeper than MAX_DEPTH."""
    try:
        data = bytes(raw)
        if depth(data) > MAX_DEPTH:
            raise BadFrame(f"nested deeper than {MAX_DEPTH}")
        try:
            decoded: object = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            sound = repair_json(data)
            if sound == data:
                raise
            decoded = msgspec.json.decode(sound)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"{error}: {shorten(bytes(raw))}") from None
    return decoded


def mapping(raw: Raw | None) -> dict[str, object]:
    """The whole object; empty where there is none, or something else. Raises BadFrame as `value`."""
    decoded = {} if raw is None else value(raw)
    return decoded if isinstance(decoded, dict) else {}


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord(b"["): 1, ord(b"{"): 1, ord(b"]"): -1, ord(b"}"): -1}


def depth(data: bytes) -> int:
    """How deep a JSON document nests, or an upper bound of it where that is MAX_DEPTH or less."""
    opened = data.count(b"[") + data.count(b"{")  # it nests no deeper, which is enough for nearly all
    if opened <= MAX_DEPTH:
        return opened
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)


ENVELOPE_START = b'{"jsonrpc":"2.0","id":'
"""How every request and every response of ours begins."""
_METHODS: dict[str, bytes] = {}


def method_json(method: str) -> bytes:
    """A method's name as JSON."""
    known = _METHODS.get(method)
    if known is None:
        known = msgspec.json.encode(method)
        if len(_METHODS) < 100:  # methods come from clients: the table must not grow with their fancy
            _METHODS[method] = known
    return known


def request(key: bytes, method: str, params: bytes) -> bytes:
    """A request line; `key` is the id as JSON, `params` JSON or empty for none."""
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
    """`body` is the whole error object."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (key or b"null", body)


def error_body(code: int, message: str, data: object = None) -> bytes:
    body: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    return msgspec.json.encode(body)
