"""Error responses that the bridge sends in the daemon's place, with the daemon's codes and members."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcpd.model.text import shorten
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT


class ErrorObject(msgspec.Struct, gc=False):
    code: int = wire.INTERNAL_ERROR
    message: str = "an error without a message"
    data: Raw = ABSENT


_ID_STARTS = b'"-0123456789'
_decode_error = msgspec.json.Decoder(ErrorObject).decode


def parse_error(raw: Raw) -> ErrorObject:
    """Read the error of a response. An unreadable one becomes an internal error; never raises."""
    try:
        return _decode_error(raw)
    except wire.DECODE_ERRORS:
        return ErrorObject()


def is_valid_id(raw: Raw) -> bool:
    """Return whether a request may have this id: a string or a number in valid UTF-8."""
    data = bytes(raw)
    if not data or data[0] not in _ID_STARTS:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def unreadable_line(line: bytes, problem: Exception) -> bytes:
    """Answer a line that `wire.decode_envelope` or `wire.split_batch` could not read."""
    if isinstance(problem, RecursionError):
        return error(b"null", wire.PARSE_ERROR, "this message is nested too deeply")
    if line.lower().startswith(b"content-length:"):
        text = "MCP over stdio has one JSON message per line, and no `Content-Length` headers as in LSP"
        return error(b"null", wire.PARSE_ERROR, text)
    if isinstance(problem, wire.LongId):
        return error(b"null", problem.code, f"this is not a JSON-RPC message: {problem}")
    if not isinstance(problem, msgspec.ValidationError):
        return error(b"null", wire.PARSE_ERROR, f"this line is not valid JSON: {problem}")
    key = wire.members_or_empty(line).get("id", ABSENT)
    message = f"this is not a JSON-RPC message: {problem}"
    return error(bytes(key) if is_valid_id(key) else b"null", wire.INVALID_REQUEST, message)


def daemon_unreachable(key: bytes, method: str, reason: ErrorObject | str) -> bytes:
    """Answer a request that was not sent. An ErrorObject is the daemon's own refusal and is passed on."""
    if isinstance(reason, str):
        message = f"{reason}; {shorten(method, 100)} was not sent and did not run: try again"
        return _error(key, message, "daemon_unreachable", 3, may_have_run=False)
    members = {**wire.members_or_empty(reason.data), "may_have_run": Raw(b"false")}
    return error(key, reason.code, reason.message, members)


def connection_lost(key: bytes, method: str, reason: str) -> bytes:
    """Answer a request that was sent before the connection to the daemon broke."""
    message = (
        f"{reason} while {shorten(method, 100)} was in progress; it may have run, so it was not sent again: "
        "check its effect before you repeat it"
    )
    return _error(key, message, "link_lost", 6, may_have_run=True)


def response_timeout(key: bytes, method: str) -> bytes:
    message = f"mcpd did not answer {shorten(method, 100)} in time"
    return _error(key, message, "timeout", 7, may_have_run=True)


def too_many_requests(key: bytes, method: str) -> bytes:
    message = f"too many requests are open: {shorten(method, 100)} was not sent and did not run"
    return _error(key, message, "overloaded", 6, may_have_run=False)


def not_an_mcp_method(key: bytes, method: str) -> bytes:
    message = f"{shorten(method, 100)}: the bridge passes MCP only; use mcpctl for the control API"
    return error(key, wire.METHOD_NOT_FOUND, message)


def error(key: bytes, code: int, message: str, data: object = None) -> bytes:
    return wire.error(key, wire.error_body(code, message, data))


def _error(key: bytes, message: str, code: str, exit_code: int, *, may_have_run: bool) -> bytes:
    facts = {"code": code, "exit": exit_code, "may_have_run": may_have_run, "retryable": True}
    return error(key, wire.SERVER_ERROR, message, facts)
