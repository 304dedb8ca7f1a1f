"""What carries httpx's requests to one origin: warm HTTP/1.1 connections, a request at a time on each.

httpx's documented extension point is `transport=`, and this is one. Its own engine loses slots of its pool to
cancellation under trio, and costs 300 µs a request, most of it in a general parser and in locks that a
connection used by one task at a time does not need; this one costs 60.
"""

from __future__ import annotations

import functools
import re
import ssl

import httpx

from mcpd.transports.http_client.connection import (
    MAX_JOINED_BODY,
    Abort,
    HttpConnection,
    NothingSent,
    OnOutcome,
)
from mcpd.transports.http_client.dial import Dialer, Proxy

_MAX_IDLE = 64
"""Idle connections kept. What a burst opened beyond that is closed again."""
_MAX_CACHED_HEADS = 256
"""Heads of requests; most are the same again and again."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = re.compile(rb"[\r\n\x00]")


class ConnectionPool(httpx.AsyncBaseTransport):
    """Requests to the origin of `url`, and to no other. Who uses it bounds how many there are at once: a
    connection is opened whenever none is idle.

    A request is sent once. Only when a connection that was kept turns out to be closed before a byte of the
    request has left, another is taken.
    """

    def __init__(self, url: httpx.URL, context: ssl.SSLContext | None, proxy: Proxy | None) -> None:
        self._origin = _origin(url)
        self._dialer = Dialer(url, context, proxy)
        self._head = functools.lru_cache(_MAX_CACHED_HEADS)(_serialize_head)
        self._idle: list[HttpConnection] = []
        self._closed = False
        self.opened = 0
        """Connections so far."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if _origin(request.url) != self._origin:
            raise httpx.UnsupportedProtocol("a request to another origin", request=request)
        head, body = self._serialize(request)
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                try:
                    return await connection.send_request(request.method, head, body)
                except NothingSent:
                    pass
            connection.close()
        connection = HttpConnection(await self._dialer.connect(), self._return)
        self.opened += 1
        try:
            return await connection.send_request(request.method, head, body)
        except NothingSent as error:
            raise httpx.ConnectError(str(error)) from error

    def send_with_callback(self, request: httpx.Request, then: OnOutcome) -> Abort | None:
        """Send a request at once, if a connection waits for one that can take all of it: without a task, and
        without a trip through the scheduler. None: nothing was sent, ask as usual.

        `then` is called in the task of the reader hub, with the response once its head is there, or with
        how it failed; not after the function that is returned, which hangs up. It must not block or raise.
        """
        if not self._dialer.is_plain or _origin(request.url) != self._origin:
            return None
        head, body = self._serialize(request)
        while self._idle and len(body) <= MAX_JOINED_BODY:
            connection = self._idle.pop()
            if connection.is_usable():
                try:
                    return connection.send_with_callback(request.method, head + body, then)
                except NothingSent:
                    pass
            connection.close()
        return None

    def _serialize(self, request: httpx.Request) -> tuple[bytes, bytes]:
        # A `ByteStream`, which is all that is made here, has `read` look it up in an abstract base class.
        body = b"".join(request.stream) if isinstance(request.stream, httpx.ByteStream) else request.read()
        head, framed = self._head(self._request_line(request), tuple(request.headers.raw))
        if not framed and (body or request.method == "POST"):
            head += b"Content-Length: %d\r\n\r\n" % len(body)
        else:
            head += b"\r\n"
        return head, body

    def _request_line(self, request: httpx.Request) -> bytes:
        url, method = request.url, request.method.encode("ascii")
        proxy = self._dialer.forward_proxy
        if proxy is None:
            return b"%b %b HTTP/1.1" % (method, url.raw_path)
        line = b"%b %b://%b%b HTTP/1.1" % (method, url.raw_scheme, url.netloc, url.raw_path)
        if not proxy.authorization:
            return line
        return line + b"\r\nProxy-Authorization: " + proxy.authorization

    def _return(self, connection: HttpConnection) -> None:
        """Keep what can be used again. What the server has closed meanwhile lies deepest, and is let go."""
        while self._idle and not self._idle[0].is_usable():
            self._idle.pop(0).close()
        if self._closed or len(self._idle) >= _MAX_IDLE:
            connection.close()
        else:
            self._idle.append(connection)

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def _serialize_head(first: bytes, raw: tuple[tuple[bytes, bytes], ...]) -> tuple[bytes, bool]:
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
