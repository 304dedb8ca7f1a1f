"""The WebSocket transport: one JSON-RPC message per text frame, subprotocol `mcp`.

MCP does not specify this transport; servers that offer it use this form. A lost connection is not resumed.
trio-websocket sometimes leaves sockets to the garbage collector, so the stream is opened and closed here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack, asynccontextmanager

import h11
import httpx
import trio
import wsproto.utilities
from trio_websocket import (
    CloseReason,
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
)
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, Event, TextMessage

from mcpd.io.outbox import batch
from mcpd.io.turns import TurnLimit
from mcpd.model.errors import HttpRefused, LinkLost, McpdError, ProtocolViolation
from mcpd.model.server_spec import RemoteSpec
from mcpd.model.text import shorten
from mcpd.process.memory import trim_heap_soon
from mcpd.transports.credentials import (
    FORBIDDEN,
    MAX_REPEATS,
    UNAUTHORIZED,
    Credentials,
    Refusal,
    Signature,
    access_error,
    signature_for,
)
from mcpd.transports.guarded_websocket import (
    CONNECTION_ENDED,
    READ_SIZE,
    GuardedStream,
    keep_alive,
)
from mcpd.transports.http_client.client_factory import parse_url, ssl_context
from mcpd.transports.http_client.connection import describe_error
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT, STREAM_ERRORS, open_tcp, start_tls
from mcpd.transports.multiplexer import RequestMultiplexer
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire.limits import COUNTED_FROM, StructureCounter, TooMuchStructure

SUBPROTOCOL = "mcp"
_MALFORMED = (h11.ProtocolError, wsproto.utilities.ProtocolError)
"""What the libraries raise if the server's answer to the upgrade request is not valid HTTP."""


class _Messages(WSConnection):
    """Returns all messages as bytes, and tells the stream when one is complete."""

    def __init__(self, stream: GuardedStream) -> None:
        super().__init__(ConnectionType.CLIENT)
        self._stream = stream

    def events(self) -> Generator[Event, None, None]:
        for event in super().events():
            if not isinstance(event, (TextMessage, BytesMessage)):
                yield event
                continue
            data = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
            if event.message_finished:
                self._stream.message_received()
            yield BytesMessage(data=data, message_finished=event.message_finished)


async def connect(spec: RemoteSpec) -> trio.abc.Stream:
    """Open a stream to the server's host, with TLS for `wss`; the caller closes it.

    Raises LinkLost, and CannotStart for an unusable URL or CA file.
    """
    url = parse_url(spec.url)
    host, secure = url.raw_host.decode("ascii"), url.scheme in ("wss", "https")
    context = ssl_context(spec.ca_file) if secure else None
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            stream = await open_tcp(host, url.port or (443 if secure else 80))
            return stream if context is None else await start_tls(stream, host, context)
    except (trio.TooSlowError, *STREAM_ERRORS) as error:
        is_late = isinstance(error, trio.TooSlowError)
        failed = httpx.ConnectTimeout("") if is_late else httpx.ConnectError(str(error))
        failed.__cause__ = error
        reason = describe_error(failed)
    raise LinkLost(f"{spec.name}: {reason}", server=spec.name, may_have_run=False)


class UpgradeRefused(Exception):
    """The server answered the upgrade request with another HTTP status than 101."""

    def __init__(self, rejected: ConnectionRejected) -> None:
        super().__init__(f"HTTP {rejected.status_code}")
        self.status = rejected.status_code
        self.headers = httpx.Headers(list(rejected.headers))
        self.body = rejected.body or b""

    def to_error(
        self, name: str, refusal: Refusal, credentials: Credentials | None, *, own: bool
    ) -> McpdError:
        """Return the error for users. `own`: the definition contains an `Authorization` header."""
        what = f"HTTP {self.status} instead of a WebSocket"
        login = access_error(name, what, refusal, credentials, has_own_header=own)
        if login is not None:
            return login
        detail = self.headers.get("location", "") or self.body.strip()[:200].decode("utf-8", "replace")
        message = f"{name}: {what}" + (f": {shorten(detail)}" if detail else "")
        return HttpRefused(message, server=name, status=self.status)


async def upgrade(
    spec: RemoteSpec, nursery: trio.Nursery, wire: GuardedStream, signature: Signature
) -> WebSocketConnection:
    """Perform the WebSocket handshake. Raises LinkLost.

    The connection is read in `nursery`, which may raise too; see `unwrap_failure`.
    """
    url = parse_url(spec.url)
    connection = WebSocketConnection(
        wire,
        _Messages(wire),
        host=url.netloc.decode("ascii"),
        path=url.raw_path.decode("ascii"),
        client_subprotocols=[SUBPROTOCOL],
        client_extra_headers=[
            (name.encode(), value.encode()) for name, value in (*spec.headers.items(), *signature.headers)
        ],
        max_message_size=spec.max_frame,
        receive_buffer_size=READ_SIZE,
    )

    async def read() -> None:
        try:
            await connection._reader_task()
        finally:
            waiting.cancel(reason="the stream has ended")

    with trio.move_on_after(CONNECT_TIMEOUT) as waiting:
        # As `wrap_client_stream` of the library, which takes no `WSConnection`.
        nursery.start_soon(read)
        await connection._open_handshake.wait()
        return connection
    reason = "it does not answer as a WebSocket server"
    raise LinkLost(f"{spec.name}: {reason}", server=spec.name, may_have_run=False)


def unwrap_failure(name: str, group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return why there is no connection, unwrapped from the nursery's exception group."""
    reasons = list(group.exceptions)
    rejected = next((reason for reason in reasons if isinstance(reason, ConnectionRejected)), None)
    if rejected is not None:
        return UpgradeRefused(rejected)
    if any(isinstance(reason, _MALFORMED) for reason in reasons):
        return ProtocolViolation(f"{name}: its response to the WebSocket upgrade is invalid", server=name)
    return reasons[0] if len(reasons) == 1 else group


_batch = batch()
_CLOSE_TIMEOUT = 0.25
"""Seconds for the closing handshake, which is optional."""
_MAX_REPLY_BACKLOG = 1 << 20
"""Bytes queued for a server before its own requests are no longer answered."""
_PORTION = 1 << 18
"""Bytes of a large message that are counted at once."""


class WebSocketChannel(RequestMultiplexer):
    """A channel on one WebSocket. Created by `open_websocket`."""

    def __init__(
        self,
        spec: RemoteSpec,
        connection: WebSocketConnection,
        wire: GuardedStream,
    ) -> None:
        super().__init__(spec)
        self._connection = connection
        self._wire = wire
        self._max_frame = spec.max_frame
        self._waiting: deque[tuple[bytes, Exchange | None]] = deque()
        """Frames to be sent."""
        self._sending = False
        """Whether the first of them is being sent."""
        self._backlog = 0
        self._wake = trio.Event()

    async def _transfer(self, nursery: trio.Nursery) -> str:
        nursery.start_soon(self._write)
        nursery.start_soon(keep_alive, self._connection, self._wire)
        return await self._read()

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_request(self, exchange: Exchange, frame: bytes) -> None:
        self._enqueue(frame, exchange)

    def _send_frame(self, frame: bytes) -> None:
        self._enqueue(frame, None)

    def _send_reply(self, frame: bytes) -> None:
        if self._backlog < _MAX_REPLY_BACKLOG:  # the server sends requests but does not read the responses
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
                    return  # the reader reports it
                self._sending = False
                self._waiting.popleft()
                self._backlog -= len(frame)
            self._wake = trio.Event()
            await self._wake.wait()

    # ── frames in ───────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> str:
        try:
            while True:
                line = await self._connection.get_message()
                assert isinstance(line, bytes)
                if len(line) > COUNTED_FROM:
                    await self._receive_large(line)
                    continue
                with _batch:
                    self.receiver.receive(line)
        except ConnectionClosed as error:
            return self._wire.close_reason or self._describe(error.reason)
        except TooMuchStructure as error:
            return f"it sent a message with {error} (raise `maxFrame` in its definition to allow this)"

    async def _receive_large(self, line: bytes) -> None:
        """Handle a message in turns that do not delay other tasks. Raises TooMuchStructure."""
        turns, counter = TurnLimit(), StructureCounter(self._max_frame)
        for start in range(0, len(line), _PORTION):
            counter.feed(line[start : start + _PORTION])
            await turns.pause()
        with _batch:
            self.receiver.receive(line)
        trim_heap_soon()

    def _describe(self, reason: CloseReason | None) -> str:
        code = 1006 if reason is None else reason.code
        detail = "" if reason is None or not reason.reason else shorten(reason.reason)
        if code == 1009:
            return "a message was too long" + (f": {detail} (see `maxFrame`)" if detail else "")
        if code == 1006:
            return "the connection broke"
        return f"it closed the connection with code {code}" + (f": {detail}" if detail else "")


@asynccontextmanager
async def open_websocket(
    spec: RemoteSpec, credentials: Credentials | None = None
) -> AsyncIterator[WebSocketChannel]:
    """Connect; leaving the block fails pending requests and closes the connection. The caller runs it.

    `credentials` sign the upgrade request, unless the definition contains an `Authorization` header. Raises
    LinkLost if the server cannot be reached, NeedsAuth and HttpRefused if it refuses, CannotStart for an
    unusable URL or CA file, and McpdError as `Credentials` does.
    """
    own = any(name.lower() == "authorization" for name in spec.headers)
    async with AsyncExitStack() as stack:
        yield await _open(stack, spec, None if own else credentials, own=own)


async def _open(
    stack: AsyncExitStack, spec: RemoteSpec, credentials: Credentials | None, *, own: bool
) -> WebSocketChannel:
    """Connect, and once more with newer credentials if the server refuses those of the first attempt."""
    url = re.sub("^ws", "http", spec.url)
    repeats = 0
    while True:
        signature = await signature_for(credentials, "GET", url)
        try:
            channel = await stack.enter_async_context(_connect_once(spec, signature))
        except UpgradeRefused as refused:
            refusal = Refusal(refused.status, refused.headers, signature, repeats)
            is_about_access = refused.status in (UNAUTHORIZED, FORBIDDEN)
            if credentials is None or not is_about_access or repeats == MAX_REPEATS:
                raise refused.to_error(spec.name, refusal, credentials, own=own) from None
            if not await credentials.refused(refusal):
                raise refused.to_error(spec.name, refusal, credentials, own=own) from None
        else:
            signature.token.was_accepted = True
            return channel
        repeats += 1


@asynccontextmanager
async def _connect_once(spec: RemoteSpec, signature: Signature) -> AsyncIterator[WebSocketChannel]:
    stream = await connect(spec)
    wire = GuardedStream(stream, spec.timeouts.write, spec.max_frame)
    channel: WebSocketChannel | None = None
    try:
        async with trio.open_nursery() as nursery:
            connection = await upgrade(spec, nursery, wire, signature)
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
            raise unwrap_failure(spec.name, group) from None
        _, others = group.split(CONNECTION_ENDED)
        if others is not None:
            raise others from None
    finally:
        await trio.aclose_forcefully(stream)  # trio-websocket does not always close it
