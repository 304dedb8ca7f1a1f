"""The MCP endpoints over HTTP: decide the transport and the era of each request, and dispatch it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import trio

from mcpd.api.http.connection import SpawnTask
from mcpd.api.http.exchange import HttpExchange, ServeRequest
from mcpd.api.http.parser import Head
from mcpd.api.mcp import legacy, modern
from mcpd.api.mcp.frames import (
    accepts_event_stream,
    accepts_messages,
    has_json_body,
    is_request,
    parse_batch,
    refuse_request,
    respond_error,
)
from mcpd.api.mcp.legacy import LegacyHttpSession, Principal
from mcpd.api.mcp.scope import EndpointScope
from mcpd.api.mcp.sse import SseSessions
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.io.turns import rest
from mcpd.model.errors import McpdError
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, DECODE_ERRORS, MAX_ID, BadFrame, Message

_MAX_SESSIONS = 8
_LARGE = 1 << 20
"""Bytes of a body that is parsed in a turn of its own."""
_ALLOW = b"Allow: GET, POST, DELETE\r\n"
_ONLY_POST = b"Allow: POST\r\n"


@attrs.define(eq=False)
class McpEndpoint:
    """The state shared by all connections of the daemon to its MCP endpoints."""

    gateway: Gateway
    sessions: legacy.LegacyHttpSessions
    sse_sessions: SseSessions
    is_handed_over: bool = False
    """The port belongs to the next daemon already."""

    def view(self, scope: EndpointScope) -> View:
        """Return the virtual server of a path. Raises UnknownServer or UnknownProfile."""
        return self.gateway.view(scope.server, scope.profile)

    def close(self, reason: str) -> None:
        """End every session."""
        self.sessions.close(reason)
        self.sse_sessions.close(reason)

    def find_session(
        self, head: Head, view: View | None, scope: EndpointScope, principal: Principal
    ) -> LegacyHttpSession | None:
        """Return the legacy session that a request names, if the client may use it here."""
        key = (head.get(legacy.SESSION_HEADER) or "").strip()
        return self.sessions.find(key, view, scope, principal)


class McpHandler:
    """Handles MCP requests of one connection. Modern requests share one session per scope."""

    def __init__(self, endpoint: McpEndpoint, principal: Principal, spawn: SpawnTask) -> None:
        self.endpoint = endpoint
        self.principal = principal
        self.spawn = spawn
        self._sessions: dict[EndpointScope, ClientSession] = {}

    def route(self, scope: EndpointScope, head: Head) -> ServeRequest:
        """Return what serves requests with this head."""
        if scope.is_sse:
            return partial(self._serve_sse, scope)
        if head.method == "POST":
            problem = _wrong_media_type(head)
            return _PostRoute(self, scope, head).serve if problem is None else problem
        if head.method in ("GET", "DELETE"):
            return partial(self._get_or_delete, scope)
        return lambda _, exchange: respond_error(exchange, 405, "send messages with POST", headers=_ALLOW)

    def close(self, reason: str) -> None:
        for session in self._sessions.values():
            session.close(reason)
        self._sessions.clear()

    def modern_session(self, scope: EndpointScope, view: View) -> ClientSession:
        """Return the session for the modern requests of this connection."""
        session = self._sessions.get(scope)
        if session is not None:
            if view is session.view or legacy.same_view(view, session.view):
                return session
            session.close("the server was removed")
        elif len(self._sessions) >= _MAX_SESSIONS:
            self.close("evicted: this connection uses too many endpoints")
        client = scope.identify(self.principal.client)
        session = self.endpoint.gateway.open_session(view, client, _discard, self.spawn)
        self._sessions[scope] = session
        self.principal.connection.session = session
        return session

    def _serve_sse(self, scope: EndpointScope, body: bytes, exchange: HttpExchange) -> None:
        method, sessions = exchange.head.method, self.endpoint.sse_sessions
        if method not in ("GET", "POST"):
            message = "open a stream with GET, and send messages to its endpoint with POST"
            respond_error(exchange, 405, message, headers=b"Allow: GET, POST\r\n")
            return
        try:
            view = self.endpoint.view(scope)
        except McpdError as error:
            refuse_request(exchange, error, b"null")
            return
        if method == "GET":
            sessions.open(exchange, view, scope, self.principal, self.spawn)
        elif len(body) > _LARGE:
            self.spawn(partial(self._receive_large, body, exchange, view, scope))
        else:
            sessions.receive(body, exchange, view, scope, self.principal)

    async def _receive_large(
        self, body: bytes, exchange: HttpExchange, view: View, scope: EndpointScope
    ) -> None:
        await rest()
        self.endpoint.sse_sessions.receive(body, exchange, view, scope, self.principal)

    def _get_or_delete(self, scope: EndpointScope, _: bytes, exchange: HttpExchange) -> None:
        head = exchange.head
        if legacy.SESSION_HEADER not in head.headers:
            respond_error(exchange, 405, "send messages with POST", headers=_ONLY_POST)
            return
        try:
            view: View | None = self.endpoint.view(scope)
        except McpdError:
            view = None
        http = self.endpoint.find_session(head, view, scope, self.principal)
        if http is None:
            legacy.refuse_unknown_session(head, exchange)
        elif head.method == "DELETE":
            self.endpoint.sessions.delete(http, exchange)
        elif not accepts_event_stream(head):
            respond_error(exchange, 406, "Accept must list text/event-stream")
        else:
            legacy.listen(http, head, exchange)


class _PostRoute:
    """Serves the POST requests of a connection that have the same head, so that it is interpreted once."""

    def __init__(self, handler: McpHandler, scope: EndpointScope, head: Head) -> None:
        self._handler = handler
        self._endpoint = handler.endpoint
        self._scope = scope
        self._head = head
        version = head.headers.get(b"mcp-protocol-version")
        self._is_modern = version in modern.VERSION_HEADERS
        self._unknown_version = (
            None if version is None or version in legacy.VERSION_HEADERS else version.decode("latin-1")[:40]
        )
        self._names_session = legacy.SESSION_HEADER in head.headers
        self._check = modern.HeaderCheck(head)
        self._view: View | None = None
        """What the path meant when it was last looked up."""
        self._http: LegacyHttpSession | None = None
        """The session as last found, for `_view`."""

    def serve(self, body: bytes, exchange: HttpExchange) -> None:
        """See `ServeRequest`."""
        if len(body) > _LARGE:
            self._handler.spawn(partial(self._serve_large, body, exchange))
        elif (parsed := self._parse(body, exchange)) is not None:
            self._handle(*parsed, exchange)

    async def _serve_large(self, body: bytes, exchange: HttpExchange) -> None:
        """Let others have their turn between looking at the message and handling it."""
        await rest()
        parsed = self._parse(body, exchange)
        del body
        await rest()
        if parsed is not None:
            self._handle(*parsed, exchange)

    def _handle(self, view: View, message: Message, exchange: HttpExchange) -> None:
        if self._is_modern and message.method and message.id is not ABSENT:  # the usual case
            session = self._handler.modern_session(self._scope, view)
            modern.handle_request(message, exchange, session, self._check)
        else:
            self._receive(view, message, exchange)

    def _parse(self, body: bytes, exchange: HttpExchange) -> tuple[View, Message] | None:
        """Return the message, and what it is for; None for a batch, which is handled, and after an error."""
        try:
            view = self._current_view()
            if body[:1] == b"{" and body.isascii() and len(body) <= MAX_ID:  # see `decode_envelope`
                try:
                    return view, wire.decode_envelope(body)
                except DECODE_ERRORS:
                    pass  # `parse` repairs it, or says what is wrong
            if body.lstrip(b" \t\r\n")[:1] == b"[":
                self._receive_batch(view, parse_batch(body), exchange)
                return None
            return view, wire.parse(body)
        except McpdError as error:
            refuse_request(exchange, error, b"null")
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=error.code)
        return None

    def _receive(self, view: View, message: Message, exchange: HttpExchange) -> None:
        if self._is_modern or modern.is_modern_request(message):
            self._receive_modern(view, message, exchange)
        elif legacy.is_initialize(message):
            sessions = self._endpoint.sessions
            sessions.open(message, exchange, view, self._scope, self._handler.principal)
        elif (http := self._find_session(view)) is not None and self._unknown_version is None:
            legacy.receive(http, message, exchange)
        elif http is None and self._unknown_version is not None and is_request(message):
            # Without a session, the modern rules apply: they define the error.
            self._receive_modern(view, message, exchange)
        else:
            self._refuse_without_session(message.key or b"null", exchange)

    def _receive_batch(self, view: View, messages: Sequence[Message], exchange: HttpExchange) -> None:
        http = self._find_session(view)
        if http is not None and self._unknown_version is None:
            legacy.receive_batch(http, messages, exchange)
        else:
            self._refuse_without_session(b"null", exchange)

    def _receive_modern(self, view: View, message: Message, exchange: HttpExchange) -> None:
        if message.id is ABSENT and message.method:
            exchange.respond(202)  # this revision has no client notifications over HTTP
        elif not message.method:
            respond_error(exchange, 400, "in this revision clients send only requests", key=message.key)
        else:
            session = self._handler.modern_session(self._scope, view)
            modern.handle_request(message, exchange, session, self._check)

    def _current_view(self) -> View:
        """Return the view of the path. Raises UnknownServer or UnknownProfile."""
        view = self._view
        if view is None or (server := view.single) is None or server.is_closed:
            view = self._endpoint.view(self._scope)
            if view is not self._view:
                self._view, self._http = view, None
        return view

    def _find_session(self, view: View) -> LegacyHttpSession | None:
        http = self._http
        if http is not None and not http.session.is_closed:
            http.used_at = trio.current_time()
        elif self._names_session:
            principal = self._handler.principal
            http = self._http = self._endpoint.find_session(self._head, view, self._scope, principal)
        return http

    def _refuse_without_session(self, key: bytes, exchange: HttpExchange) -> None:
        status = 400
        if self._unknown_version is not None:
            text = f"MCP-Protocol-Version {self._unknown_version!r} is not supported"
        elif not self._names_session:
            text = "missing Mcp-Session-Id: send initialize first, or the protocol version in `_meta`"
        else:
            status, text = 404, "unknown or expired session: send initialize again"
        respond_error(exchange, status, text, key=key)


def _wrong_media_type(head: Head) -> ServeRequest | None:
    """Return what refuses the request if its Content-Type or Accept is wrong."""
    if not has_json_body(head):
        return lambda _, exchange: respond_error(exchange, 415, "Content-Type must be application/json")
    if not accepts_messages(head):
        text = "Accept must list application/json and text/event-stream"
        return lambda _, exchange: respond_error(exchange, 406, text)
    return None


def _discard(_: bytes) -> None:
    """Discard a message. Modern clients receive unrelated messages only by subscriptions/listen."""
