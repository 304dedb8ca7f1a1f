"""The MCP endpoint over Streamable HTTP: decides the era of each request and dispatches it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mcpd.api.http_server.connection import SpawnTask
from mcpd.api.http_server.http_exchange import HttpExchange
from mcpd.api.http_server.parser import Head
from mcpd.api.json_rpc_batch import parse_batch
from mcpd.api.mcp_endpoint import legacy, modern
from mcpd.api.mcp_endpoint.frames import refuse_request, respond_error
from mcpd.api.mcp_endpoint.legacy import Principal
from mcpd.gateway.client_session import ClientSession
from mcpd.gateway.client_view import View
from mcpd.gateway.gateway import Gateway
from mcpd.model.errors import McpdError
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, PARSE_ERROR, BadFrame, Message

_MAX_SESSIONS = 8
_ALLOW = b"Allow: GET, POST, DELETE\r\n"
_ONLY_POST = b"Allow: POST\r\n"


@attrs.frozen
class EndpointScope:
    """The servers behind an endpoint path: one server, or the servers of a profile as one."""

    server: str | None = None
    profile: str | None = None


@attrs.define(eq=False)
class McpEndpoint:
    """The state shared by all connections of the daemon to its MCP endpoints."""

    gateway: Gateway
    sessions: legacy.LegacyHttpSessions
    parameter_headers: modern.ParameterHeaderCheck = attrs.field(factory=modern.ParameterHeaderCheck)

    def view(self, place: EndpointScope) -> View:
        """Return the virtual server of a path. Raises UnknownServer or UnknownProfile."""
        return self.gateway.view(place.server, place.profile)


class McpHandler:
    """Handles MCP requests of one connection. Modern requests share one session per scope."""

    def __init__(self, endpoint: McpEndpoint, principal: Principal, spawn: SpawnTask) -> None:
        self._endpoint = endpoint
        self._principal = principal
        self._spawn = spawn
        self._sessions: dict[EndpointScope, ClientSession] = {}

    def handle(self, scope: EndpointScope, head: Head, body: bytes, exchange: HttpExchange) -> None:
        method = head.method
        if method == "POST":
            self._post(scope, head, body, exchange)
        elif method in ("GET", "DELETE"):
            self._get_or_delete(scope, head, exchange)
        else:
            respond_error(exchange, 405, "send messages with POST", headers=_ALLOW)

    def close(self, reason: str) -> None:
        for session in self._sessions.values():
            session.close(reason)
        self._sessions.clear()

    def _post(self, scope: EndpointScope, head: Head, body: bytes, exchange: HttpExchange) -> None:
        if not _check_media_types(head, exchange):
            return
        try:
            view = self._endpoint.view(scope)
        except McpdError as error:
            refuse_request(exchange, error, b"null")
            return
        version = head.headers.get(b"mcp-protocol-version")
        is_batch = body.lstrip(b" \t\r\n")[:1] == b"["
        try:
            messages: Sequence[Message]
            if is_batch:
                messages = parse_batch(body)
            else:
                message = wire.parse(body)
                messages = [message]
                if version in modern.VERSION_HEADERS or modern.is_modern_request(message):
                    self._modern(scope, view, head, message, exchange)
                    return
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        self._legacy(scope, view, head, messages, exchange, batch=is_batch)

    def _modern(
        self, scope: EndpointScope, view: View, head: Head, message: Message, exchange: HttpExchange
    ) -> None:
        if message.id is ABSENT and message.method:
            exchange.respond(202)  # this revision has no client notifications over HTTP
        elif not message.method:
            respond_error(exchange, 400, "in this revision clients send only requests", key=message.key)
        else:
            modern.handle_request(
                head, message, exchange, self._modern_session(scope, view), self._endpoint.parameter_headers
            )

    def _modern_session(self, scope: EndpointScope, view: View) -> ClientSession:
        session = self._sessions.get(scope)
        if session is not None:
            if legacy.same_view(view, session.view):
                return session
            session.close("the server was removed")
        elif len(self._sessions) >= _MAX_SESSIONS:
            self.close("evicted: this connection uses too many endpoints")
        session = self._endpoint.gateway.open_session(view, self._principal.client, _discard, self._spawn)
        self._sessions[scope] = session
        self._principal.connection.session = session
        return session

    def _legacy(
        self,
        scope: EndpointScope,
        view: View,
        head: Head,
        messages: Sequence[Message],
        exchange: HttpExchange,
        *,
        batch: bool,
    ) -> None:
        sessions = self._endpoint.sessions
        version = head.headers.get(b"mcp-protocol-version")
        scope_key = str(scope)
        if not batch and legacy.is_initialize(messages[0]):
            sessions.open(messages[0], exchange, view, scope_key, self._principal)
            return
        key = b"null" if batch else messages[0].key or b"null"
        named = legacy.SESSION_HEADER in head.headers
        http = sessions.find(head, view, scope_key, self._principal.name) if named else None
        if version is not None and version not in legacy.VERSION_HEADERS:
            if http is None and not batch and messages[0].method and messages[0].id is not ABSENT:
                # Without a session, the modern rules apply: they define the error.
                self._modern(scope, view, head, messages[0], exchange)
                return
            message = f"MCP-Protocol-Version {version.decode('latin-1')[:40]!r} is not supported"
            respond_error(exchange, 400, message, key=key)
        elif not named:
            message = "missing Mcp-Session-Id: send initialize first, or the protocol version in `_meta`"
            respond_error(exchange, 400, message, key=key)
        elif http is None:
            respond_error(exchange, 404, "unknown or expired session: send initialize again", key=key)
        elif any(not message.method and message.id is ABSENT for message in messages):
            respond_error(exchange, 400, "not a request, notification or response", key=key)
        else:
            legacy.receive(http, messages, exchange, batch=batch)

    def _get_or_delete(self, scope: EndpointScope, head: Head, exchange: HttpExchange) -> None:
        if legacy.SESSION_HEADER not in head.headers:
            respond_error(exchange, 405, "send messages with POST", headers=_ONLY_POST)
            return
        try:
            view: View | None = self._endpoint.view(scope)
        except McpdError:
            view = None
        sessions = self._endpoint.sessions
        http = sessions.find(head, view, str(scope), self._principal.name)
        if http is None:
            respond_error(exchange, 404, "unknown or expired session: send initialize again")
        elif head.method == "DELETE":
            sessions.delete(http, exchange)
        elif not legacy.accepts_event_stream(head):
            respond_error(exchange, 406, "Accept must list text/event-stream")
        else:
            legacy.listen(http, head, exchange)


def _check_media_types(head: Head, exchange: HttpExchange) -> bool:
    """Check Content-Type and Accept; respond with an error and return False if they are wrong."""
    kind = head.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        respond_error(exchange, 415, "Content-Type must be application/json")
        return False
    accept = head.headers.get(b"accept", b"*/*").lower()
    if b"*/*" not in accept and not (b"application/json" in accept and b"text/event-stream" in accept):
        respond_error(exchange, 406, "Accept must list application/json and text/event-stream")
        return False
    return True


def _discard(_: bytes) -> None:
    """Discard a message. Modern clients receive unrelated messages only by subscriptions/listen."""
