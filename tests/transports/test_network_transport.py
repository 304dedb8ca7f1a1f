"""Requests that cross a network: sent by httpx, with limits, and with errors that name the proxy."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from mcpd.transports.http_client import bodies, client_factory, dial
from mcpd.transports.http_client.client_factory import open_client
from mcpd.transports.http_client.connection import describe_error
from mcpd.wire.url import is_loopback
from tests.fakes.http import Request, fake_http
from tests.processes import wait_until

BOUND = 60


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat servers on loopback as if they were on a network."""
    monkeypatch.setattr(client_factory, "is_loopback", lambda host: False)


async def ok(request: Request) -> None:
    await request.reply(200, request.body)


async def fetch(url: str, environ: dict[str, str] | None = None, **headers: str) -> bytes:
    """Send one request, and return the body of the response."""
    with trio.fail_after(BOUND):
        async with open_client(url, headers, environ or {}) as client:
            return await bodies.read(await client.send("POST", url, {}, b"x"), 1 << 20)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def closed_down_to(count: int) -> None:
    """Wait until no more descriptors are open: a thread that nobody waits for may still look up a name."""
    await trio.to_thread.run_sync(wait_until, lambda: open_descriptors() <= count)


@asynccontextmanager
async def listening(handler: Callable[[trio.SocketStream], Awaitable[object]]) -> AsyncIterator[int]:
    """Serve connections on a free port of loopback."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handler, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


# ── which engine ────────────────────────────────────────────────────────────────────────────────


class SentByHttpx(Exception):
    """`httpx.AsyncClient.send` was called."""


@pytest.fixture
def no_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(self: object, *_: object, **__: object) -> None:
        raise SentByHttpx

    monkeypatch.setattr(httpx.AsyncClient, "send", send)


@pytest.mark.usefixtures("no_httpx")
@pytest.mark.parametrize(
    ("url", "environ"),
    [
        ("http://192.0.2.1/mcp", {}),
        ("http://far.example/mcp", {"HTTP_PROXY": "http://127.0.0.1:9"}),
        ("https://far.example/mcp", {"HTTPS_PROXY": "http://127.0.0.1:9"}),
        ("https://127.0.0.1:9/mcp", {}),
        ("http://127.evil.example/mcp", {}),
    ],
)
async def test_httpx_sends_everything_that_crosses_a_network(url: str, environ: dict[str, str]) -> None:
    """Another host, a proxy, or TLS."""
    with pytest.raises(SentByHttpx):
        await fetch(url, environ)


@pytest.mark.usefixtures("no_httpx")
async def test_plain_http_to_loopback_does_not_use_httpx() -> None:
    """Even if the environment names a proxy."""
    async with fake_http(ok) as server:
        assert await fetch(server.url, {"HTTP_PROXY": "http://127.0.0.1:9"}) == b"x"
        assert await fetch(server.url.replace("127.0.0.1", "localhost")) == b"x"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.1.example", False),
        ("127.example", False),
        ("localhost.example", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_only_this_machine_counts_as_loopback(host: str, expected: bool) -> None:
    """A name that merely begins like an address may be anywhere."""
    assert is_loopback(host) is expected


# ── connecting ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_silent_proxy_or_server_times_out(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One limit covers the proxy and TLS with the server. No socket stays open."""
    monkeypatch.setattr(dial, "CONNECT_TIMEOUT", 0.05)

    async def mute(stream: trio.SocketStream) -> None:
        async with stream:
            await trio.sleep_forever()

    before = open_descriptors()
    async with listening(mute) as port:
        with pytest.raises(httpx.ConnectTimeout):
            await fetch("https://far.example/mcp", {"HTTPS_PROXY": f"{scheme}://127.0.0.1:{port}"})
        with pytest.raises(httpx.ConnectTimeout):
            await fetch(f"https://127.0.0.1:{port}/mcp")
    await closed_down_to(before)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200"])
async def test_proxy_that_closes_the_connection_is_named(reply: bytes) -> None:
    """The server was never reached, so the request did not run."""

    async def close(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(1 << 16)
            if reply:
                await stream.send_all(reply)

    async with listening(close) as port:
        with pytest.raises(httpx.ProxyError, match=f"^the proxy 127.0.0.1:{port} closed the connection$"):
            await fetch("https://far.example/mcp", {"HTTPS_PROXY": f"http://127.0.0.1:{port}"})


# ── one connection ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("network")
async def test_rejected_header_is_not_quoted() -> None:
    """Its value may be a secret."""
    async with fake_http(ok) as server:
        with pytest.raises(httpx.LocalProtocolError) as refused:
            await fetch(server.url, Authorization="Bearer canary\x00")
        assert "canary" not in str(refused.value)
        assert server.requests == []


# ── names and URLs ──────────────────────────────────────────────────────────────────────────────


async def test_hanging_lookups_leave_threads_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DNS server that does not respond blocks threads, even after nobody waits for them."""
    import threading

    released, started = threading.Event(), threading.Semaphore(0)

    def hang(*_: object) -> list[object]:
        started.release()
        released.wait(BOUND)
        return []

    try:
        async with trio.open_nursery() as nursery:
            monkeypatch.setattr(dial.socket, "getaddrinfo", hang)  # type: ignore[attr-defined]
            resolver = dial.Resolver()
            for _ in range(50):
                nursery.start_soon(resolver.getaddrinfo, b"far.example", 443)
            with trio.fail_after(BOUND):
                for _ in range(dial.MAX_LOOKUPS):
                    await trio.to_thread.run_sync(started.acquire)
                assert not started.acquire(blocking=False)
                limiter = trio.to_thread.current_default_thread_limiter()
                assert limiter.borrowed_tokens == 0
            nursery.cancel_scope.cancel()
        with trio.fail_after(BOUND):
            assert await trio.to_thread.run_sync(lambda: 1) == 1
    finally:
        released.set()


async def test_connection_notices_a_link_that_fails_silently() -> None:
    """The kernel probes an idle link, and gives up on data that nobody acknowledges."""
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen()
        async with await dial.open_tcp("127.0.0.1", listener.getsockname()[1]) as stream:
            assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            idle, interval, count, unacknowledged = (
                int(stream.getsockopt(socket.IPPROTO_TCP, name)) for name in names
            )
    assert idle + interval * count <= 60
    assert 0 < unacknowledged <= 60_000


def test_reason_is_found_behind_errors_without_a_number() -> None:
    """trio raises such an error when all addresses of a name were tried."""
    tried = OSError("all attempts to connect to secret.example:443 failed")
    tried.__cause__ = ExceptionGroup(
        "attempts", [ConnectionRefusedError(errno.ECONNREFUSED, "secret.example")]
    )
    error = httpx.ConnectError("secret.example")
    error.__cause__ = tried
    assert describe_error(error) == "it cannot be reached: Connection refused"
    tried.__cause__ = None
    assert describe_error(error) == "it cannot be reached: secret.example"
