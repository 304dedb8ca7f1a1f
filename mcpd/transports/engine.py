"""What carries httpx's requests to one origin: warm HTTP/1.1 connections, a request at a time on each.

httpx's documented extension point is `transport=`, and this is one. Its own engine loses slots of its pool to
cancellation under trio, and costs 300 µs a request, most of it in a general parser and in locks that a
connection used by one task at a time does not need; this one costs 60.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from urllib.parse import unquote

import attrs
import httpx
import trio

from mcpd.support.naps import now
from mcpd.support.reader import LINGER, traffic, unwatch, watch
from mcpd.wire.http1 import BadResponse, Response

CONNECT_TIMEOUT = 10.0
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

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
"""A link that drops packets is noticed within 35 s. By default the kernel takes two hours."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = re.compile(rb"[\r\n\x00]")
_BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@attrs.frozen
class Proxy:
    """A proxy for HTTP. Nothing of its credentials is in any message."""

    host: str
    port: int
    tls: bool
    authorization: bytes
    """The value of `Proxy-Authorization`, or nothing."""

    @classmethod
    def at(cls, url: str) -> Proxy:
        """The proxy that a URL names. Raises ValueError when it is of another kind, or no URL."""
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"a proxy of the kind {parsed.scheme!r}; http and https are supported")
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        return cls(parsed.host, port, parsed.scheme == "https", basic(parsed))

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port}"


def basic(url: httpx.URL) -> bytes:
    """What the user and password in a URL make of an `Authorization` header; nothing when there are none."""
    if not url.userinfo:
        return b""
    return b"Basic " + base64.b64encode(unquote(url.userinfo.decode()).encode())


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
        self._host = url.host
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._context = context if url.scheme == "https" else None
        self._proxy = proxy
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
        connection = _Connection(await self._connect(), self._give_back)
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
        guarded = self._context is not None or (self._proxy is not None and self._proxy.tls)
        if guarded or _origin(request.url) != self._origin:
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
        if self._proxy is None or self._context is not None:
            return b"%b %b HTTP/1.1" % (method, url.raw_path)
        line = b"%b %b://%b%b HTTP/1.1" % (method, url.raw_scheme, url.netloc, url.raw_path)
        if not self._proxy.authorization:
            return line
        return line + b"\r\nProxy-Authorization: " + self._proxy.authorization

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

    # ── connecting ──────────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> trio.abc.Stream:
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                if self._proxy is None:
                    stream: trio.abc.Stream = await _open(self._host, self._port)
                else:
                    stream = await self._connect_proxy(self._proxy)
                if self._context is None:
                    return stream
                return await _guard(stream, self._host, self._context)
        except trio.TooSlowError as error:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except _BROKEN as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error

    async def _connect_proxy(self, proxy: Proxy) -> trio.abc.Stream:
        try:
            stream: trio.abc.Stream = await _open(proxy.host, proxy.port)
            if proxy.tls:
                stream = await _guard(stream, proxy.host, ssl.create_default_context())
        except _BROKEN as error:
            raise httpx.ProxyError(f"{proxy} cannot be used") from error
        if self._context is not None:
            try:
                await self._tunnel(stream, proxy)
            except BaseException:
                _close(stream)
                raise
        return stream

    async def _tunnel(self, stream: trio.abc.Stream, proxy: Proxy) -> None:
        host = f"[{self._host}]" if ":" in self._host else self._host
        target = f"{host}:{self._port}".encode("ascii")
        request = [b"CONNECT %b HTTP/1.1" % target, b"Host: " + target]
        if proxy.authorization:
            request.append(b"Proxy-Authorization: " + proxy.authorization)
        response = Response("HEAD")  # what follows the head is the tunnel, or of no interest
        try:
            await stream.send_all(b"\r\n".join(request) + b"\r\n\r\n")
            while not response.complete:
                data = await stream.receive_some(1)  # not a byte of what the tunnel carries
                if not data:
                    response.end()
                response.feed(bytes(data))
        except BadResponse as error:
            raise httpx.ProxyError(f"{proxy} does not answer as one: {error}") from error
        except _BROKEN as error:
            raise httpx.ProxyError(f"{proxy} has hung up") from error
        if not 200 <= response.status < 300:
            reason = response.reason.decode("latin-1")
            raise httpx.ProxyError(f"{proxy} refuses: HTTP {response.status} {reason}".rstrip())


async def _open(host: str, port: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream(host, port)
    for option in KEEPALIVE:
        stream.setsockopt(*option)
    return stream


async def _guard(stream: trio.abc.Stream, host: str, context: ssl.SSLContext) -> trio.abc.Stream:
    guarded = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await guarded.do_handshake()
    except BaseException:
        _close(stream)
        raise
    return guarded


# ── one connection ──────────────────────────────────────────────────────────────────────────────────


class _NothingLeft(Exception):
    """The connection was closed before a byte of the request left."""


class _Connection:
    """One stream; `ask` or `begin` is called when the last response is over, which `give_back` has told."""

    def __init__(self, stream: trio.abc.Stream, give_back: Callable[[_Connection], None]) -> None:
        self._stream = stream
        self._give_back = give_back
        self._socket = _beneath(stream)
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
            except _BROKEN:
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
        except _BROKEN as error:
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


def _beneath(stream: trio.abc.Stream) -> trio.socket.SocketType:
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    assert isinstance(stream, trio.SocketStream)
    return stream.socket


def _close(stream: trio.abc.Stream) -> None:
    _beneath(stream).close()


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
