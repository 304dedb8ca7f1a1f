"""`POST /rpc`: the control API for who has curl. A body is a line, its answer the response.

Behind it is a connection of lines like any other, so every method is there, those that stream too. Only the
Unix socket has it: whoever may change the set of servers may start programs, and no token is worth that.
"""

from __future__ import annotations

import socket as sockets

import msgspec

from mcpd.api.http_server.connection import Spawn
from mcpd.api.http_server.http_exchange import Exchange
from mcpd.api.http_server.parser import MAX_BODY, Head
from mcpd.api.mcp_endpoint.frames import (
    ALIVE,
    EVENT_HEADERS,
    EVENTS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    event,
    refuse,
)
from mcpd.api.socket_connection import Connection
from mcpd.gateway.gateway import Gateway
from mcpd.support.outbox import Outbox
from mcpd.support.reader import Reader
from mcpd.wire import message as wire
from mcpd.wire.framing import LineSplitter
from mcpd.wire.message import ABSENT, BadFrame, Message

_OURS = ("mcpd/", "rpc.")
_LONGEST = 4 * MAX_BODY


class Rpc:
    """Of one HTTP connection."""

    def __init__(self, gateway: Gateway, pid: int, spawn: Spawn) -> None:
        self._gateway = gateway
        self._pid = pid
        self._spawn = spawn
        self._line: _Line | None = None

    def handle(self, head: Head, body: bytes, exchange: Exchange) -> None:
        if head.method != "POST":
            refuse(exchange, 405, "POST a request here", headers=b"Allow: POST\r\n")
            return
        try:
            message = wire.parse(body)
        except BadFrame as error:
            refuse(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        if message.id is ABSENT or not message.method:
            refuse(exchange, 400, "a request has an `id` and a `method`", key=message.key)
        elif not message.method.startswith(_OURS) or message.method == "mcpd/attach":
            words = "this is the control API; MCP is spoken at /mcp and /servers/NAME/mcp"
            refuse(exchange, 404, words, code=METHOD_NOT_FOUND, key=message.key)
        else:
            if self._line is None or self._line.is_over:
                self._line = _Line(self._gateway, self._pid, self._spawn)
            self._line.ask(message, body, exchange)

    def left(self) -> None:
        if self._line is not None:
            self._line.close()


class _Line:
    """A connection of lines, and our end of it. HTTP asks one thing at a time."""

    def __init__(self, gateway: Gateway, pid: int, spawn: Spawn) -> None:
        self._theirs, self._ours = sockets.socketpair()
        for end in (self._theirs, self._ours):
            end.setblocking(False)
        self._outbox = Outbox(self._ours.fileno())
        self._splitter = LineSplitter(_LONGEST)
        self._exchange: Exchange | None = None
        self._key = b""
        self._goes_on = False
        self.is_over = False
        self._connection = Connection(gateway, self._theirs, pid)
        spawn(self._serve)
        spawn(self._outbox.run)
        spawn(self._read)

    def ask(self, message: Message, body: bytes, exchange: Exchange) -> None:
        self._exchange = exchange
        self._key = message.key
        self._goes_on = message.method == "mcpd/logs" and _follows(message)
        exchange.on_quiet = self._keep_alive
        self._outbox.put(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")

    def close(self) -> None:
        """Whoever asked is gone: what is under way is cancelled."""
        if not self.is_over:
            self.is_over = True
            self._exchange = None
            self._ours.shutdown(sockets.SHUT_RDWR)

    async def _serve(self) -> None:
        try:
            await self._connection.run()
        finally:
            self._theirs.close()

    async def _read(self) -> None:
        try:
            await Reader(self._ours.fileno(), self._take).run()
        finally:
            self.is_over = True
            self._outbox.close()
            self._ours.close()
            if self._exchange is not None:
                refuse(self._exchange, 503, "the request was given up")

    def _take(self, portion: bytes) -> None:
        for line in self._splitter.feed(portion):
            exchange = self._exchange
            if exchange is None:
                continue
            message = wire.parse(line)
            if message.method or (self._goes_on and message.error is ABSENT):
                _begin(exchange)
                exchange.write(event(line))
            elif message.key == self._key:
                self._exchange = None
                if exchange.streams:
                    exchange.write(event(line))
                    exchange.end()
                else:
                    exchange.respond(200, line)

    def _keep_alive(self) -> None:
        if self._exchange is not None:
            _begin(self._exchange)
            self._exchange.write(ALIVE)


def _begin(exchange: Exchange) -> None:
    if not exchange.streams:
        exchange.stream(EVENTS, EVENT_HEADERS)


def _follows(message: Message) -> bool:
    try:
        return bytes(wire.members(message.params).get("follow", msgspec.Raw(b"false"))) == b"true"
    except BadFrame:
        return False
