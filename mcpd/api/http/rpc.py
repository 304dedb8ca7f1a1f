"""The control API over HTTP: requests on the Unix socket, and a WebSocket for other machines."""

from __future__ import annotations

from functools import partial

from mcpd.api.control.access import ADMINISTRATOR
from mcpd.api.control.requests import ControlRequests
from mcpd.api.http.connection import SpawnTask
from mcpd.api.http.exchange import TEXT, HttpExchange
from mcpd.api.http.parser import Head
from mcpd.api.mcp.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    KEEP_ALIVE,
    is_request,
    respond_error,
    sse_event,
)
from mcpd.api.websocket import ControlSocket, offered_protocols
from mcpd.gateway.gateway import Gateway
from mcpd.state.clients import ClientConnection
from mcpd.wire import message as wire
from mcpd.wire.message import METHOD_NOT_FOUND, PARSE_ERROR, BadFrame

_OF_A_CONNECTION = ("mcpd/attach", "mcpd/identify")
"""Methods that change the requests that follow on their connection. HTTP requests are independent."""
_MAX_SOCKETS = 64


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
    """The control API for other machines, which use mcpd's own token."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sockets: set[ControlSocket] = set()

    def open(self, head: Head, client: ClientConnection, exchange: HttpExchange) -> None:
        """Answer an admitted request. A browser may not even try."""
        if ADMINISTRATOR.protocol not in offered_protocols(head) or b"origin" in head.headers:
            exchange.respond(426, b"this address is for mcpctl --url\n", TEXT, b"Upgrade: websocket\r\n")
        elif len(self._sockets) >= _MAX_SOCKETS:
            exchange.respond(503, b"too many other machines control mcpd now\n", TEXT)
        else:
            client.set_identity("mcpctl --url", None)
            client.via = "http"
            socket = ControlSocket(self._gateway, client, ADMINISTRATOR)
            self._sockets.add(socket)
            exchange.on_hang_up = lambda _: self._sockets.discard(socket)
            exchange.upgrade(partial(socket.run, head))

    def close(self, reason: str) -> None:
        for socket in self._sockets:
            socket.close(reason)
