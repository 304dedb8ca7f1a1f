"""The guards of requests to URLs that strangers named."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mcpd.auth.guarded_fetch import MAX_REQUESTS, FetchError, GuardedFetch, is_public
from mcpd.auth.oauth.tokens import TokenRequest
from mcpd.transports.http_client import dial
from tests.fakes.http import Request, fake_http


class Names(trio.abc.HostnameResolver):
    """A name server of the test: each question takes the next answer, the last one for ever."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = {name.replace("_", "."): list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def getaddrinfo(self, host: Any, port: Any, *others: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        self.asked.append(name)
        answers = self.names.get(name)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown name")
        address = answers.pop(0) if len(answers) > 1 else answers[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    async def getnameinfo(self, *arguments: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names(mcp_example=["8.8.8.8"], corp_example=["10.0.0.1"])
    monkeypatch.setattr(dial, "_use_resolver", lambda: trio.socket.set_custom_hostname_resolver(found))
    return found


async def refusal(server: str, url: str) -> FetchError:
    with pytest.raises(FetchError) as caught:
        await GuardedFetch(server, {}).get(url)
    return caught.value


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("255.255.255.255", False),
        ("224.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::7f00:1", False),
        ("::7f00:1", False),
        ("::ffff:0:7f00:1", False),
        ("2002:7f00:1::", False),
        ("localhost", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/x", "http://localhost:{}/x", "http://[::1]:{}/x"])
async def test_a_public_server_cannot_reach_this_machine(names: Names, url: str) -> None:
    async with fake_http(ok) as server:
        error = await refusal("https://mcp.example/mcp", url.format(server.port))
    assert error.is_forbidden
    assert "private address" in error.message
    assert server.connections == 0


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "10.1", "[::7f00:1]"])
async def test_no_proxy_is_asked_for_a_private_address_in_another_spelling(host: str) -> None:
    fetch = GuardedFetch("https://8.8.8.8/mcp", {"HTTPS_PROXY": "http://127.0.0.1:1"})
    with pytest.raises(FetchError, match="private address"):
        await fetch.get(f"https://{host}/x")


async def test_the_connection_goes_to_the_address_that_was_checked(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers differently the second time (DNS rebinding) is not asked again."""
    names.names["as.example"] = ["8.8.4.4", "127.0.0.1"]
    connected: list[str] = []

    async def connect(host: str, port: int, **_: Any) -> trio.SocketStream:
        connected.append(host)
        raise OSError(111, "refused")

    monkeypatch.setattr(trio, "open_tcp_stream", connect)
    error = await refusal("https://mcp.example/mcp", "https://as.example/x")
    assert connected == ["8.8.4.4"]
    assert names.asked.count("as.example") == 1
    assert not error.may_have_arrived


async def test_a_private_server_may_use_its_own_network(names: Names) -> None:
    names.names["sso.corp.example"] = ["127.0.0.1"]
    names.names["mcp.corp.example"] = ["10.0.0.1"]
    own = await refusal("https://mcp.corp.example/mcp", "https://sso.corp.example:1/x")
    assert not own.is_forbidden  # it was tried
    names.names["as.other.test"] = ["127.0.0.1"]
    foreign = await refusal("https://mcp.corp.example/mcp", "https://as.other.test:1/x")
    assert foreign.is_forbidden


async def ok(request: Request) -> None:
    await request.reply(200, b"{}")


async def test_redirects_within_the_origin_are_followed_three_times() -> None:
    async def script(request: Request) -> None:
        number = int(request.path.strip("/"))
        await (request.reply(302, location=f"/{number - 1}") if number else ok(request))

    async with fake_http(script) as server:
        base = f"http://127.0.0.1:{server.port}"
        assert (await GuardedFetch(server.url, {}).get(f"{base}/3")).status == 200
        assert (await refusal(server.url, f"{base}/4")).is_forbidden
        assert len(server.requests) == 8


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:1/x", "https://as.example/", "javascript:1", "http://[x"]
)
async def test_redirects_to_another_origin_are_refused(target: str) -> None:
    async def script(request: Request) -> None:
        await request.reply(302, location=target)

    async with fake_http(script) as server:
        assert (await refusal(server.url, f"http://127.0.0.1:{server.port}/x")).is_forbidden


async def test_a_redirected_token_request_is_an_answer() -> None:
    async def script(request: Request) -> None:
        await request.reply(307, location="/elsewhere")

    async with fake_http(script) as server:
        fetch = GuardedFetch(server.url, {})
        answer = await fetch.post(TokenRequest(f"http://127.0.0.1:{server.port}/token", {}, b"secret"))
        assert answer.status == 307
        assert len(server.requests) == 1


async def test_the_number_of_requests_is_limited() -> None:
    async with fake_http(ok) as server:
        fetch = GuardedFetch(server.url, {})
        for _ in range(MAX_REQUESTS):
            await fetch.get(f"http://127.0.0.1:{server.port}/x")
        with pytest.raises(FetchError, match="more than 16 requests"):
            await fetch.get(f"http://127.0.0.1:{server.port}/x")
        assert len(server.requests) == MAX_REQUESTS


async def test_the_size_of_an_answer_is_limited() -> None:
    async def script(request: Request) -> None:
        await request.reply(200, b" " * (2 << 20))

    async with fake_http(script) as server:
        error = await refusal(server.url, f"http://127.0.0.1:{server.port}/x")
    assert "more than 1048576 bytes" in error.message


async def test_a_silent_server_is_given_up(autojump_clock: MockClock) -> None:
    """Whether the server executed the request is unknown then."""
    autojump_clock.autojump_threshold = 0.05  # the kernel needs a moment to deliver the request

    async def script(request: Request) -> None:
        await trio.sleep(100)

    async with fake_http(script) as server:
        error = await refusal(server.url, f"http://127.0.0.1:{server.port}/x")
    assert error.may_have_arrived
    assert "within 10 s" in error.message


async def test_every_request_is_reported_without_its_query() -> None:
    seen: list[tuple[str, str, str]] = []

    def note(method: str, url: str, outcome: str, seconds: float) -> None:
        seen.append((method, url, outcome))

    async with fake_http(ok) as server:
        base = f"http://127.0.0.1:{server.port}"
        await GuardedFetch(server.url, {}, on_request=note).get(f"{base}/x?key=secret")
    assert seen == [("GET", f"{base}/x", "HTTP 200")]
