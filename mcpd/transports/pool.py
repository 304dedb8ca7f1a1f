"""The only place that builds an HTTP client: one for each server, its connections kept warm.

httpx's own engine loses its slots when queued requests are cancelled under trio, and slows down
sharply above 32 requests in flight. Its documented extension point, `transport=`, takes another
engine: httpcore2, the maintained continuation of httpx's.
"""

from __future__ import annotations

import logging
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol, cast
from urllib.parse import urlsplit

import httpcore2
import httpx
import trio

from mcpd.transports.environment import CannotStart

for chatty in ("httpx", "httpcore2"):  # a line for each request, with the whole URL; with all headers
    logging.getLogger(chatty).setLevel(logging.WARNING)

CONNECT_TIMEOUT = 10.0
_WRITE_TIMEOUT = 30.0
_KEEP_IDLE = 64
"""Idle connections kept. What a burst opened beyond that is closed again."""
_IDLE_FOR = 60.0
"""Seconds; most servers and proxies close what is idle for longer."""
_GOODBYE = 1.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
"""A link that drops packets is noticed within 35 s. By default the kernel takes two hours."""


@asynccontextmanager
async def open_client(
    url: str, headers: Mapping[str, str], environ: Mapping[str, str], ca_file: str | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client for the server at `url`; its connections are closed with the block. How many there are is
    for the caller to bound: one is opened whenever none is idle.

    `headers` go with every request. `environ` is where proxies are looked up. There are no time
    limits on answers: they are the caller's. Raises CannotStart when `ca_file` cannot be used.
    """
    context = ssl_context(ca_file) if urlsplit(url).scheme == "https" else None
    proxy = proxy_for(url, environ)
    factory = httpcore2.AsyncConnectionPool(
        ssl_context=context,
        proxy=None if proxy is None else _proxy(proxy),
        keepalive_expiry=_IDLE_FOR,
        socket_options=KEEPALIVE,
        network_backend=httpcore2.TrioBackend(),
    )
    client = httpx.AsyncClient(
        transport=_Engine(factory),
        headers={"User-Agent": "mcpd", "Accept-Encoding": "gzip, deflate", **headers},
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, write=_WRITE_TIMEOUT),
        follow_redirects=False,
        trust_env=False,  # proxies are looked up above; .netrc holds nobody's MCP token
    )
    try:
        yield client
    finally:
        with trio.move_on_after(1, shield=True):
            await client.aclose()


def ssl_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates are always checked; `ca_file` (PEM) is trusted besides the system's authorities."""
    if ca_file is None:
        return httpcore2.default_ssl_context()
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:  # SSLError is one
        raise CannotStart(f"its CA file {ca_file} cannot be used: {error.strerror or error}") from None
    return context


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for `url`; never one for this machine itself."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _LOOPBACK or host.startswith("127."):
        return None
    named = {name.lower(): value for name, value in environ.items() if value}
    bypass = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed has it not
    if bypass(host, {"no": named.get("no_proxy", "")}):
        return None
    found = named.get(f"{parts.scheme}_proxy") or named.get("all_proxy")
    if not found:
        return None
    return found if "://" in found else f"http://{found}"


def _proxy(url: str) -> httpcore2.Proxy:
    """With the user and password that stand in the URL."""
    named = httpx.Proxy(url)
    return httpcore2.Proxy(str(named.url), auth=named.raw_auth)


class _Connection(Protocol):
    """What httpcore2 makes for one origin, directly or through a proxy."""

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response: ...
    async def aclose(self) -> None: ...
    def has_expired(self) -> bool: ...
    def is_idle(self) -> bool: ...
    def is_closed(self) -> bool: ...


class _Body(Protocol):
    """What a connection gives as a response's stream."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Engine(httpx.AsyncBaseTransport):
    """httpx requests to one origin, carried by connections of httpcore2; the warmest is used first.

    `factory` makes the connections. It is a pool itself, but one that looks at every connection, with a
    system call each, for every request: with 64 in flight, that is most of the time. For one origin, a
    stack of the idle ones is all that is needed.
    """

    def __init__(self, factory: httpcore2.AsyncConnectionPool) -> None:
        self._factory = factory
        self._idle: list[_Connection] = []
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        with _as_httpx():
            connection = await self._connection(target.origin)
            try:
                response = await connection.handle_async_request(
                    httpcore2.Request(
                        method=request.method,
                        url=target,
                        headers=request.headers.raw,
                        content=request.stream,
                        extensions=request.extensions,
                    )
                )
            except BaseException:
                await _close(connection)
                raise
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Stream(cast("_Body", response.stream), connection, self._give_back),
            extensions=response.extensions,
        )

    async def _connection(self, origin: httpcore2.Origin) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed() and not connection.has_expired():
                return connection
            await _close(connection)
        return cast("_Connection", self._factory.create_connection(origin))

    async def _give_back(self, connection: _Connection) -> None:
        """Keep what can be used again. What the server has closed meanwhile lies deepest, and is let go."""
        while self._idle and self._idle[0].has_expired():
            await _close(self._idle.pop(0))
        if connection.is_idle() and not self._closed and len(self._idle) < _KEEP_IDLE:
            self._idle.append(connection)
        else:
            await _close(connection)

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            await _close(self._idle.pop())


async def _close(connection: _Connection) -> None:
    if not connection.is_closed():
        with trio.move_on_after(_GOODBYE, shield=True):
            await connection.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(
        self, stream: _Body, connection: _Connection, give_back: Callable[[_Connection], Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._give_back = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._give_back(self._connection)


_NAMESAKES = (
    "ConnectTimeout",
    "ReadTimeout",
    "WriteTimeout",
    "PoolTimeout",
    "ConnectError",
    "ReadError",
    "WriteError",
    "ProxyError",
    "UnsupportedProtocol",
    "LocalProtocolError",
    "RemoteProtocolError",
    "TimeoutException",
    "NetworkError",
    "ProtocolError",
)
"""Most specific first."""
_ERRORS: list[tuple[type[Exception], type[httpx.TransportError]]] = [
    (getattr(httpcore2, name), getattr(httpx, name)) for name in _NAMESAKES
]


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        for theirs, ours in _ERRORS:
            if isinstance(error, theirs):
                raise ours(str(error) or type(error).__name__) from error
        raise
