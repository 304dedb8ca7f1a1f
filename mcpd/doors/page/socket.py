"""The page's WebSocket: a connection of control lines, of which only what the page needs gets through.

wsproto knows the frames; behind it is a connection of lines like any other, so calls are cancelled and
streams ended as there. What the browser does not take waits in the daemon's bounded logs, and is then told as
missed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import socket as sockets
from collections.abc import Callable

import trio
from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionType
from wsproto.events import CloseConnection, Message, Ping, Pong, TextMessage
from wsproto.utilities import ProtocolError

from mcpd.clients import Client
from mcpd.doors.http.connection import Spawn
from mcpd.doors.http.exchange import Exchange
from mcpd.doors.http.parser import Head
from mcpd.doors.lines import Connection
from mcpd.gateway.gateway import Gateway
from mcpd.support.outbox import Outbox
from mcpd.wire import message as wire
from mcpd.wire.lines import LineSplitter
from mcpd.wire.message import ABSENT, BadFrame

log = logging.getLogger("mcpd.http")

ALLOWED = frozenset(
    f"mcpd/{name}"
    for name in (
        "status",
        "server",
        "tools",
        "stats",
        "history",
        "events",
        "logs",
        "version",
        "call",
        "reconnect",
        "enable",
        "disable",
    )
)
"""Nothing that changes the set of servers: who may do that may start programs; it takes the Unix socket."""
MAX_MESSAGE = 4 * 1024 * 1024
"""Characters of one message from the page."""
_LONGEST_LINE = 128 * 1024 * 1024
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_GOING_AWAY, _TOO_BIG, _NO_TEXT, _GONE = 1001, 1009, 1003, 1011
_PARSE_ERROR, _METHOD_NOT_FOUND = -32700, -32601


class PageSocket:
    """`client`: whom its calls are counted for. `over` is called once, when either side has ended it."""

    def __init__(
        self,
        gateway: Gateway,
        exchange: Exchange,
        client: Client,
        spawn: Spawn,
        over: Callable[[], None],
        protocol: str,
    ) -> None:
        self._exchange = exchange
        self._over = over
        self._frames = Frames(ConnectionType.SERVER)
        self._text: list[str] = []
        self._size = 0
        self._heard = True
        self._closing = False
        self._theirs, self._ours = sockets.socketpair()
        for end in (self._theirs, self._ours):
            end.setblocking(False)
        self._outbox = Outbox(self._ours.fileno(), MAX_MESSAGE)
        self._connection = Connection(gateway, self._theirs, 0, client)
        exchange.on_hang_up = lambda _: self._ended()
        exchange.on_quiet = self._ask_whether_it_is_there
        exchange.upgrade(_agreement(exchange.head, protocol), self._take)
        spawn(self._serve)
        spawn(self._outbox.run)
        spawn(self._tell)

    def close(self, reason: str, code: int = _GOING_AWAY) -> None:
        """Say goodbye, and end."""
        if not self._closing:
            self._send(CloseConnection(code=code, reason=reason[:100]))
            self._end()

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    def _take(self, portion: bytes) -> None:
        self._heard = True
        if self._closing:
            return
        try:
            self._frames.receive_data(portion)
            for event in self._frames.events():
                if isinstance(event, TextMessage):
                    self._take_text(event)
                elif isinstance(event, CloseConnection):
                    self._send(event.response())
                    self._end()
                elif isinstance(event, Ping):
                    self._send(event.response())
                elif isinstance(event, Message):
                    self.close("text is spoken here", _NO_TEXT)
                if self._closing:
                    return
        except ProtocolError as error:
            log.debug("the page: %s", error)
            self._end()

    def _take_text(self, event: TextMessage) -> None:
        self._text.append(event.data)
        self._size += len(event.data)
        if self._size > MAX_MESSAGE:
            self.close(f"a message may have {MAX_MESSAGE} characters", _TOO_BIG)
        elif event.message_finished:
            text, self._text, self._size = "".join(self._text), [], 0
            self._ask(text.encode("utf-8", "replace"))

    def _ask(self, line: bytes) -> None:
        try:
            message = wire.parse(line)
        except BadFrame as error:
            self._refuse(b"null", _PARSE_ERROR, f"not a JSON-RPC message: {error}")
            return
        cancels = message.method == "notifications/cancelled" and message.id is ABSENT
        if message.method in ALLOWED or cancels:
            # The same bytes are parsed again, by the same parser: what was looked at is what is done.
            self._outbox.put(line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
        elif message.method and message.id is not ABSENT:
            words = f"{message.method[:100]} is not for the page: mcpctl does that, over the Unix socket"
            self._refuse(message.key, _METHOD_NOT_FOUND, words)

    def _refuse(self, key: bytes, code: int, words: str) -> None:
        body = wire.error(key, wire.error_body(code, words))
        self._send(TextMessage(data=body.decode().rstrip("\n")))

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        try:
            await self._connection.run()
        finally:
            self._theirs.close()

    async def _tell(self) -> None:
        splitter = LineSplitter(_LONGEST_LINE)
        try:
            with contextlib.suppress(OSError):
                while True:
                    await trio.lowlevel.wait_readable(self._ours)
                    portion = self._ours.recv(1 << 16)
                    if not portion:
                        break
                    for line in splitter.feed(portion):
                        self._send(TextMessage(data=line.decode("utf-8", "replace")))
                    await self._exchange.drained()
            self.close("the daemon ended this conversation", _GONE)
        finally:
            self._outbox.close()
            self._ours.close()

    def _send(self, event: CloseConnection | TextMessage | Ping | Pong) -> None:
        if not self._closing:
            self._exchange.write(self._frames.send(event))

    def _ask_whether_it_is_there(self) -> None:
        """Called every few seconds; a browser answers by itself."""
        if not self._heard:
            self._end()
            return
        self._heard = False
        self._send(Ping())

    def _end(self) -> None:
        self._closing = True
        self._exchange.end()
        self._ended()

    def _ended(self) -> None:
        self._closing = True
        over, self._over = self._over, lambda: None
        over()


def _agreement(head: Head, protocol: str) -> bytes:
    """The headers with which we take what was offered."""
    key = head.headers[b"sec-websocket-key"]
    accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
    return (
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n"
        b"Sec-WebSocket-Protocol: %b\r\n" % (accept, protocol.encode())
    )
