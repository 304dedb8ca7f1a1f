"""The WebSocket transport: one JSON-RPC message in each text frame, subprotocol `mcp`."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn
from urllib.parse import urlsplit

import trio
from trio_websocket import (
    CloseReason,
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)

from mcpd.model.errors import HttpRefused, LinkLost, McpdError, NeedsAuth
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.support.outbox import batch
from mcpd.support.websocket import CONNECTION_ENDED, MAX_UNCOUNTED, READ_SIZE, GuardedStream, keep_alive
from mcpd.transports.http_client.client_factory import ssl_context
from mcpd.transports.http_client.connection_errors import describe_error
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT, start_tls
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import Exchange

SUBPROTOCOL = "mcp"
_STATUS = re.compile(rb"HTTP/1\.\d (\d{3})")


class UpgradedStream(GuardedStream):
    """The stream to a server, which may greet us with something else than WebSocket, or not at all."""

    def __init__(self, stream: trio.abc.Stream, write_timeout: float, max_frame: int) -> None:
        super().__init__(stream, write_timeout, max_frame)
        self.handshake: trio.CancelScope | None = trio.CancelScope()
        """Cancelled when the stream ends; None once the handshake is done."""
        self.status = 0
        """The HTTP status the server began with."""
        self._handshake_bytes = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data: bytes | bytearray = b""
        try:
            data = await super().receive_some(max_bytes)
        finally:
            if not data:
                self._cancel_handshake()
        if self.handshake is not None:
            found = None if self._handshake_bytes else _STATUS.match(data)
            self.status = self.status if found is None else int(found[1])
            self._handshake_bytes += len(data)
            if self._handshake_bytes > MAX_UNCOUNTED:
                self._cancel_handshake()
                raise trio.BrokenResourceError("a greeting without end")
        return data

    async def aclose(self) -> None:
        self._cancel_handshake()
        await super().aclose()

    def _cancel_handshake(self) -> None:
        if self.handshake is not None:
            self.handshake.cancel(reason="the stream has ended")


async def connect(spec: RemoteSpec) -> trio.abc.Stream:
    """A stream to the server's host, guarded by TLS for `wss`; the caller's to close.

    Raises LinkLost, and OSError for a bad CA file.
    """
    parts = urlsplit(spec.url)
    host, secure = parts.hostname or "", parts.scheme in ("wss", "https")
    context = ssl_context(spec.ca_file) if secure else None
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            stream = await trio.open_tcp_stream(host, parts.port or (443 if secure else 80))
            return stream if context is None else await start_tls(stream, host, context)
    except trio.TooSlowError:
        reason = f"it cannot be reached: no connection within {CONNECT_TIMEOUT:g} s"
    except trio.BrokenResourceError as error:
        reason = describe_error(error)
    except OSError as error:
        reason = f"it cannot be reached: {_describe_os_error(error)}"
    raise LinkLost(f"{spec.name}: {reason}", server=spec.name, may_have_run=False)


def _describe_os_error(error: OSError) -> str:
    """trio says which addresses failed; why is in the causes."""
    cause = error.__cause__
    for one in cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause, error):
        if isinstance(one, OSError) and one.errno is not None:
            return os.strerror(one.errno) if one.errno > 0 else str(one.strerror)  # below 0: of a name
    return str(error)


async def upgrade(spec: RemoteSpec, nursery: trio.Nursery, wire: UpgradedStream) -> WebSocketConnection:
    """Agree on WebSocket. What reads the connection runs in `nursery`, and may raise there too:
    see `only_reason`. Raises LinkLost, NeedsAuth, HttpRefused."""
    parts = urlsplit(spec.url)
    connection: WebSocketConnection | None = None
    assert wire.handshake is not None
    with trio.move_on_after(CONNECT_TIMEOUT) as waiting, wire.handshake:
        connection = await wrap_client_stream(
            nursery,
            wire,  # type: ignore[arg-type]  # any stream will do
            parts.netloc.rpartition("@")[2],
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            subprotocols=[SUBPROTOCOL],
            extra_headers=[(name.encode(), value.encode()) for name, value in spec.headers.items()],
            max_message_size=spec.max_frame,
            receive_buffer_size=READ_SIZE,
        )
    wire.handshake = None
    if connection is not None:
        return connection
    if wire.status:
        raise _refusal(spec.name, ConnectionRejected(wire.status, (), None))
    how = "is silent" if waiting.cancelled_caught else "does not answer as a WebSocket server does"
    raise LinkLost(f"{spec.name}: it {how}", server=spec.name, may_have_run=False)


def unwrap_failure(group: BaseExceptionGroup[BaseException], name: str) -> BaseException:
    """Why there is no connection, freed from the nursery's wrapping."""
    reasons = list(group.exceptions)
    rejected = next((reason for reason in reasons if isinstance(reason, ConnectionRejected)), None)
    if rejected is not None:
        return _refusal(name, rejected)
    return reasons[0] if len(reasons) == 1 else group


def _refusal(name: str, rejected: ConnectionRejected) -> McpdError:
    status = rejected.status_code
    headers = {key.lower(): value.decode("latin-1") for key, value in rejected.headers}
    said = f"{name}: HTTP {status} instead of a WebSocket"
    if status in (401, 403):
        return NeedsAuth(
            f"{said}: put an `Authorization` header into `headers` of its definition",
            server=name,
            status=status,
        )
    words = headers.get(b"location", "") or (rejected.body or b"").strip()[:200].decode("utf-8", "replace")
    return HttpRefused(f"{said}" + (f": {shorten(words)}" if words else ""), server=name, status=status)


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
