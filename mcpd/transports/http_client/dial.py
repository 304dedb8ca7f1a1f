"""Opening TCP connections and TLS, for every transport to a remote server, and looking up host names."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

T = TypeVar("T")

CheckAddress = Callable[[str], None]
"""Raises OSError for an IP address that must not be connected to."""

CONNECT_TIMEOUT = 10.0
"""Seconds until a connection must be ready for requests, with its proxy and TLS."""
SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
"""A connection that drops packets is detected within 35 s; the kernel's default is two hours."""
MAX_LOOKUPS = 16
"""Host names that are looked up at the same time; further ones wait."""

STREAM_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What trio streams raise when they fail."""


class Resolver(trio.abc.HostnameResolver):
    """Looks up host names in threads, with a limit of its own.

    A lookup cannot be interrupted: if the DNS server does not respond, its thread stays busy for half a
    minute, even if nobody waits for it. With trio's default limit, such lookups would also block file access.
    """

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MAX_LOOKUPS)

    async def getaddrinfo(self, host: bytes | None, *others: Any) -> Any:  # noqa: ANN401
        if host == b"localhost" and not others[1]:  # of any family: always this machine (RFC 6761, 6.3)
            return [*socket.getaddrinfo("::1", *others), *socket.getaddrinfo("127.0.0.1", *others)]
        return await self._run(socket.getaddrinfo, host, *others)

    async def getnameinfo(self, *arguments: object) -> tuple[str, str]:
        return await self._run(socket.getnameinfo, *arguments)

    async def _run(self, look_up: Callable[..., T], *arguments: object) -> T:
        call = partial(look_up, *arguments)
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)


_resolver: trio.lowlevel.RunVar[Resolver | None] = trio.lowlevel.RunVar("resolver")


async def open_tcp(host: str, port: int, permit: CheckAddress | None = None) -> trio.SocketStream:
    """Return a connection to an ASCII host name or an address. Raises OSError; the caller limits the time.

    `permit` is called with each address of the host. The connection goes to an address that was checked, so
    a name server that answers the next question differently changes nothing.
    """
    if permit is None:
        _use_resolver()
        stream = await trio.open_tcp_stream(host, port)
    else:
        stream = await _open_permitted(await look_up(host, port), port, permit)
    for option in SOCKET_OPTIONS:
        stream.setsockopt(*option)
    return stream


async def look_up(host: str, port: int = 0) -> list[str]:
    """Return the addresses of a host, the preferred one first. Raises OSError; the caller limits the time."""
    _use_resolver()
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _open_permitted(addresses: list[str], port: int, permit: CheckAddress) -> trio.SocketStream:
    for address in addresses:
        permit(address)
    errors: list[OSError] = []
    for address in addresses:
        try:
            return await trio.open_tcp_stream(address, port)
        except OSError as error:
            errors.append(error)
    raise errors[-1] if errors else OSError("the host has no address")


def _use_resolver() -> None:
    if _resolver.get(None) is None:
        resolver = Resolver()
        _resolver.set(resolver)
        trio.socket.set_custom_hostname_resolver(resolver)


async def start_tls(stream: trio.abc.Stream, host: str, context: ssl.SSLContext) -> trio.abc.Stream:
    """Return the stream with TLS on it. Closes the stream if that fails."""
    guarded = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
    try:
        await guarded.do_handshake()
    except BaseException:
        socket_of(stream).close()
        raise
    return guarded


def socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType:
    """Return the socket under a stream."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    assert isinstance(stream, trio.SocketStream)
    return stream.socket
