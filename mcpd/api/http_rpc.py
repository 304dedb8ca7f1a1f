"""`POST /rpc`: the control API over HTTP, for curl. The request body is one JSON-RPC request.

Requests are forwarded to a `SocketConnection`, so all methods work, streaming ones included. Served on the
Unix socket only: a client that can change the set of servers can start any program.
"""

from __future__ import annotations

import socket as sockets
from functools import partial

import msgspec

from mcpd.api.connection_limit import LruConnectionLimit
from mcpd.api.http_server.connection import SpawnTask
from mcpd.api.http_server.http_exchange import HttpExchange
from mcpd.api.http_server.parser import MAX_BODY, Head
from mcpd.api.mcp_endpoint.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    KEEP_ALIVE,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    respond_error,
    sse_event,
)
from mcpd.api.socket_connection import SocketConnection
from mcpd.gateway.gateway import Gateway
from mcpd.support.outbox import Outbox
from mcpd.support.reader import Reader
from mcpd.wire import message as wire
from mcpd.wire.framing import LineSplitter
from mcpd.wire.message import ABSENT, BadFrame, Message

_CONTROL_PREFIXES = ("mcpd/", "rpc.")
_MAX_LINE = 4 * MAX_BODY


class HttpRpc:
    """Handles `/rpc` on one HTTP connection."""

    def __init__(self, gateway: Gateway, pid: int, spawn: SpawnTask, limit: LruConnectionLimit) -> None:
        self._new_bridge = partial(_SocketBridge, gateway, pid, spawn, limit)
        self._bridge: _SocketBridge | None = None

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        if head.method != "POST":
            respond_error(exchange, 405, "send a POST request", headers=b"Allow: POST\r\n")
            return
        try:
            message = wire.parse(body)
        except BadFrame as error:
            respond_error(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        if message.id is ABSENT or not message.method:
            respond_error(exchange, 400, "a request must have an `id` and a `method`", key=message.key)
        elif not message.method.startswith(_CONTROL_PREFIXES) or message.method == "mcpd/attach":
            text = "this is the control API; MCP is served at /mcp and /servers/NAME/mcp"
            respond_error(exchange, 404, text, code=METHOD_NOT_FOUND, key=message.key)
        else:
            if self._bridge is None or self._bridge.is_closed:
                self._bridge = self._new_bridge()
            self._bridge.send(message, body, exchange)

    def close(self) -> None:
        if self._bridge is not None:
            self._bridge.close()


class _SocketBridge:
    """A `SocketConnection` and the other end of its socket pair. Carries one request at a time."""

    def __init__(self, gateway: Gateway, pid: int, spawn: SpawnTask, limit: LruConnectionLimit) -> None:
        self._daemon_end, self._http_end = sockets.socketpair()
        for end in (self._daemon_end, self._http_end):
            end.setblocking(False)
        self._outbox = Outbox(self._http_end.fileno())
        self._splitter = LineSplitter(_MAX_LINE)
        self._exchange: HttpExchange | None = None
        self._key = b""
        self._follows = False
        self.is_closed = False
        self._connection = SocketConnection(gateway, self._daemon_end, pid, limit)
        spawn(self._serve)
        spawn(self._outbox.run)
        spawn(self._read)

    def send(self, message: Message, body: bytes, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._key = message.key
        self._follows = message.method == "mcpd/logs" and _wants_to_follow(message)
        exchange.on_quiet = self._keep_alive
        self._outbox.put(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def close(self) -> None:
        """The HTTP client has left: cancel the request in progress."""
        if not self.is_closed:
            self.is_closed = True
            self._exchange = None
            self._http_end.shutdown(sockets.SHUT_RDWR)

    async def _serve(self) -> None:
        try:
            await self._connection.run()
        finally:
            self._daemon_end.close()

    async def _read(self) -> None:
        try:
            await Reader(self._http_end.fileno(), self._received).run()
        finally:
            self.is_closed = True
            self._outbox.close()
            self._http_end.close()
            if self._exchange is not None:
                respond_error(self._exchange, 503, "the request was cancelled")

    def _received(self, portion: bytes) -> None:
        for line in self._splitter.feed(portion):
            exchange = self._exchange
            if exchange is None:
                continue
            message = wire.parse(line)
            if message.method or (self._follows and message.error is ABSENT):
                _start_stream(exchange)
                exchange.write(sse_event(line))
            elif message.key == self._key:
                self._exchange = None
                if exchange.is_streaming:
                    exchange.write(sse_event(line))
                    exchange.end()
                else:
                    exchange.respond(200, line)

    def _keep_alive(self) -> None:
        if self._exchange is not None:
            _start_stream(self._exchange)
            self._exchange.write(KEEP_ALIVE)


def _start_stream(exchange: HttpExchange) -> None:
    if not exchange.is_streaming:
        exchange.stream(EVENT_STREAM, EVENT_HEADERS)


def _wants_to_follow(message: Message) -> bool:
    try:
        return bytes(wire.members(message.params).get("follow", msgspec.Raw(b"false"))) == b"true"
    except BadFrame:
        return False
