"""Servers behind a proxy: forwarding, tunnels, refusals, and data that a proxy must not see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from mcpd.model.errors import LinkLost
from mcpd.model.server_spec import RemoteSpec
from mcpd.transports.outgoing_request import AwaitedExchange
from mcpd.transports.streamable_http import open_http
from tests.fakes.http import ModernScript, fake_http
from tests.fakes.proxy import fake_proxy
from tests.transports.test_tls import Authority

BOUND = 60
HEADERS = {"Authorization": "Bearer for-the-server"}
BASIC = "Basic bWU6czNjcmV0"


async def ask(
    url: str, environ: Mapping[str, str], ca_file: str | None = None, times: int = 3
) -> LinkLost | None:
    """List the tools a few times, and return the error, if any."""
    spec = RemoteSpec(name="far", kind="http", url=url, ca_file=ca_file, headers=HEADERS)
    failed: list[LinkLost] = []

    async with open_http(spec, environ) as link, trio.open_nursery() as nursery:

        async def run() -> None:
            try:
                await link.run()
            except LinkLost as error:
                failed.append(error)

        nursery.start_soon(run)
        for _ in range(times):
            exchange = AwaitedExchange()
            link.submit(exchange, "tools/list", b"{}")
            with trio.fail_after(BOUND):
                await exchange.done.wait()
            if exchange.error is not None:
                assert isinstance(exchange.error, LinkLost)
                return exchange.error
        nursery.cancel_scope.cancel()
    return None


async def test_a_plain_request_is_forwarded_with_the_whole_url() -> None:
    """All requests use one connection. Only the proxy gets its password, and only the server gets the
    server's."""
    async with fake_http(ModernScript()) as server, fake_proxy({"far.example": server.port}, BASIC) as proxy:
        environ = {"http_proxy": f"http://me:s3cret@127.0.0.1:{proxy.port}"}
        assert await ask("http://far.example/mcp", environ) is None
        assert proxy.asked == ["POST http://far.example/mcp HTTP/1.1"]
        assert len(server.requests) == 3
        assert server.requests[0].headers["host"] == "far.example"
        assert server.requests[0].headers["authorization"] == HEADERS["Authorization"]
        assert "proxy-authorization" not in server.requests[0].headers


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_tls_connection_is_tunnelled_and_the_proxy_sees_nothing_of_it(
    tmp_path: Path, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy itself may use TLS. The verified certificate is the server's."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))  # used for the proxy's certificate
    async with (
        fake_http(ModernScript(), tls=authority.server("DNS:far.example")) as server,
        fake_proxy(
            {"far.example": server.port}, BASIC, authority.server("IP:127.0.0.1") if guarded else None
        ) as proxy,
    ):
        scheme = "https" if guarded else "http"
        environ = {"HTTPS_PROXY": f"{scheme}://me:s3cret@127.0.0.1:{proxy.port}"}
        assert await ask("https://far.example/mcp", environ, str(authority.file)) is None
        assert proxy.asked == ["CONNECT far.example:443 HTTP/1.1"]
        assert len(server.requests) == 3
        assert server.connections == 1
        assert b"for-the-server" not in proxy.seen
        assert b"tools/list" not in proxy.seen


async def test_a_certificate_is_checked_through_a_proxy_too(tmp_path: Path) -> None:
    """A proxy that impersonates the server is detected."""
    authority = Authority(tmp_path)
    async with (
        fake_http(ModernScript(), tls=authority.server("DNS:elsewhere.example")) as server,
        fake_proxy({"far.example": server.port}) as proxy,
    ):
        environ = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}
        error = await ask("https://far.example/mcp", environ, str(authority.file))
        assert error is not None
        assert "certificate was rejected" in error.message
        assert server.requests == []


@pytest.mark.parametrize(
    ("place", "password", "words"),
    [
        ({}, "", "refused: HTTP 502 Nobody There"),
        ({"far.example": 1}, "Basic eDp5", "refused: HTTP 407 Who Are You"),
    ],
)
async def test_refusal_of_a_proxy_names_it_and_nothing_ran(
    place: Mapping[str, int], password: str, words: str
) -> None:
    """The error quotes the proxy but does not contain its password."""
    async with fake_proxy(place, password) as proxy:
        environ = {"HTTPS_PROXY": f"http://me:s3cret@127.0.0.1:{proxy.port}"}
        error = await ask("https://far.example/mcp", environ)
        assert error is not None
        assert f"the proxy 127.0.0.1:{proxy.port} {words}" in error.message
        assert "s3cret" not in error.message
        assert not error.may_have_run


async def test_unreachable_proxy_is_named() -> None:
    """The error does not blame the server."""
    async with fake_proxy({}) as gone:
        port = gone.port
    error = await ask("https://far.example/mcp", {"HTTPS_PROXY": f"http://127.0.0.1:{port}"})
    assert error is not None
    assert f"the proxy 127.0.0.1:{port} is unreachable: Connection refused" in error.message
    assert not error.may_have_run


async def test_proxy_is_not_used_for_excluded_hosts() -> None:
    """`NO_PROXY` and loopback addresses are excluded."""
    async with fake_http(ModernScript()) as server, fake_proxy({}) as proxy:
        environ = {"HTTP_PROXY": f"http://127.0.0.1:{proxy.port}", "NO_PROXY": "far.example"}
        assert await ask(server.url, environ) is None
        error = await ask("http://far.example:1/mcp", environ)
        assert error is not None
        assert proxy.asked == []
