"""The transport of httpx for everything that crosses a network, on the connection pool of httpcore2.

httpx's own transport uses httpcore 1.0, which permanently loses connections of its pool if a request that
waits for one is cancelled under trio, and becomes slow with more than 32 requests in flight. httpcore2 is its
maintained successor and has neither defect. `transport=` is httpx's documented extension point.

httpcore2 implements HTTP/1.1, proxies and TLS. This module adds what it lacks: one time limit for the whole
way to the server, keepalive options also for sockets to proxies, the server's keep-alive timeout, connections
that are not used again after unexpected data, and errors that name the proxy.
"""

from __future__ import annotations

import logging
import math
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import httpcore2
import httpx
import trio

from mcpd.io.reader import is_readable
from mcpd.process.suspend import boottime
from mcpd.transports.http_client import dial
from mcpd.transports.http_client.connection import KEEPALIVE_EXPIRY, WRITE_TIMEOUT
from mcpd.transports.http_client.connection_pool import MAX_IDLE

logging.getLogger("httpcore2").setLevel(logging.WARNING)  # at DEBUG it logs all headers

_READ_SIZE = 1 << 14
"""Bytes per read: what arrives in one read is parsed in one turn of the event loop."""
_KEEP_ALIVE_TIMEOUT = re.compile(r"timeout=(\d{1,6})")


class NetworkTransport(httpx.AsyncBaseTransport):
    """Sends requests to one origin, through a proxy if one is given. The caller limits concurrent requests.

    `permit` checks the addresses of the server; a proxy looks them up itself. The extension `body` of a
    response is its stream; httpx wraps the attribute `stream` in a generator.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None,
        proxy: httpx.Proxy | None,
        permit: dial.CheckAddress | None = None,
    ) -> None:
        self._proxy = "" if proxy is None else _describe(proxy)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            proxy=None
            if proxy is None
            else httpcore2.Proxy(str(proxy.url), proxy.raw_auth, ssl_context=proxy.ssl_context),
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            network_backend=_Backend(self._proxy, None if proxy else permit),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        host = url.raw_host
        if self._proxy and b":" in host:  # httpcore2 writes it as it is into CONNECT
            host = b"[%b]" % host
        core_request = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=cast("httpx.AsyncByteStream", request.stream),
        )
        try:
            response = await self._pool.handle_async_request(core_request)
        except httpcore2.ProxyError as error:
            raise httpx.ProxyError(f"{self._proxy} refused: HTTP {error}".rstrip()) from error
        except httpcore2.LocalProtocolError:  # it quotes the header
            raise httpx.LocalProtocolError("a header contains characters that HTTP does not allow") from None
        except httpcore2.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        headers = httpx.Headers(response.headers)
        body = _Body(response, chunked="transfer-encoding" in headers)
        found = _KEEP_ALIVE_TIMEOUT.search(headers.get("keep-alive", "").lower())
        if found is not None:
            body.connection.keep_for = min(KEEPALIVE_EXPIRY, int(found[1]) - 1)
        extensions = {**response.extensions, "body": body}
        return httpx.Response(response.status, headers=headers, stream=body, extensions=extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    """A response body, still compressed. Closing it early closes the connection."""

    def __init__(self, response: httpcore2.Response, *, chunked: bool) -> None:
        self.connection: _Connection = response.extensions["network_stream"]
        self._response = response
        self._parts = cast("AsyncGenerator[bytes]", aiter(cast("httpx.AsyncByteStream", response.stream)))
        self._chunked = chunked
        self._end = b"\n"
        """What the connection receives last if nothing follows the response."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            part = await anext(self._parts)
        except StopAsyncIteration:
            if not self.connection.last_read.endswith(self._end):
                self.connection.keep_for = -1  # httpcore2 would take the rest for the next response
            raise
        except httpcore2.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        self._end = b"\n" if self._chunked else part
        return part

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):  # closing does not wait for the server
            await self._parts.aclose()
            await self._response.aclose()


class _Backend(httpcore2.AsyncNetworkBackend):
    """Opens the pool's connections: to the server, or to `proxy`. `permit`: see `dial.open_tcp`."""

    def __init__(self, proxy: str, permit: dial.CheckAddress | None) -> None:
        self._proxy = proxy
        self._permit = permit

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        deadline = trio.current_time() + dial.CONNECT_TIMEOUT
        with _connecting(deadline, self._proxy):
            return _Connection(await dial.open_tcp(host, port, self._permit), deadline, self._proxy)


class _Connection(httpcore2.AsyncNetworkStream):
    """One connection. `deadline` applies to everything before the first request to the server.

    `proxy` describes the proxy that still has to open the way to the server; empty if there is none. The
    exceptions are httpx's, which httpcore2 passes through.
    """

    def __init__(self, stream: trio.abc.Stream, deadline: float, proxy: str) -> None:
        self.keep_for = KEEPALIVE_EXPIRY
        """Seconds without use after which the connection must not be used again."""
        self.last_read = b""
        self._stream = stream
        self._socket = dial.socket_of(stream)
        self._deadline = deadline
        self._proxy = proxy
        self._asked_proxy = False
        self._unsent: list[bytes] = []
        self._used_at = boottime()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Keep the data until `read`: httpcore2 writes head, body and end of a request separately."""
        if buffer and self._proxy:
            self._asked_proxy = buffer.startswith(b"CONNECT ")
            self._proxy = self._proxy if self._asked_proxy else ""
        self._unsent.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unsent:
            await self._send()
        try:
            with _connecting(self._deadline if self._proxy else math.inf):
                data = bytes(await self._stream.receive_some(min(max_bytes, _READ_SIZE)))
        except httpx.ConnectError as error:
            if self._proxy:
                raise httpx.ProxyError(f"{self._proxy} closed the connection") from error
            raise httpx.ReadError(str(error)) from error
        if self._proxy and not data:
            raise httpx.ProxyError(f"{self._proxy} closed the connection")
        self._used_at, self.last_read = boottime(), data
        return data

    async def _send(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        try:
            with trio.fail_after(WRITE_TIMEOUT):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            message = f"the server did not read the request within {WRITE_TIMEOUT:g} s"
            raise httpx.WriteTimeout(message) from error
        except dial.STREAM_ERRORS:
            pass  # the server may have responded before it closed

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        proxy = "" if self._asked_proxy else self._proxy
        with _connecting(self._deadline, proxy):
            stream = await dial.start_tls(self._stream, (server_hostname or "").strip("[]"), ssl_context)
        return _Connection(stream, self._deadline, proxy)

    def get_extra_info(self, info: str) -> bool | None:
        if info == "is_readable":  # the pool takes a readable idle connection for closed
            return boottime() - self._used_at > self.keep_for or is_readable(self._socket.fileno())
        return None

    async def aclose(self) -> None:
        self._socket.close()  # without a TLS shutdown, which would wait for the server


@contextmanager
def _connecting(deadline: float, proxy: str = "") -> Iterator[None]:
    """Limit the time, and raise what fails as httpx.ConnectTimeout, ConnectError, or ProxyError."""
    try:
        with trio.fail_at(deadline):
            yield
    except trio.TooSlowError as error:
        raise httpx.ConnectTimeout(f"no connection within {dial.CONNECT_TIMEOUT:g} s") from error
    except dial.STREAM_ERRORS as error:
        if proxy:
            raise httpx.ProxyError(f"{proxy} is unreachable") from error
        raise httpx.ConnectError(str(error) or type(error).__name__) from error


def _describe(proxy: httpx.Proxy) -> str:
    url = proxy.url
    return f"the proxy {url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"
