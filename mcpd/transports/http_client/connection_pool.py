"""The transport under httpx: keep-alive HTTP/1.1 connections to one origin.

`HttpClient` builds requests with httpx but passes them directly to this pool, so `httpx.AsyncClient.send`
is not involved. The reasons are measured: httpx's own httpcore 1.0 loses pool slots when a request is
cancelled under trio, and costs 300 µs per request instead of 60.
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
"""Idle connections that are kept; further ones are closed."""
_MAX_CACHED_HEADS = 256
"""Serialized request heads; most are repeated."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = re.compile(rb"[\r\n\x00]")


class ConnectionPool(httpx.AsyncBaseTransport):
    """Sends requests to the origin of `url` only. A connection is opened whenever none is idle: the caller
    limits the number of concurrent requests.

    A request is sent once. Only if a kept connection was closed before any byte of it was sent, the request
    is sent on another connection.
    """

    def __init__(self, url: httpx.URL, context: ssl.SSLContext | None, proxy: Proxy | None) -> None:
        self._origin = _origin(url)
        self._dialer = Dialer(url, context, proxy)
        self._head = functools.lru_cache(_MAX_CACHED_HEADS)(_serialize_head)
        self._idle: list[HttpConnection] = []
        self._closed = False
        self.opened = 0
        """Number of connections opened so far."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if _origin(request.url) != self._origin:
            raise httpx.UnsupportedProtocol("the request is for another origin", request=request)
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
        """Send a request without a task, if an idle connection can take all of it immediately.

        Returns None if nothing was sent; use `handle_async_request` then. `then` is called in the reader hub
        with the response, once its head has arrived, or with the error; it must not block or raise. The
        returned function aborts the request; `then` is not called after that.
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
        """Keep a connection for reuse. The oldest ones, which the server may have closed, are dropped."""
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
    """Return the request line and headers without the final blank line, and whether they state a length."""
    lines = [first]
    framed = False
    for name, value in raw:
        if not _TOKEN.fullmatch(name):
            raise httpx.LocalProtocolError(f"invalid header name: {name!r}")
        framed = framed or name.lower() == b"content-length"
        lines.append(b"%b: %b" % (name, value))
    head = b"\r\n".join(lines)
    if len(_LINE_ENDS.findall(head)) != 2 * (len(raw) + first.count(b"\n")):
        raise httpx.LocalProtocolError("a header contains a line break")
    return head + b"\r\n", framed


def _origin(url: httpx.URL) -> tuple[bytes, bytes, int | None]:
    return url.raw_scheme, url.raw_host, url.port
