"""`POST /rpc`: the control API over HTTP, for curl. The request body is one JSON-RPC request.

All methods work, streaming ones included. Served on the Unix socket only: a client that can change the set of
servers can start any program.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from mcpd.api.control_requests import ControlRequests
from mcpd.api.http_server.connection import SpawnTask
from mcpd.api.http_server.http_exchange import HttpExchange
from mcpd.api.http_server.parser import Head
from mcpd.api.mcp_endpoint.frames import EVENT_HEADERS, EVENT_STREAM, KEEP_ALIVE, respond_error, sse_event
from mcpd.client_registry import ClientConnection
from mcpd.gateway.gateway import Gateway
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, METHOD_NOT_FOUND, PARSE_ERROR, BadFrame

_CONTROL_PREFIXES = ("mcpd/", "rpc.")


class HttpRpc:
    """Handles `/rpc` on one HTTP connection, one request at a time. Implements `ControlResponder`."""

    def __init__(self, gateway: Gateway, client: ClientConnection, pid: int, spawn: SpawnTask) -> None:
        self._spawn = spawn
        self._exchange: HttpExchange
        self._requests = ControlRequests(gateway, self, client, pid, self._start, lambda view, identity: None)

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        if head.method != "POST":
            respond_error(exchange, 405, "send a POST request", headers=b"Allow: POST\r\n")
            return
        try:
            # Arguments are forwarded as they are, and servers read lines.
            message = wire.parse(body.replace(b"\r", b" ").replace(b"\n", b" "))
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        if message.id is ABSENT or not message.method:
            respond_error(exchange, 400, "a request must have an `id` and a `method`", key=message.key)
        elif not message.method.startswith(_CONTROL_PREFIXES) or message.method == "mcpd/attach":
            text = "this is the control API; MCP is served at /mcp and /servers/NAME/mcp"
            respond_error(exchange, 404, text, code=METHOD_NOT_FOUND, key=message.key)
        elif message.method == "mcpd/identify":
            text = "HTTP requests are independent of each other; connect to the socket without HTTP"
            respond_error(exchange, 404, text, code=METHOD_NOT_FOUND, key=message.key)
        else:
            self._exchange = exchange
            exchange.on_quiet = self._keep_alive
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

    def _start(self, work: Callable[[], Awaitable[None]], _: str) -> None:
        async def run() -> None:
            try:
                await work()
            except trio.Cancelled:
                respond_error(self._exchange, 503, "the request was cancelled")
                raise

        self._spawn(run)

    def _keep_alive(self) -> None:
        self._write(KEEP_ALIVE)

    def _write(self, data: bytes) -> None:
        self._exchange.stream(EVENT_STREAM, EVENT_HEADERS)  # no-op if it was started already
        self._exchange.write(data)
