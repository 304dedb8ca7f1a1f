"""The control API over a WebSocket, for the dashboard and for mcpctl on other machines; each has its methods.

Messages are forwarded to a `SocketConnection`, which cancels calls and ends streams. Log lines that a slow
client does not read stay in the daemon's bounded logs and are reported as missed.
"""

from __future__ import annotations

import base64
import logging
import math
import socket as sockets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from mcpd.api.control.access import Access
from mcpd.api.http.connection import STALL_TIMEOUT
from mcpd.api.http.parser import Head
from mcpd.api.socket_connection import RemotePerson, SocketConnection
from mcpd.gateway.gateway import Gateway
from mcpd.state.clients import ClientConnection
from mcpd.transports.guarded_websocket import CONNECTION_ENDED, READ_SIZE, GuardedStream, keep_alive
from mcpd.wire import message as wire
from mcpd.wire.framing import LineSplitter
from mcpd.wire.message import ABSENT, METHOD_NOT_FOUND, BadFrame

log = logging.getLogger("mcpd.http")

MAX_MESSAGE = 4 * 1024 * 1024
"""Maximum length of a message from the client."""
_MAX_LINE = 128 * 1024 * 1024
_CLOSE_TIMEOUT = 0.5
"""Seconds for pending output and the closing handshake."""
_GOING_AWAY, _UNSUPPORTED_DATA, _POLICY_VIOLATION, _INTERNAL_ERROR = 1001, 1003, 1008, 1011


class ControlSocket:
    """The WebSocket of one client, and `client` its entry in the registry."""

    def __init__(
        self,
        gateway: Gateway,
        client: ClientConnection,
        access: Access,
        person: RemotePerson | None = None,
    ) -> None:
        """`person`: whose access token it was opened with; None: the person who runs mcpd."""
        self._access = access
        self._person = person
        self._gateway = gateway
        self._client = client
        self._closing = trio.Event()
        self._close_frame = (_INTERNAL_ERROR, "closed by the daemon")

    def close(self, reason: str, code: int = _GOING_AWAY) -> None:
        """Close the WebSocket with a close frame. Does not wait."""
        if not self._closing.is_set():
            self._close_frame = (code, reason[:100])
            self._closing.set()

    async def run(self, head: Head, stream: trio.abc.Stream) -> None:
        """Accept the upgrade request `head` and serve until either side closes.

        May leave the stream open. Raises OSError if there are no descriptors left.
        """
        wire_stream = GuardedStream(stream, STALL_TIMEOUT, 4 * MAX_MESSAGE, self._minimal_request(head))
        daemon_end, client_end = sockets.socketpair()
        with daemon_end, client_end:
            daemon_end.setblocking(False)
            lines = trio.SocketStream(trio.socket.from_stdlib_socket(client_end))
            try:
                async with trio.open_nursery() as nursery:
                    request = await wrap_server_stream(
                        nursery, wire_stream, max_message_size=MAX_MESSAGE, receive_buffer_size=READ_SIZE
                    )
                    connection = await request.accept(subprotocol=self._access.protocol)
                    for part in (
                        SocketConnection(
                            self._gateway, daemon_end, 0, None, self._client, person=self._person
                        ).run,
                        partial(self._forward_requests, connection, wire_stream, lines),
                        partial(self._forward_responses, connection, lines),
                        partial(keep_alive, connection, wire_stream),
                    ):
                        nursery.start_soon(self._run_part, part)
                    with trio.move_on_after(self._seconds_left()) as waiting:
                        await self._closing.wait()
                    if waiting.cancelled_caught:
                        self.close("the access token has expired", _POLICY_VIOLATION)
                    await self._send_close(connection)
                    nursery.cancel_scope.cancel(reason="closed")
            except* CONNECTION_ENDED as group:
                log.debug("WebSocket: %s", group.exceptions)
        if wire_stream.close_reason:
            log.info("a WebSocket was given up: %s", wire_stream.close_reason)

    def _seconds_left(self) -> float:
        return math.inf if self._person is None else max(0.0, self._person.expires - time.time())

    async def _run_part(self, part: Callable[[], Awaitable[None]]) -> None:
        with suppress(ConnectionClosed, trio.BrokenResourceError):
            await part()
        self._closing.set()

    async def _forward_requests(
        self, connection: WebSocketConnection, below: GuardedStream, lines: trio.SocketStream
    ) -> None:
        while True:
            received = await connection.get_message()
            below.message_received()
            if isinstance(received, bytes):
                self.close("only text messages are supported", _UNSUPPORTED_DATA)
                return
            line = received.encode("utf-8", "replace")
            refusal = self._error_for(line)
            if refusal is None:
                # The same parser reads these bytes again, so what was checked is what is executed.
                await lines.send_all(line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
            elif refusal:
                await connection.send_message(refusal.decode().rstrip("\n"))

    async def _forward_responses(self, connection: WebSocketConnection, lines: trio.SocketStream) -> None:
        splitter = LineSplitter(_MAX_LINE)
        async for portion in lines:
            for line in splitter.feed(bytes(portion)):
                await connection.send_message(line.decode("utf-8", "replace"))

    async def _send_close(self, connection: WebSocketConnection) -> None:
        with trio.move_on_after(_CLOSE_TIMEOUT, shield=True), suppress(trio.BrokenResourceError):
            await connection.aclose(*self._close_frame)

    def _error_for(self, line: bytes) -> bytes | None:
        """Return the error for a message that is not allowed (empty: ignore it), or None to forward it."""
        try:
            message = wire.parse(line)
        except BadFrame as error:
            return wire.error(b"null", wire.error_body(error.code, f"not a JSON-RPC message: {error}"))
        cancels = message.method == "notifications/cancelled" and message.id is ABSENT
        if message.method in self._access.methods or cancels:
            return None
        if not message.method or message.id is ABSENT:
            return b""
        text = f"{message.method[:100]} is only for programs on the machine of mcpd"
        data = {"code": "not_served", "fix": self._access.advice}
        return wire.error(message.key, wire.error_body(METHOD_NOT_FOUND, text, data))

    def _minimal_request(self, head: Head) -> bytes:
        """Return the upgrade request for the library: it was validated, and has only the needed headers."""
        return (
            b"GET / HTTP/1.1\r\nHost: mcpd\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %b\r\nSec-WebSocket-Key: %b\r\n\r\n"
            % (self._access.protocol.encode(), head.headers[b"sec-websocket-key"])
        )


def offered_protocols(head: Head) -> list[str]:
    """Return the subprotocols that a client offers in a valid handshake (RFC 6455, 4.2.1), otherwise none."""
    try:
        key = base64.b64decode(head.headers.get(b"sec-websocket-key", b""), validate=True)
    except ValueError:
        return []
    version = head.headers.get(b"sec-websocket-version")
    if head.upgrade != b"websocket" or head.method != "GET" or version != b"13" or len(key) != 16:
        return []
    return [each.strip() for each in (head.get(b"sec-websocket-protocol") or "").split(",")]
