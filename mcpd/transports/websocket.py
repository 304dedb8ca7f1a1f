"""A switchboard on a WebSocket: one JSON-RPC message in each text frame, subprotocol `mcp`.

No revision of the protocol specifies this transport; this is how those speak who offer it. A lost
connection is a lost session: nothing is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import trio
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection

from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.support.outbox import batch
from mcpd.support.websocket import CONNECTION_ENDED, GuardedStream, keep_alive
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import Exchange
from mcpd.transports.websocket_upgrade import UpgradedStream, connect, unwrap_failure, upgrade

_batch = batch()
_CLOSE_TIMEOUT = 0.25
"""Seconds for the closing handshake. Nothing depends on it."""
_MAX_REPLY_BACKLOG = 1 << 20
"""Bytes that may wait for the server before its own requests are left unanswered."""


class WebSocketChannel(RequestMultiplexer):
    """One server's WebSocket; a `Channel`. Made by `open_websocket`."""

    def __init__(self, spec: RemoteSpec, connection: WebSocketConnection, wire: GuardedStream) -> None:
        super().__init__(spec)
        self._connection = connection
        self._wire = wire
        self._max_frame = spec.max_frame
        self._waiting: deque[tuple[bytes, Exchange | None]] = deque()
        """Frames on their way out."""
        self._sending = False
        """The first of them."""
        self._backlog = 0
        self._wake = trio.Event()

    async def run(self) -> NoReturn:
        reason = "the link was closed"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self.watch_deadlines)
                nursery.start_soon(keep_alive, self._connection, self._wire)
                reason = await self._read()
                nursery.cancel_scope.cancel(reason=reason)
        finally:
            self.close(reason)
        assert self.end_error is not None
        raise self.end_error

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        self._enqueue(frame, exchange)

    def _send_frame(self, frame: bytes) -> None:
        self._enqueue(frame, None)

    def _send_reply(self, frame: bytes) -> None:
        if self._backlog < _MAX_REPLY_BACKLOG:  # a server that asks without end and never reads gets no more
            super()._send_reply(frame)

    def _enqueue(self, frame: bytes, exchange: Exchange | None) -> None:
        self._waiting.append((frame, exchange))
        self._backlog += len(frame)
        self._wake.set()

    def _withdraw_request(self, exchange: Exchange, reason: str) -> bool:
        for index, (frame, asker) in enumerate(self._waiting):
            if asker is exchange:
                if index == 0 and self._sending:
                    return False
                self._backlog -= len(frame)
                del self._waiting[index]
                return True
        return False

    def _unsent_requests(self) -> set[Exchange]:
        return {exchange for _, exchange in self._waiting if exchange is not None}

    async def _write(self) -> None:
        while True:
            while self._waiting:
                frame, _ = self._waiting[0]
                self._sending = True
                try:
                    await self._connection.send_message(frame.rstrip(b"\n").decode("utf-8", "replace"))
                except ConnectionClosed:
                    return  # the reader knows why
                self._sending = False
                self._waiting.popleft()
                self._backlog -= len(frame)
            self._wake = trio.Event()
            await self._wake.wait()

    # ── frames in ───────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> str:
        try:
            while True:
                data = await self._connection.get_message()
                self._wire.message_received()
                with _batch:
                    self.receive(data.encode() if isinstance(data, str) else data)
        except ConnectionClosed as error:
            return self._wire.close_reason or self._describe(error.reason)

    def _describe(self, reason: CloseReason | None) -> str:
        code = 1006 if reason is None else reason.code
        words = "" if reason is None or not reason.reason else shorten(reason.reason)
        if code == 1009 and words.startswith("Exceeded maximum message size"):
            return (
                f"it sent a message longer than {self._max_frame} bytes (raise `maxFrame` if that is meant)"
            )
        if code == 1009:
            return "it refused a message of ours as too long" + (f": {words}" if words else "")
        if code == 1006:
            return "the connection broke"
        return f"it closed the connection with code {code}" + (f": {words}" if words else "")


@asynccontextmanager
async def open_websocket(spec: RemoteSpec) -> AsyncIterator[WebSocketChannel]:
    """Connect; leaving the block fails what is under way and closes the connection.

    Raises LinkLost when the server cannot be reached, NeedsAuth and HttpRefused when it does not want
    to, OSError for a bad CA file. The caller runs the channel.
    """
    stream = await connect(spec)
    wire = UpgradedStream(stream, spec.timeouts.write, spec.max_frame)
    channel: WebSocketChannel | None = None
    try:
        async with trio.open_nursery() as nursery:
            connection = await upgrade(spec, nursery, wire)
            channel = WebSocketChannel(spec, connection, wire)
            try:
                yield channel
            finally:
                channel.close("it is being stopped")
                with trio.move_on_after(_CLOSE_TIMEOUT, shield=True):
                    await connection.aclose()
                nursery.cancel_scope.cancel(reason="the connection is closed")
    except BaseExceptionGroup as group:
        if channel is None:
            raise unwrap_failure(group, spec.name) from None
        _, others = group.split(CONNECTION_ENDED)
        if others is not None:
            raise others from None
    finally:
        await trio.aclose_forcefully(stream)  # the library leaves it to the garbage collector at times
