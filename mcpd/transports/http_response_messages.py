"""Extracting JSON-RPC messages and session ids from HTTP responses."""

from __future__ import annotations

import httpx
from msgspec import Raw

from mcpd.transports.http_client import bodies
from mcpd.wire import message as wire
from mcpd.wire.event_stream import SseDecoder
from mcpd.wire.message import BadFrame, Message

EVENT_STREAM, JSON = "text/event-stream", "application/json"

_MAX_SESSION_ID = 1024


def complete_messages(response: httpx.Response, key: bytes, limit: int) -> list[bytes]:
    """Return the messages of a successful response that has arrived completely, ending with that for `key`.

    Returns an empty list if the response must be read asynchronously: it is not a success, incomplete,
    compressed, longer than `limit`, of another type, or a stream that does not end with the response.
    """
    whole = bodies.complete_body(response) if response.status_code == httpx.codes.OK else None
    if whole is None or len(whole) > limit:
        return []
    kind = bodies.content_type(response)
    if kind != EVENT_STREAM:
        return [whole] if kind == JSON else []
    messages = [event.data for event in SseDecoder(limit).feed(whole) if event.event == "message"]
    try:
        answer = wire.parse(messages[-1]) if messages else Message()
    except BadFrame:
        return []
    is_answer = not answer.method and wire.normalize_id(bytes(answer.id)) == key
    return [message for message in messages if message] if is_answer else []


def json_rpc_error(body: bytes, key: bytes) -> Message | None:
    """Return the JSON-RPC error in a body, if it is for `key` or has no id."""
    try:
        message = wire.parse(body)
    except BadFrame:
        return None
    if not bytes(message.error).lstrip().startswith(b"{") or message.method:
        return None
    if wire.normalize_id(bytes(message.id)) not in (b"", b"null", key):
        return None
    return Message(error=Raw(bodies.to_one_line(bytes(message.error))))


def session_id(response: httpx.Response, header: str) -> str:
    """Return the session id in a response; empty if there is none that could be sent back."""
    named: str = response.headers.get(header, "")
    usable = len(named) <= _MAX_SESSION_ID and all("!" <= char <= "~" for char in named)
    return named if usable else ""
