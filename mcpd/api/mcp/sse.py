"""HTTP+SSE, the HTTP transport of revision 2024-11-05: a stream for one direction, POST for the other.

https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs

from mcpd.api.http.connection import SpawnTask
from mcpd.api.http.exchange import HttpExchange
from mcpd.api.mcp.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    KEEP_ALIVE,
    BatchReply,
    accepts_event_stream,
    count_requests,
    has_json_body,
    parse_batch,
    respond_error,
    sse_event,
)
from mcpd.api.mcp.legacy import Principal, same_view
from mcpd.api.mcp.scope import EndpointScope
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

MAX_SESSIONS = 128
"""Open streams, each of which is a session."""
_SESSION = "session"
"""The query parameter that names the session in its message endpoint."""


class SseSession:
    """The session of one client, which lasts as long as its stream.

    It is the `Responder` of all its requests: every message of the server goes to the stream.
    """

    def __init__(self, exchange: HttpExchange, scope: EndpointScope, principal: str) -> None:
        self.scope = scope
        self.principal = principal
        """The identity that opened the stream; the session id alone does not grant access."""
        self.session: ClientSession
        self._exchange = exchange

    def send(self, frame: bytes) -> None:
        self._exchange.write(sse_event(frame))

    def finish(self, frame: bytes, code: int = 0) -> None:
        self.send(frame)

    def drop(self) -> None:
        """No-op: a cancelled request gets no response on this transport."""

    def close(self, reason: str) -> None:
        self.session.close(reason)
        self._exchange.end()


class SseSessions:
    """All sessions, by session id."""

    def __init__(self, gateway: Gateway, owner: str = "") -> None:
        """`owner`: see `Replica`."""
        self._gateway = gateway
        self._owner = owner
        self._sessions: dict[str, SseSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        exchange: HttpExchange,
        view: View,
        scope: EndpointScope,
        principal: Principal,
        spawn: SpawnTask,
    ) -> None:
        """Handle GET: open a session, and name its message endpoint. `spawn` runs tasks that end with the
        connection.
        """
        if not accepts_event_stream(exchange.head):
            respond_error(exchange, 406, "Accept must list text/event-stream")
            return
        if len(self._sessions) >= MAX_SESSIONS:
            respond_error(exchange, 503, f"{MAX_SESSIONS} HTTP+SSE sessions are open; close one")
            return
        key = self._owner + secrets.token_urlsafe(24)
        made = self._sessions[key] = SseSession(exchange, scope, principal.name)
        made.session = self._gateway.open_session(view, scope.identify(principal.client), made.send, spawn)
        principal.connection.session = made.session
        exchange.on_hang_up = lambda reason: self._end(key, reason)
        exchange.on_quiet = lambda: exchange.write(KEEP_ALIVE)
        exchange.stream(EVENT_STREAM, EVENT_HEADERS)
        surface = f"surface={scope.surface}&" if scope.surface else ""  # it is part of the address
        endpoint = f"{exchange.head.path}?{surface}{_SESSION}={key}"
        exchange.write(b"event: endpoint\ndata: %b\n\n" % endpoint.encode("latin-1"))

    def receive(
        self, body: bytes, exchange: HttpExchange, view: View, scope: EndpointScope, principal: Principal
    ) -> None:
        """Handle POST: one message, or a batch. The responses go to the session's stream."""
        if not has_json_body(exchange.head):
            respond_error(exchange, 415, "Content-Type must be application/json")
            return
        key = parse_qs(exchange.head.query).get(_SESSION, [""])[0]
        found = self._sessions.get(key)
        if found is None or found.scope != scope or found.principal != principal.name:
            message = "unknown or ended session: open a stream with GET, which names the message endpoint"
            respond_error(exchange, 404, message)
            return
        if not same_view(view, found.session.view):
            self._end(key, "the server was removed")
            respond_error(exchange, 404, "the session has ended: the server was removed")
            return
        session = found.session
        try:
            is_batch = session.accepts_batches and body.lstrip(b" \t\r\n")[:1] == b"["
            messages: Sequence[Message] = parse_batch(body) if is_batch else [wire.parse(body)]
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=error.code)
            return
        if any(not each.method and each.id is ABSENT for each in messages):
            respond_error(exchange, 400, "not a request, notification or response")
            return
        exchange.respond(202)
        reply = BatchReply(count_requests(messages), found) if is_batch else found
        for each in messages:
            session.receive(each, reply)

    def close(self, reason: str) -> None:
        """End all sessions."""
        for key in list(self._sessions):
            self._end(key, reason)

    def _end(self, key: str, reason: str) -> None:
        found = self._sessions.pop(key, None)
        if found is not None:
            found.close(reason)
