"""A small real HTTP proxy on loopback: forwards plain requests, tunnels the rest, may want a password."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio


@attrs.define(eq=False)
class FakeProxy:
    """A running proxy, and what passed through it."""

    port: int
    places: Mapping[str, int]
    """Which port of loopback each host name stands for; any other cannot be reached."""
    password: str
    asked: list[str] = attrs.field(factory=list)
    """The first line of every request to it."""
    credentials: list[str] = attrs.field(factory=list)
    seen: bytearray = attrs.field(factory=bytearray)
    """What clients sent through tunnels."""

    async def serve(self, stream: Any) -> None:
        try:
            async with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    more = await stream.receive_some(1 << 16)
                    if not more:
                        return
                    head += more
                await self._answer(stream, head)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass

    async def _answer(self, stream: Any, data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.asked.append(first)
        given = headers.get("proxy-authorization", "")
        self.credentials.append(given)
        if self.password and given != self.password:
            await stream.send_all(b"HTTP/1.1 407 Who Are You\r\nContent-Length: 0\r\n\r\n")
            return
        method, target, version = first.split(" ")
        parts = urlsplit(target if "://" in target else f"//{target}")
        port = self.places.get(parts.hostname or "")
        if port is None:
            await stream.send_all(b"HTTP/1.1 502 Nobody There\r\nContent-Length: 0\r\n\r\n")
            return
        async with await trio.open_tcp_stream("127.0.0.1", port) as onward:
            if method == "CONNECT":
                await stream.send_all(b"HTTP/1.1 200 Go Ahead\r\n\r\n" + b"")
                await _both_ways(stream, onward, self.seen)
            else:
                kept = [line for line in lines if not line.lower().startswith("proxy-")]
                plain = [f"{method} {parts.path or '/'} {version}", *kept]
                await onward.send_all("\r\n".join(plain).encode("latin-1") + b"\r\n\r\n" + body)
                await _both_ways(stream, onward, self.seen)


async def _both_ways(client: Any, server: Any, seen: bytearray) -> None:
    async with trio.open_nursery() as nursery:

        async def copy(source: Any, target: Any, log: bytearray | None) -> None:
            async for data in source:
                if log is not None:
                    log += data
                await target.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(copy, client, server, seen)
        await copy(server, client, None)


@asynccontextmanager
async def fake_proxy(
    places: Mapping[str, int], password: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[FakeProxy]:
    """Serve until the block is left. `password` is the value of `Proxy-Authorization` that it wants."""
    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listener = plain if tls is None else trio.SSLListener(plain, tls, https_compatible=True)
    proxy = FakeProxy(plain.socket.getsockname()[1], places, password)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        try:
            yield proxy
        finally:
            nursery.cancel_scope.cancel()
