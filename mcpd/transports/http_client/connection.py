"""One persistent HTTP/1.1 connection to a server: a request, its response, then the next request."""

from __future__ import annotations

import enum
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httpx
import trio

from mcpd.support.pipe_reader import LINGER, is_readable, traffic, unwatch, watch
from mcpd.support.suspend_detection import boottime
from mcpd.transports.http_client.dial import STREAM_ERRORS, socket_of
from mcpd.wire.http1 import BadResponse, Http1Response

MAX_JOINED_BODY = 1 << 16
"""Larger bodies are sent separately from the headers."""
_WRITE_TIMEOUT = 30.0
_KEEPALIVE_EXPIRY = 60.0
"""Seconds an idle connection is kept; most servers and proxies close it later than that."""
_READ_SMALL, _READ_LARGE = 1 << 16, 1 << 20

OnOutcome = Callable[[httpx.Response | httpx.TransportError], None]
Abort = Callable[[], None]


class ConnectionState(enum.Enum):
    """The states of a connection: NEW → ACTIVE ⇄ IDLE, and CLOSED from any of them."""

    NEW = "new"
    ACTIVE = "active"
    """A request is being sent, or its response received."""
    IDLE = "idle"
    """Kept open for the next request."""
    CLOSED = "closed"


class NothingSent(Exception):
    """The connection was closed before any byte of the request was sent."""


class HttpConnection:
    """One keep-alive connection. Start a request only while it is NEW or IDLE.

    `return_to_pool` is called when a response is complete and the connection can be used again.
    """

    def __init__(self, stream: trio.abc.Stream, return_to_pool: Callable[[HttpConnection], None]) -> None:
        self.state = ConnectionState.NEW
        self._stream = stream
        self._return_to_pool = return_to_pool
        self._socket = socket_of(stream)
        self._is_plain = isinstance(stream, trio.SocketStream)
        self.fd = self._socket.fileno()
        self._expires = 0.0
        self._read_size = _READ_SMALL
        self._on_outcome: OnOutcome | None = None
        self._response = Http1Response()
        self._sent_at = 0.0
        self._last_was_fast = False
        """Whether the last response came so fast that polling for the next one pays off."""

    def is_usable(self) -> bool:
        """Whether a request can be sent. A readable idle connection was closed, or is out of step."""
        idle = self.state is ConnectionState.IDLE
        return idle and boottime() < self._expires and not is_readable(self.fd)

    def close(self) -> None:
        """Close the socket immediately, without a TLS shutdown."""
        if self._on_outcome is not None:
            self._on_outcome = None
            unwatch(self)
        self.state = ConnectionState.CLOSED
        self._socket.close()

    def __repr__(self) -> str:
        return f"<HttpConnection fd={self.fd} {self.state.value}>"

    # ── a request without a task ────────────────────────────────────────────────────────────────

    def send_with_callback(self, method: str, request: bytes, then: OnOutcome) -> Abort:
        """As `ConnectionPool.send_with_callback`. Raises NothingSent, also if not all can be sent at once."""
        self.state = ConnectionState.ACTIVE
        try:
            sent = os.write(self.fd, request)
        except OSError as error:
            raise NothingSent(str(error)) from error
        if sent < len(request):  # the server ignores half a request when the connection ends
            raise NothingSent("not all at once")
        self._response, self._on_outcome = Http1Response(method), then
        watch(self)
        self._sent_at = time.monotonic()
        if self._last_was_fast:
            traffic.more_expected = True

        def abort() -> None:
            if self._on_outcome is then:  # otherwise the connection may serve another request now
                self.close()

        return abort

    def on_readable(self) -> bool:
        """Read a part of the response: its head, and usually all of it. Called by the reader hub."""
        then, response = self._on_outcome, self._response
        if then is None:
            return False
        try:
            parts = self._parse(self._read_now(), response)
        except BlockingIOError:
            return True
        except (OSError, httpx.TransportError) as error:
            self.close()
            failed = error if isinstance(error, httpx.TransportError) else httpx.ReadError(str(error))
            failed.__cause__ = failed.__cause__ or error
            then(failed)
            return False
        if not response.status:
            return True
        self._last_was_fast = time.monotonic() - self._sent_at < LINGER
        self._on_outcome = None
        unwatch(self)
        if response.complete:
            self._response_closed(response)
        then(_make_response(response, HttpBody(self, response, parts)))
        return self._on_outcome is not None  # the next request may have been sent from within

    async def send_request(self, method: str, head: bytes, body: bytes) -> httpx.Response:
        """Return the response as soon as its head has arrived. Raises NothingSent, httpx.TransportError."""
        response, self.state = Http1Response(method), ConnectionState.ACTIVE
        try:
            if len(body) <= MAX_JOINED_BODY:
                await self._send(head + body)
            else:
                await self._send(head)
                await self._send(memoryview(body))
            parts = await self.receive_body_parts(response)
            while not response.status:
                parts = await self.receive_body_parts(response)
        except BaseException:
            self.close()
            raise
        return _make_response(response, HttpBody(self, response, parts))

    async def receive_body_parts(self, response: Http1Response) -> list[bytes]:
        """Read once. At the end of the response, the connection returns to the pool or is closed."""
        parts = self._parse(await self._receive(), response)
        if response.complete:
            self._response_closed(response)
        return parts

    def _parse(self, data: bytes, response: Http1Response) -> list[bytes]:
        try:
            if data:
                return response.feed(data)
            response.end()
        except BadResponse as error:
            self.close()
            raise httpx.RemoteProtocolError(str(error)) from error
        return []

    def _response_closed(self, response: Http1Response) -> None:
        if not response.reusable:
            self.close()
            return
        kept = _KEEPALIVE_EXPIRY
        if response.keep_alive_timeout is not None:
            kept = min(kept, response.keep_alive_timeout - 1)
        self._expires, self.state = boottime() + kept, ConnectionState.IDLE
        self._return_to_pool(self)

    # ── bytes ───────────────────────────────────────────────────────────────────────────────────

    async def _send(self, data: bytes | memoryview) -> None:
        """Send the data. A broken pipe is ignored: the server may have responded before it closed."""
        sent = 0
        if self._is_plain:  # immediately, without waiting for the scheduler
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                pass
            except OSError as error:
                if isinstance(data, bytes):  # this includes the head, so the server has not seen the request
                    raise NothingSent(str(error)) from error
                return
        if sent < len(data):
            try:
                with trio.fail_after(_WRITE_TIMEOUT):
                    await self._stream.send_all(memoryview(data)[sent:])
            except trio.TooSlowError as error:
                message = f"the server did not read the request within {_WRITE_TIMEOUT:g} s"
                raise httpx.WriteTimeout(message) from error
            except STREAM_ERRORS:
                pass

    async def _receive(self) -> bytes:
        try:
            if self._is_plain:
                while True:
                    await trio.lowlevel.wait_readable(self.fd)
                    try:
                        return self._read_now()
                    except BlockingIOError:
                        continue
            return bytes(await self._stream.receive_some(_READ_SMALL))
        except STREAM_ERRORS as error:
            self.close()
            raise httpx.ReadError(str(error) or type(error).__name__) from error

    def _read_now(self) -> bytes:
        data = os.read(self.fd, self._read_size)
        self._read_size = _READ_LARGE if len(data) == self._read_size else _READ_SMALL
        return data


def _make_response(response: Http1Response, body: HttpBody) -> httpx.Response:
    return httpx.Response(
        response.status,
        headers=response.headers,
        stream=body,
        extensions={"http_version": b"HTTP/1.1", "reason_phrase": response.reason},
    )


class HttpBody(httpx.AsyncByteStream):
    """A response body as it arrives, still compressed. Closing it early closes the connection."""

    def __init__(self, connection: HttpConnection, response: Http1Response, parts: list[bytes]) -> None:
        self._connection = connection
        self._response = response
        self._parts = deque(parts)

    def complete(self) -> bytes | None:
        """Return the whole body if it has already arrived."""
        return b"".join(self._parts) if self._response.complete else None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._response.complete:
                raise StopAsyncIteration
            try:
                self._parts.extend(await self._connection.receive_body_parts(self._response))
            except BaseException:
                self._connection.close()
                raise
        return self._parts.popleft()

    async def aclose(self) -> None:
        if not self._response.complete:
            self._connection.close()
