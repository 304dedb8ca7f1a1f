"""The loopback listener: what reaches the login, and what does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing

from mcpd.auth import redirect_listener
from mcpd.auth.redirect_listener import (
    MAX_CONNECTIONS,
    Page,
    PortTaken,
    RedirectListener,
    callback_path,
    open_listener,
)

ISSUER = "https://as.example"


@asynccontextmanager
async def listening(demanded: str | None = None) -> AsyncIterator[tuple[RedirectListener, list[str]]]:
    queries: list[str] = []

    async def take(query: str) -> Page:
        queries.append(query)
        return Page(200, "<Done>", "x & y")

    with trio.fail_after(30):
        async with open_listener(ISSUER, demanded=demanded) as listener, trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, take, {})
            yield listener, queries
            nursery.cancel_scope.cancel()


async def talk(uri: str, request: str) -> str:
    """Send bytes to a listener, and return everything that it answers."""
    parts = urlsplit(uri)
    stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 80)
    async with stream:
        await stream.send_all(request.replace("HOST", parts.netloc).replace("\n", "\r\n").encode())
        answer = b""
        while portion := await stream.receive_some(65_536):
            answer += portion
    return answer.decode()


async def test_the_redirect_reaches_the_login_and_the_page_is_escaped() -> None:
    async with listening() as (listener, queries):
        path = urlsplit(listener.uri).path
        answer = await talk(listener.uri, f"GET {path}?code=a&state=b HTTP/1.1\nHost: HOST\n\n")
    assert queries == ["code=a&state=b"]
    assert answer.startswith("HTTP/1.1 200 ")
    assert "&lt;Done&gt;" in answer
    assert "x &amp; y" in answer


@pytest.mark.parametrize(
    "request_text",
    [
        "POST PATH?code=a HTTP/1.1\nHost: HOST\nContent-Length: 0\n\n",
        "GET /?code=a HTTP/1.1\nHost: HOST\n\n",
        "GET PATH/x?code=a HTTP/1.1\nHost: HOST\n\n",
        "GET //evil.example PATH HTTP/1.1\nHost: HOST\n\n",
        "GET http://HOSTPATH?code=a HTTP/1.1\nHost: HOST\n\n",
        "GET PATH?code=a HTTP/1.1\nHost: evil.example\n\n",
        "GET PATH?code=a HTTP/1.1\n\n",
        "GET PATH?code=a HTTP/1.1\nHost: HOST\nHost: evil.example\n\n",
        "GET PATH?code=a\n\n",
        "\n\n",
        "é\n\n",
    ],
)
async def test_other_requests_do_not(request_text: str) -> None:
    """A page of the Internet may know the port, and may have a name for this machine (DNS rebinding)."""
    async with listening() as (listener, queries):
        answer = await talk(listener.uri, request_text.replace("PATH", urlsplit(listener.uri).path))
    assert queries == []
    assert answer.startswith("HTTP/1.1 400 ")


async def test_the_ports_are_tried_in_order_and_then_any() -> None:
    first, second = redirect_listener.PORTS
    async with (
        open_listener(ISSUER) as one,
        open_listener(ISSUER) as other,
        open_listener(ISSUER) as third,
    ):
        assert [urlsplit(each.uri).port for each in (one, other)] == [first, second]
        assert urlsplit(third.uri).port not in {first, second}
        assert urlsplit(one.uri).path == urlsplit(other.uri).path == callback_path(ISSUER)
    assert callback_path("https://other.example") != callback_path(ISSUER)


async def test_idle_connections_are_few_and_do_not_keep_the_browser_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redirect_listener, "_TIMEOUT", 3600.0)
    async with listening() as (listener, queries), AsyncExitStack() as stack:
        parts = urlsplit(listener.uri)
        idle = [await trio.open_tcp_stream(parts.hostname or "", parts.port or 80) for _ in range(300)]
        for stream in idle:
            await stack.enter_async_context(stream)
        assert "200 OK" in await talk(listener.uri, f"GET {parts.path}?code=a HTTP/1.1\nHost: HOST\n\n")
        for stream in idle[: 300 - MAX_CONNECTIONS]:
            assert await stream.receive_some(1) == b""
    assert queries == ["code=a"]


async def test_a_demanded_port_that_is_taken_is_an_error() -> None:
    async with open_listener(ISSUER) as one:
        with pytest.raises(PortTaken, match="callbackPort"):
            async with open_listener(ISSUER, demanded=one.uri):
                pass
