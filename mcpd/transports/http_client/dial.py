"""Opening a byte stream to the origin of a URL: directly or through a proxy, with TLS for `https`."""

from __future__ import annotations

import base64
import socket
import ssl
from urllib.parse import unquote

import attrs
import httpx
import trio

from mcpd.wire.http1 import BadResponse, Http1Response

CONNECT_TIMEOUT = 10.0
SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
"""A connection that drops packets is detected within 35 s; the kernel's default is two hours."""

STREAM_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What trio streams raise when they fail."""


@attrs.frozen
class Proxy:
    """An HTTP proxy. Its credentials appear in no message."""

    host: str
    port: int
    tls: bool
    authorization: bytes
    """The value of `Proxy-Authorization`; may be empty."""

    @classmethod
    def from_url(cls, url: str) -> Proxy:
        """Raises ValueError if the URL is invalid or the proxy is of another kind."""
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"unsupported proxy type {parsed.scheme!r}; use http or https")
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        return cls(
            parsed.raw_host.decode("ascii"), port, parsed.scheme == "https", basic_authorization(parsed)
        )

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port}"


def basic_authorization(url: httpx.URL) -> bytes:
    """Return the `Authorization` value for the user and password of a URL; empty if there are none."""
    if not url.userinfo:
        return b""
    return b"Basic " + base64.b64encode(unquote(url.userinfo.decode()).encode())


class Dialer:
    """Opens connections to one origin."""

    def __init__(self, url: httpx.URL, context: ssl.SSLContext | None, proxy: Proxy | None) -> None:
        self.proxy = proxy
        self.context = context if url.scheme == "https" else None
        self._host = url.raw_host.decode("ascii")  # an internationalized name in its ASCII form
        self._port = url.port or (443 if url.scheme == "https" else 80)

    @property
    def is_plain(self) -> bool:
        """Whether its streams are plain sockets, with no TLS to the server or the proxy."""
        return self.context is None and (self.proxy is None or not self.proxy.tls)

    @property
    def forward_proxy(self) -> Proxy | None:
        """The proxy that must receive full URLs, because it reads the requests."""
        return self.proxy if self.context is None else None

    async def connect(self) -> trio.abc.Stream:
        """Return a stream that the caller closes. Raises httpx.ConnectError, ConnectTimeout, ProxyError."""
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                if self.proxy is None:
                    stream: trio.abc.Stream = await _open_tcp(self._host, self._port)
                else:
                    stream = await self._connect_proxy(self.proxy)
                if self.context is None:
                    return stream
                return await start_tls(stream, self._host, self.context)
        except trio.TooSlowError as error:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except STREAM_ERRORS as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error

    async def _connect_proxy(self, proxy: Proxy) -> trio.abc.Stream:
        try:
            stream: trio.abc.Stream = await _open_tcp(proxy.host, proxy.port)
            if proxy.tls:
                stream = await start_tls(stream, proxy.host, ssl.create_default_context())
        except STREAM_ERRORS as error:
            raise httpx.ProxyError(f"{proxy} is unreachable") from error
        if self.context is not None:
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
        response = Http1Response("HEAD")  # a response without a body
        try:
            await stream.send_all(b"\r\n".join(request) + b"\r\n\r\n")
            while not response.complete:
                data = await stream.receive_some(1)  # must not consume bytes of the tunnel
                if not data:
                    response.end()
                response.feed(bytes(data))
        except BadResponse as error:
            raise httpx.ProxyError(f"{proxy} sent an invalid response: {error}") from error
        except STREAM_ERRORS as error:
            raise httpx.ProxyError(f"{proxy} closed the connection") from error
        if not 200 <= response.status < 300:
            reason = response.reason.decode("latin-1")
            raise httpx.ProxyError(f"{proxy} refused: HTTP {response.status} {reason}".rstrip())


async def _open_tcp(host: str, port: int) -> trio.SocketStream:
    stream = await trio.open_tcp_stream(host, port)
    for option in SOCKET_OPTIONS:
        stream.setsockopt(*option)
    return stream


async def start_tls(stream: trio.abc.Stream, host: str, context: ssl.SSLContext) -> trio.abc.Stream:
    """Return the stream with TLS on it. Closes the stream if that fails."""
    guarded = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await guarded.do_handshake()
    except BaseException:
        _close(stream)
        raise
    return guarded


def socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType:
    """Return the socket under a stream."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    assert isinstance(stream, trio.SocketStream)
    return stream.socket


def _close(stream: trio.abc.Stream) -> None:
    socket_of(stream).close()
