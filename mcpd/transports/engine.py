"""What carries httpx's requests to one origin: warm HTTP/1.1 connections, a request at a time on each.

httpx's documented extension point is `transport=`, and this is one. Its own engine loses slots of its pool to
cancellation under trio, and costs 300 µs a request, most of it in a general parser and in locks that a
connection used by one task at a time does not need; this one costs 60.
"""

from __future__ import annotations

import functools
import os
import re
import select
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httpx
import trio

from mcpd.support.naps import now
from mcpd.support.reader import LINGER, traffic, unwatch, watch
from mcpd.transports.dial import BROKEN, Dialer, Proxy, beneath
from mcpd.wire.http1 import BadResponse, Response

_WRITE_TIMEOUT = 30.0
_KEEP_IDLE = 64
"""Idle connections kept. What a burst opened beyond that is closed again."""
_IDLE_FOR = 60.0
"""Seconds; most servers and proxies close what is idle for longer."""
_READ_SMALL, _READ_LARGE = 1 << 16, 1 << 20
_REMEMBERED = 256
"""Heads of requests; most are the same again and again."""
_JOINED = 1 << 16
"""A body up to this leaves with its headers in one write."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = re.compile(rb"[\r\n\x00]")


Then = Callable[[httpx.Response | httpx.TransportError], None]
HangUp = Callable[[], None]


class Engine(httpx.AsyncBaseTransport):
    """Requests to the origin of `url`, and to no other. Who uses it bounds how many there are at once: a
    connection is opened whenever none is idle.

    A request is sent once. Only when a connection that was kept turns out to be closed before a byte of the
    request has left, another is taken.
    """

    def __init__(self, url: httpx.URL, context: ssl.SSLContext | None, proxy: Proxy | None) -> None:
        self._origin = _origin(url)
        self._dialer = Dialer(url, context, proxy)
        self._head = functools.lru_cache(_REMEMBERED)(_head)
        self._idle: list[_Connection] = []
        self._closed = False
        self.opened = 0
        """Connections so far."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if _origin(request.url) != self._origin:
            raise httpx.UnsupportedProtocol("a request to another origin", request=request)
        head, body = self._bytes(request)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                try:
                    return await connection.ask(request.method, head, body)
                except _NothingLeft:
                    pass
            connection.close()
        connection = _Connection(await self._dialer.connect(), self._give_back)
        self.opened += 1
        try:
            return await connection.ask(request.method, head, body)
        except _NothingLeft as error:
            raise httpx.ConnectError(str(error)) from error

    def begin(self, request: httpx.Request, then: Then) -> HangUp | None:
        """Send a request at once, if a connection waits for one that can take all of it: without a task, and
        without a trip through the scheduler. None: nothing was sent, ask as usual.

        `then` is called in the task of the reader hub, with the response once its head is there, or with
        how it failed; not after the function that is returned, which hangs up. It must not block or raise.
        """
        if not self._dialer.is_plain or _origin(request.url) != self._origin:
            return None
        head, body = self._bytes(request)
        while self._idle and len(body) <= _JOINED:
            connection = self._idle.pop()
            if connection.is_usable():
                try:
                    return connection.begin(request.method, head + body, then)
                except _NothingLeft:
                    pass
            connection.close()
        return None

    def _bytes(self, request: httpx.Request) -> tuple[bytes, bytes]:
        # A `ByteStream`, which is all that is made here, has `read` look it up in an abstract base class.
        body = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else request.read()
        head, framed = self._head(self._first_line(request), tuple(request.headers.raw))
        if not framed and (body or request.method == "POST"):
            head += b"Content-Length: %d\r\n\r\n" % len(body)
        else:
            head += b"\r\n"
        return head, body

    def _first_line(self, request: httpx.Request) -> bytes:
        url, method = request.url, request.method.encode("ascii")
        proxy = self._dialer.forwards
        if proxy is None:
            return b"%b %b HTTP/1.1" % (method, url.raw_path)
        line = b"%b %b://%b%b HTTP/1.1" % (method, url.raw_scheme, url.netloc, url.raw_path)
        if not proxy.authorization:
            return line
        return line + b"\r\nProxy-Authorization: " + proxy.authorization

    def _give_back(self, connection: _Connection) -> None:
        """Keep what can be used again. What the server has closed meanwhile lies deepest, and is let go."""
        while self._idle and not self._idle[0].is_usable():
            self._idle.pop(0).close()
        if self._closed or len(self._idle) >= _KEEP_IDLE:
            connection.close()
        else:
            self._idle.append(connection)

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


# ── one connection ──────────────────────────────────────────────────────────────────────────────────


class _NothingLeft(Exception):
    """The connection was closed before a byte of the request left."""


class _Connection:
    """One stream; `ask` or `begin` is called when the last response is over, which `give_back` has told."""

    def __init__(self, stream: trio.abc.Stream, give_back: Callable[[_Connection], None]) -> None:
        self._stream = stream
        self._give_back = give_back
        self._socket = beneath(stream)
        self._plain = isinstance(stream, trio.SocketStream)
        self.fd = self._socket.fileno()
        self._expires = 0.0
        self._size = _READ_SMALL
        self._then: Then | None = None
        self._begun = Response()
        self._begun_at = 0.0
        self._prompt = False
        """Whether the last answer came so soon that looking on for the next is worth it."""

    def is_usable(self) -> bool:
        """An idle connection on which something can be read has been closed, or is out of step."""
        return now() < self._expires and not _readable(self.fd)

    def close(self) -> None:
        """At once, without a word."""
        if self._then is not None:
            self._then = None
            unwatch(self)
        self._socket.close()

    # ── without a task ──────────────────────────────────────────────────────────────────────────

    def begin(self, method: str, request: bytes, then: Then) -> HangUp:
        """See `Engine.begin`. Raises _NothingLeft, also when not all of it can leave at once."""
        try:
            sent = os.write(self.fd, request)
        except OSError as error:
            raise _NothingLeft(str(error)) from error
        if sent < len(request):  # never seen; half a request is none, when the connection ends in it
            raise _NothingLeft("not all at once")
        self._begun, self._then = Response(method), then
        watch(self)
        self._begun_at = time.monotonic()
        if self._prompt:
            traffic.more_expected = True

        def hang_up() -> None:
            if self._then is then:  # else it is over, and the connection may be another request's
                self.close()

        return hang_up

    def on_readable(self) -> bool:
        """Part of the response: its head, most of the time all of it."""
        then, response = self._then, self._begun
        if then is None:
            return False
        try:
            parts = self._take(self._read_now(), response)
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
        self._prompt = time.monotonic() - self._begun_at < LINGER
        self._then = None
        unwatch(self)
        if response.complete:
            self._over(response)
        then(_httpx(response, Body(self, response, parts)))
        return self._then is not None  # the next request may have been sent from within

    async def ask(self, method: str, head: bytes, body: bytes) -> httpx.Response:
        """The response as soon as its head is there. Raises _NothingLeft, httpx.TransportError."""
        response = Response(method)
        try:
            if len(body) <= _JOINED:
                await self._send(head + body)
            else:
                await self._send(head)
                await self._send(memoryview(body))
            parts = await self.more(response)
            while not response.status:
                parts = await self.more(response)
        except BaseException:
            self.close()
            raise
        return _httpx(response, Body(self, response, parts))

    async def more(self, response: Response) -> list[bytes]:
        """Read once. The connection is given back with the end of the response, or closed."""
        parts = self._take(await self._receive(), response)
        if response.complete:
            self._over(response)
        return parts

    def _take(self, data: bytes, response: Response) -> list[bytes]:
        try:
            if data:
                return response.feed(data)
            response.end()
        except BadResponse as error:
            self.close()
            raise httpx.RemoteProtocolError(str(error)) from error
        return []

    def _over(self, response: Response) -> None:
        if not response.reusable:
            self.close()
            return
        kept = _IDLE_FOR if response.idle_for is None else min(response.idle_for - 1, _IDLE_FOR)
        self._expires = now() + kept
        self._give_back(self)

    # ── bytes ───────────────────────────────────────────────────────────────────────────────────

    async def _send(self, data: bytes | memoryview) -> None:
        """What does not arrive any more is no error here: the server may have answered before it closed."""
        sent = 0
        if self._plain:  # at once, without a trip through the scheduler
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                pass
            except OSError as error:
                if isinstance(data, bytes):  # with the head: the server cannot know of it
                    raise _NothingLeft(str(error)) from error
                return
        if sent < len(data):
            try:
                with trio.fail_after(_WRITE_TIMEOUT):
                    await self._stream.send_all(memoryview(data)[sent:])
            except trio.TooSlowError as error:
                words = f"the server has not read its request for {_WRITE_TIMEOUT:g} s"
                raise httpx.WriteTimeout(words) from error
            except BROKEN:
                pass

    async def _receive(self) -> bytes:
        try:
            if self._plain:
                while True:
                    await trio.lowlevel.wait_readable(self.fd)
                    try:
                        return self._read_now()
                    except BlockingIOError:
                        continue
            return bytes(await self._stream.receive_some(_READ_SMALL))
        except BROKEN as error:
            self.close()
            raise httpx.ReadError(str(error) or type(error).__name__) from error

    def _read_now(self) -> bytes:
        data = os.read(self.fd, self._size)
        self._size = _READ_LARGE if len(data) == self._size else _READ_SMALL
        return data


def _httpx(response: Response, body: Body) -> httpx.Response:
    return httpx.Response(
        response.status,
        headers=response.headers,
        stream=body,
        extensions={"http_version": b"HTTP/1.1", "reason_phrase": response.reason},
    )


class Body(httpx.AsyncByteStream):
    """A response's body, undecoded, as it comes. Closed early, it takes its connection with it."""

    def whole(self) -> bytes | None:
        """All of it, when it is there already."""
        return b"".join(self._parts) if self._response.complete else None

    def __init__(self, connection: _Connection, response: Response, parts: list[bytes]) -> None:
        self._connection = connection
        self._response = response
        self._parts = deque(parts)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._response.complete:
                raise StopAsyncIteration
            try:
                self._parts.extend(await self._connection.more(self._response))
            except BaseException:
                self._connection.close()
                raise
        return self._parts.popleft()

    async def aclose(self) -> None:
        if not self._response.complete:
            self._connection.close()


def _head(first: bytes, raw: tuple[tuple[bytes, bytes], ...]) -> tuple[bytes, bool]:
    """The request line and the headers, but for the blank line; whether they say how long the body is."""
    lines = [first]
    framed = False
    for name, value in raw:
        if not _TOKEN.fullmatch(name):
            raise httpx.LocalProtocolError(f"not the name of a header: {name!r}")
        framed = framed or name.lower() == b"content-length"
        lines.append(b"%b: %b" % (name, value))
    head = b"\r\n".join(lines)
    if len(_LINE_ENDS.findall(head)) != 2 * (len(raw) + first.count(b"\n")):
        raise httpx.LocalProtocolError("a header with a line break in it")
    return head + b"\r\n", framed


def _origin(url: httpx.URL) -> tuple[bytes, bytes, int | None]:
    return url.raw_scheme, url.raw_host, url.port


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
