"""The control API over HTTP: requests on the Unix socket, and a WebSocket for other machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from mcpd.api.control.access import ADMINISTRATOR, PERSON
from mcpd.api.control.requests import ControlRequests
from mcpd.api.http.connection import SpawnTask
from mcpd.api.http.exchange import TEXT, HttpExchange
from mcpd.api.http.parser import BadRequest, Head
from mcpd.api.mcp.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    KEEP_ALIVE,
    is_request,
    respond_error,
    sse_event,
)
from mcpd.api.mcp.legacy import Principal
from mcpd.api.socket_connection import RemotePerson
from mcpd.api.websocket import ControlSocket, offered_protocols
from mcpd.gateway.gateway import Gateway
from mcpd.model.errors import UnknownProfile
from mcpd.state.clients import ClientConnection
from mcpd.wire import message as wire
from mcpd.wire.message import METHOD_NOT_FOUND, PARSE_ERROR, BadFrame

if TYPE_CHECKING:
    from mcpd.api.http.access_tokens import Person
    from mcpd.api.http.network_guard import NetworkGuard

_OF_A_CONNECTION = ("mcpd/attach", "mcpd/identify")
"""Methods that change the requests that follow on their connection. HTTP requests are independent."""
_MAX_SOCKETS_OF_ONE, _MAX_SOCKETS = 16, 64


class HttpRpc:
    """Handles `/rpc` on one HTTP connection, one request at a time. Implements `ControlResponder`."""

    def __init__(self, gateway: Gateway, client: ClientConnection, pid: int, spawn: SpawnTask) -> None:
        self._exchange: HttpExchange
        self._requests = ControlRequests(
            gateway, self, client, pid, lambda work, _: spawn(work), lambda view, identity: None
        )

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        """See `ServeRequest`."""
        if head.method != "POST":
            respond_error(exchange, 405, "send a POST request", headers=b"Allow: POST\r\n")
            return
        try:
            # Arguments are forwarded as they are, and servers read lines.
            message = wire.parse(body.replace(b"\r", b" ").replace(b"\n", b" "))
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        if not message.method or not is_request(message):
            respond_error(exchange, 400, "a request must have an `id` and a `method`", key=message.key)
        elif not message.method.startswith(("mcpd/", "rpc.")) or message.method in _OF_A_CONNECTION:
            text = "/rpc serves the control API, one request at a time; MCP is served at /mcp"
            respond_error(exchange, 404, text, code=METHOD_NOT_FOUND, key=message.key)
        else:
            self._exchange = exchange
            exchange.on_quiet = lambda: self._write(KEEP_ALIVE)
            self._requests.receive(message)

    def close(self, reason: str) -> None:
        """The HTTP client has left: cancel the request in progress."""
        self._requests.cancel_all(reason)
        del self._requests  # it refers back; without the cycle the connection is freed immediately

    def send(self, frame: bytes) -> None:
        """Send an event. A response that has events, or takes long, is an event stream."""
        self._write(sse_event(frame))

    def finish(self, frame: bytes, code: int = 0) -> None:
        if self._exchange.is_streaming:
            self._exchange.write(sse_event(frame))
            self._exchange.end()
        else:
            self._exchange.respond(200, frame.rstrip(b"\n"))

    def drop(self) -> None:
        """No-op: HTTP clients cancel by disconnecting."""

    async def wait_drained(self) -> None:
        """No-op: the HTTP connection ends if its client is too slow."""

    def _write(self, data: bytes) -> None:
        self._exchange.stream(EVENT_STREAM, EVENT_HEADERS)  # no-op if it was started already
        self._exchange.write(data)


class RemoteControl:
    """The control API for other machines."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sockets: dict[ControlSocket, str] = {}
        """Socket → whose it is."""

    def serve(
        self,
        guard: NetworkGuard,
        client: ClientConnection,
        principal_of: Callable[[Person], Principal],
        _: bytes,
        exchange: HttpExchange,
    ) -> None:
        """Answer an admitted request of a person, or of `client`, which has mcpd's own token."""
        try:
            person = guard.person(exchange.head)
            profiles = () if person is None else guard.profiles_of(person)
            view = self._gateway.profile_view(profiles[0]) if profiles else None
        except (BadRequest, UnknownProfile) as error:
            status, headers = (error.status, error.headers) if isinstance(error, BadRequest) else (403, b"")
            exchange.respond(status, f"{error.message}\n".encode(), TEXT, headers)
            return
        if person is None:
            client.set_identity("mcpctl --url", None)
            self._open(exchange, client)
        elif view is None:
            text = f"{exchange.head.path} is not for {person.name}: see `settings.http.profiles`\n"
            exchange.respond(403, text.encode(), TEXT)
        else:
            principal = principal_of(person)
            identity = msgspec.structs.replace(principal.client, name="mcpctl")
            self._open(exchange, principal.connection, RemotePerson(identity, view, person.expires))

    def _open(
        self, exchange: HttpExchange, client: ClientConnection, person: RemotePerson | None = None
    ) -> None:
        head, access = exchange.head, ADMINISTRATOR if person is None else PERSON
        owner = "" if person is None else person.identity.person_id
        count = list(self._sockets.values()).count(owner)
        if access.protocol not in offered_protocols(head) or b"origin" in head.headers:  # a browser sends it
            exchange.respond(426, b"this address is for mcpctl --url\n", TEXT, b"Upgrade: websocket\r\n")
        elif count >= _MAX_SOCKETS_OF_ONE or (owner and len(self._sockets) >= _MAX_SOCKETS):
            exchange.respond(503, b"too many commands run at the same time; try again\n", TEXT)
        else:
            client.via = "http"
            socket = ControlSocket(self._gateway, client, access, person)
            self._sockets[socket] = owner
            exchange.on_hang_up = lambda _: self._sockets.__delitem__(socket)
            exchange.upgrade(partial(socket.run, head))

    def close(self, reason: str) -> None:
        for socket in self._sockets:
            socket.close(reason)
