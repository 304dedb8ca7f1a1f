"""One persistent HTTP/1.1 connection to a loopback address, and why HTTP connections fail."""

from __future__ import annotations

import enum
import os
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import trio

from mcpd.io.reader import LINGER, is_readable, traffic, unwatch, watch
from mcpd.model.text import shorten
from mcpd.process.suspend import boottime
from mcpd.transports.http_client.dial import CONNECT_TIMEOUT, STREAM_ERRORS
from mcpd.wire.http1 import BadResponse, Http1Response

WRITE_TIMEOUT = 30.0
"""Seconds for a server to read a request."""
KEEPALIVE_EXPIRY = 60.0
"""Seconds an idle connection is kept; most servers and proxies close it later than that."""
_READ_SMALL, _READ_LARGE = 1 << 16, 1 << 20
_FEW_PARTS = 64
"""Parts of a body in a read of `_READ_SMALL`; a body in smaller chunks is not worth larger reads."""

OnOutcome = Callable[[httpx.Response | httpx.TransportError], None]
Abort = Callable[[], None]


class HTTPConnectionState(enum.Enum):
    """The states of a connection, as in httpcore: NEW → ACTIVE ⇄ IDLE, and CLOSED from any of them."""

    NEW = "new"
    ACTIVE = "active"
    """A request is being sent, or its response received."""
    IDLE = "idle"
    """Kept open for the next request."""
    CLOSED = "closed"


class NothingSent(Exception):
    """The connection was closed before any byte of the request was sent."""


class HTTP11Connection:
    """One keep-alive connection. Start a request only while it is NEW or available.

    `return_to_pool` is called when a response is complete and the connection can be used again.
    """

    def __init__(self, stream: trio.SocketStream, return_to_pool: Callable[[HTTP11Connection], None]) -> None:
        self.state = HTTPConnectionState.NEW
        self.fd = stream.socket.fileno()
        self._stream = stream
        self._return_to_pool = return_to_pool
        self._expires = 0.0
        self._read_size = _READ_SMALL
        self._on_outcome: OnOutcome | None = None
        self._on_idle_end: Callable[[], None] | None = None
        self._response = Http1Response()
        self._sent_at = 0.0
        self._last_was_fast = False
        """Whether the last response came so fast that polling for the next one pays off."""

    def is_available(self) -> bool:
        """Whether a request can be sent. A readable idle connection was closed, or is out of step."""
        idle = self.state is HTTPConnectionState.IDLE
        return idle and boottime() < self._expires and not is_readable(self.fd)

    def keep(self, seconds: float = KEEPALIVE_EXPIRY) -> None:
        """Make a connection that is open and has no request available."""
        self._expires, self.state = boottime() + seconds, HTTPConnectionState.IDLE

    @property
    def is_watched(self) -> bool:
        """Whether the end of an idle connection is watched for."""
        return self._on_idle_end is not None

    def watch_idle(self, on_end: Callable[[], None]) -> None:
        """Close the idle connection when the server does, and call `on_end`, which must not block."""
        self._on_idle_end = on_end
        watch(self)

    def stop_watching(self) -> None:
        """To be called before a request is sent on a connection that is watched."""
        self._on_idle_end = None
        unwatch(self)

    def close(self) -> None:
        if self._on_outcome is not None or self._on_idle_end is not None:
            self._on_outcome = self._on_idle_end = None
            unwatch(self)
        self.state = HTTPConnectionState.CLOSED
        self._stream.socket.close()

    def __repr__(self) -> str:
        return f"<HTTP11Connection fd={self.fd} {self.state.name}>"

    # ── a request without a task ────────────────────────────────────────────────────────────────

    def send_with_callback(self, method: str, head: bytes, body: bytes, then: OnOutcome) -> Abort:
        """See `ConnectionPool.send_with_callback`. Raises NothingSent, also if a part cannot be sent."""
        if self._send_now(head, body):  # the server ignores half a request when the connection ends
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
            ended = self._on_idle_end
            self.close()
            if ended is not None:
                ended()
            return False
        try:
            parts = self._read_now(response)
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

    # ── a request with a task ───────────────────────────────────────────────────────────────────

    async def send(self, method: str, head: bytes, body: bytes) -> httpx.Response:
        """Return the response as soon as its head has arrived. Raises NothingSent, httpx.TransportError."""
        response, parts = Http1Response(method), list[bytes]()
        try:
            if rest := self._send_now(head, body):
                await self._send_rest(rest)
            while not response.status:
                parts = await self.receive_body_parts(response)
        except BaseException:
            self.close()
            raise
        return _make_response(response, HttpBody(self, response, parts))

    async def receive_body_parts(self, response: Http1Response) -> list[bytes]:
        """Read once. At the end of the response, the connection returns to the pool or is closed."""
        while True:
            await trio.lowlevel.wait_readable(self.fd)
            try:
                parts = self._read_now(response)
            except BlockingIOError:
                continue
            except OSError as error:
                self.close()
                raise httpx.ReadError(str(error)) from error
            if response.complete:
                self._response_closed(response)
            return parts

    def _read_now(self, response: Http1Response) -> list[bytes]:
        data = os.read(self.fd, self._read_size)
        try:
            if not data:
                response.end()
                return []
            parts = response.feed(data)
        except BadResponse as error:
            self.close()
            raise httpx.RemoteProtocolError(str(error)) from error
        is_bulk = len(data) == self._read_size and len(parts) <= _FEW_PARTS
        self._read_size = _READ_LARGE if is_bulk else _READ_SMALL
        return parts

    def _response_closed(self, response: Http1Response) -> None:
        if not response.reusable:
            self.close()
            return
        kept = KEEPALIVE_EXPIRY
        if response.keep_alive_timeout is not None:
            kept = min(kept, response.keep_alive_timeout - 1)
        self.keep(kept)
        self._return_to_pool(self)

    def _send_now(self, head: bytes, body: bytes) -> bytes:
        """Send what the kernel accepts immediately, and return the rest. Raises NothingSent."""
        self.state = HTTPConnectionState.ACTIVE
        try:
            sent = os.writev(self.fd, (head, body))
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise NothingSent(str(error)) from error
        return b"" if sent == len(head) + len(body) else (head + body)[sent:]

    async def _send_rest(self, data: bytes) -> None:
        """Send the data. A broken pipe is ignored: the server may have responded before it closed."""
        try:
            with trio.fail_after(WRITE_TIMEOUT):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            message = f"the server did not read the request within {WRITE_TIMEOUT:g} s"
            raise httpx.WriteTimeout(message) from error
        except STREAM_ERRORS:
            pass


def _make_response(response: Http1Response, body: HttpBody) -> httpx.Response:
    return httpx.Response(
        response.status,
        headers=response.headers,
        stream=body,
        extensions={"http_version": b"HTTP/1.1", "reason_phrase": response.reason},
    )


class HttpBody(httpx.AsyncByteStream):
    """A response body as it arrives, still compressed. Closing it early closes the connection."""

    def __init__(self, connection: HTTP11Connection, response: Http1Response, parts: list[bytes]) -> None:
        self._connection = connection
        self._response = response
        self._parts = deque(parts)

    def complete(self) -> bytes | None:
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


_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons for a response that is not TLS; the last one since OpenSSL 3.2."""


def is_unreachable(error: Exception) -> bool:
    """Return whether there was no connection, so that no other request would be sent either."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.PoolTimeout)


def is_invalid(error: Exception) -> bool:
    """Return whether this request cannot be sent to any server."""
    return isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol)


def describe_error(error: Exception) -> str:
    """Return a readable message for a transport error."""
    if is_invalid(error):
        return f"the request cannot be sent: {shorten(str(error))}"
    if isinstance(error, httpx.ConnectTimeout):
        return f"it cannot be reached: no connection within {CONNECT_TIMEOUT:g} s"
    reason = _os_reason([cause for cause in _causes(error) if isinstance(cause, OSError)])
    if isinstance(error, httpx.ProxyError):  # its message names the proxy
        return f"it cannot be reached: {shorten(str(error))}" + (f": {reason}" if reason else "")
    if tls := next(filter(None, map(_describe_tls_error, _causes(error))), ""):
        return tls
    if isinstance(error, httpx.ConnectError):
        return f"it cannot be reached: {shorten(reason or str(error) or 'connection failed')}"
    return f"the connection broke: {shorten(reason or str(error) or type(error).__name__)}"


def _describe_tls_error(error: BaseException) -> str:
    """Return what is wrong with TLS; empty for another error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its TLS certificate was rejected: {error.verify_message} "
            "(for a private CA, set `caFile` in its definition)"
        )
    if not isinstance(error, ssl.SSLError):
        return ""
    if error.reason in _NO_TLS:
        return "TLS failed: the server does not use TLS (should the URL start with http://?)"
    return f"TLS failed: {error.reason or error}"


def _os_reason(errors: list[OSError]) -> str:
    """Return the system's message for the innermost error; others contain addresses the user never wrote."""
    for error in reversed(errors):
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno)
    return next((error.strerror for error in reversed(errors) if error.strerror), "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = [error]
    while seen and len(seen) < 20:
        cause = seen.pop()
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            seen += cause.exceptions
        following = cause.__cause__ or cause.__context__
        if following is not None:
            seen.append(following)
