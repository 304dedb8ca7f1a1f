"""JSON-RPC messages in HTTP: media types, SSE events, batches, error bodies and status codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcpd.api.http.exchange import HttpExchange
from mcpd.api.http.parser import Head
from mcpd.calls.client_context import Responder
from mcpd.model.errors import McpdError
from mcpd.wire import message as wire
from mcpd.wire.limits import is_response
from mcpd.wire.message import (
    ABSENT,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    BadFrame,
    Message,
    TooLarge,
)

EVENT_STREAM = b"text/event-stream"
EVENT_HEADERS = b"X-Accel-Buffering: no\r\n"
"""Keeps proxies from buffering events."""
KEEP_ALIVE = b": still at work\n\n"
"""An SSE comment that keeps proxies from closing a silent stream."""
STATUS: Mapping[int, int] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    -32020: 400,
    -32021: 400,
    -32022: 400,
}
"""JSON-RPC code → HTTP status for modern clients; 200 for all others.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports#streamable-http
"""


def accepts_event_stream(head: Head) -> bool:
    return _accepts(head, b"*/*", b"text/*", EVENT_STREAM)


def accepts_messages(head: Head) -> bool:
    """Return whether any form of a response is accepted. MCP says both, and many clients name one of them."""
    return _accepts(head, b"*/*", b"text/*", EVENT_STREAM, b"application/*", b"application/json")


def _accepts(head: Head, *kinds: bytes) -> bool:
    accept = head.headers.get(b"accept", b"").lower() or b"*/*"
    return any(kind in accept for kind in kinds)


def has_json_body(head: Head) -> bool:
    kind = head.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    return kind == b"application/json"


def sse_event(frame: bytes) -> bytes:
    """Return an SSE event. Line breaks in JSON text are insignificant white space, so they become spaces."""
    end = len(frame) - frame.endswith(b"\n")
    if frame.find(b"\n", 0, end) < 0 and frame.find(b"\r", 0, end) < 0:
        return b"".join((b"event: message\ndata: ", memoryview(frame)[:end], b"\n\n"))
    frame = frame.rstrip(b"\n").replace(b"\r", b" ").replace(b"\n", b" ")
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


def refuse_request(exchange: HttpExchange, error: McpdError, key: bytes) -> None:
    body = wire.error_body(error.rpc, error.message, error.data())
    exchange.respond(error.http, wire.error(key or b"null", body))


def end_with_error(exchange: HttpExchange, error: McpdError, key: bytes) -> None:
    """End the event stream of a request."""
    exchange.write(sse_event(wire.error(key, wire.error_body(error.rpc, error.message, error.data()))))
    exchange.end()


MAX_MESSAGES = 100
"""Messages in one batch."""


class BatchReply:
    """The `Responder` of all requests of one batch, whose responses leave together by `reply`."""

    def __init__(self, requests: int, reply: Responder) -> None:
        self._remaining = requests
        self._reply = reply
        self._responses: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self._reply.send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        self._responses.append(frame.rstrip(b"\n"))
        self.drop()

    def drop(self) -> None:
        self._remaining -= 1
        if self._remaining:
            return
        if self._responses:
            self._reply.finish(b"[%b]\n" % b",".join(self._responses))
        else:
            self._reply.drop()


def parse_batch(line: bytes) -> Sequence[Message]:
    """Parse a JSON array of messages. Raises BadFrame if it is invalid, empty or too long.

    The messages are counted before the first one is parsed.
    """
    try:
        parts = wire.split_batch(line, MAX_MESSAGES)
    except TooLarge:
        parts = []
    if not parts:
        raise BadFrame(f"a batch must have 1 to {MAX_MESSAGES} messages")
    return [wire.parse(part) for part in parts]


def is_request(message: Message) -> bool:
    """Return whether a message needs a response."""
    has_id = message.id is not ABSENT and not wire.is_null_notification(message)
    return has_id and not is_response(message)


def count_requests(messages: Sequence[Message]) -> int:
    return sum(map(is_request, messages))


class NullReply:
    """The reply to notifications and responses, and to what mcpd repeats for a client: none."""

    def send(self, frame: bytes) -> None: ...
    def finish(self, frame: bytes, code: int = 0) -> None: ...
    def drop(self) -> None: ...


NULL_REPLY = NullReply()
