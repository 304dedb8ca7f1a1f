"""How a JSON-RPC frame stands in an HTTP response: as its body, as an event, as a refusal with a status."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.api.http_server.http_exchange import HttpExchange
from mcpd.model.errors import McpdError
from mcpd.wire import message as wire

EVENT_STREAM = b"text/event-stream"
EVENT_HEADERS = b"X-Accel-Buffering: no\r\n"
"""Proxies must not keep events back."""
KEEP_ALIVE = b": still at work\n\n"
"""A comment: it keeps whoever is in between from thinking that nobody is there."""
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
STATUS: Mapping[int, int] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}
"""The HTTP status of an error towards modern clients (2026-07-28, Streamable HTTP); else 200."""


def sse_event(frame: bytes) -> bytes:
    """A line break in a frame can only be white space between tokens, and would end the line of the event."""
    frame = frame.rstrip(b"\n")
    if b"\n" in frame or b"\r" in frame:
        frame = frame.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: message\ndata: %b\n\n" % frame


def respond_error(
    exchange: HttpExchange,
    status: int,
    message: str,
    *,
    code: int = INVALID_REQUEST,
    key: bytes = b"null",
    headers: bytes = b"",
) -> None:
    exchange.respond(status, wire.error(key, wire.error_body(code, message)), headers=headers)


def respond_mcpd_error(exchange: HttpExchange, error: McpdError, key: bytes) -> None:
    body = wire.error_body(error.rpc, error.message, error.data())
    exchange.respond(error.http, wire.error(key or b"null", body))
