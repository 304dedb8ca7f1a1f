"""One JSON-RPC line: its envelope read, every member's bytes kept, new envelopes put around them."""

from __future__ import annotations

import msgspec
from msgspec import Raw

ABSENT = Raw(b"")
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
SERVER_ERROR, INTERNAL_ERROR = -32000, -32603
_STARTS_OF_AN_ID = b'"-0123456789'


class Head(msgspec.Struct, gc=False):
    """What routing needs. The rest of the line is checked for syntax and skipped."""

    id: Raw = ABSENT
    method: str = ""


class Message(msgspec.Struct, gc=False):
    """A whole envelope; a member that was not there is ABSENT."""

    id: Raw = ABSENT
    method: str = ""
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


class Error(msgspec.Struct, gc=False):
    """The error of a response."""

    code: int = INTERNAL_ERROR
    message: str = "an error without a message"
    data: Raw = ABSENT


class Malformed(ValueError):
    """A line that is no JSON-RPC message. `answer` is the response that says so."""

    def __init__(self, code: int, words: str, key: bytes = b"null") -> None:
        super().__init__(words)
        self.answer = error(key, code, words)


read_head = msgspec.json.Decoder(Head).decode
"""Reads a line's envelope. Raises one of UNREADABLE."""
_message = msgspec.json.Decoder(Message).decode
_error = msgspec.json.Decoder(Error).decode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_elements = msgspec.json.Decoder(list[Raw]).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def head(line: bytes) -> Head:
    """Raises Malformed."""
    try:
        return read_head(line)
    except UNREADABLE as problem:
        raise malformed(line, problem) from None


def message(line: bytes) -> Message:
    """Raises Malformed."""
    try:
        return _message(line)
    except UNREADABLE as problem:
        raise malformed(line, problem) from None


def batch(line: bytes) -> list[bytes]:
    """The messages of an array (revision 2025-03-26 only). Raises Malformed."""
    try:
        return [bytes(element) for element in _elements(line)]
    except UNREADABLE as problem:
        raise malformed(line, problem) from None


def elements(raw: Raw) -> list[bytes]:
    """An array's elements, each as its bytes; nothing for what is no array."""
    try:
        return [bytes(element) for element in _elements(raw)]
    except UNREADABLE:
        return []


def members(raw: Raw | bytes) -> dict[str, Raw]:
    """One level of an object, each member as its bytes; nothing for what is no object."""
    try:
        return _members(raw)
    except UNREADABLE:
        return {}


def error_of(raw: Raw) -> Error:
    """A response's error, however oddly it was written."""
    try:
        return _error(raw)
    except UNREADABLE:
        return Error()


def is_id(raw: Raw) -> bool:
    """Whether a request may have this id: a string or a number, which can be written back as it is."""
    data = bytes(raw)
    if not data or data[0] not in _STARTS_OF_AN_ID:
        return False
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def request(key: bytes, method: str, params: bytes) -> bytes:
    """A request's line; `params` is JSON, or empty for none."""
    name = msgspec.json.encode(method)
    if params:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}\n' % (key, name, params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b}\n' % (key, name)


def notification(method: str, params: object = None) -> bytes:
    if params is None:
        return b'{"jsonrpc":"2.0","method":%b}\n' % msgspec.json.encode(method)
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}\n' % (
        msgspec.json.encode(method),
        msgspec.json.encode(params),
    )


def result(key: bytes, body: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (key, body)


def error(key: bytes, code: int, words: str, data: object = None) -> bytes:
    body: dict[str, object] = {"code": code, "message": words}
    if data is not None:
        body["data"] = data
    return raw_error(key, msgspec.json.encode(body))


def raw_error(key: bytes, body: bytes) -> bytes:
    """`body` is the whole error object."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (key, body)


def malformed(line: bytes, problem: Exception) -> Malformed:
    """What to answer to a line that could not be read."""
    if isinstance(problem, RecursionError):
        return Malformed(PARSE_ERROR, "this message is nested too deeply to be read")
    if not isinstance(problem, msgspec.ValidationError):
        return Malformed(PARSE_ERROR, f"this line is no JSON: {problem}")
    key = members(line).get("id", ABSENT)
    words = f"this is no JSON-RPC message: {problem}"
    return Malformed(INVALID_REQUEST, words, bytes(key) if is_id(key) else b"null")
