"""Single HTTP requests to a server: redirects, refusals, and the limits of a body."""

from __future__ import annotations

import gzip

import pytest

from mcpd.model.errors import (
    HttpRefused,
    ProtocolViolation,
)
from tests.fakes.http import LegacyScript, ModernScript, Request, fake_http
from tests.transports.remote import answer, answer_of_a_list, outcome, talking

pytestmark = pytest.mark.usefixtures("engine")


async def test_a_redirect_within_the_origin_is_followed_with_body_and_remembered() -> None:
    """`/mcp` → `/mcp/` is common; only the first request takes the redirect."""
    well = LegacyScript()

    async def detour(request: Request) -> None:
        if request.path == "/mcp":
            await request.reply(307, Location="/mcp/")
        else:
            await well(request)

    async with (
        fake_http(detour) as server,
        talking(server.url, headers={"Authorization": "Bearer t"}) as talk,
    ):
        await answer(talk.call())
        assert [request.path for request in server.requests].count("/mcp") == 1
        assert server.requests[-1].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_to_another_origin_is_not_followed(status: int) -> None:
    """The error names the other origin, and no request is sent there."""
    async with fake_http(LegacyScript()) as other:

        async def lure(request: Request) -> None:
            await request.reply(status, Location=f"{other.url}?secret=1")

        async with (
            fake_http(LegacyScript(on={"tools/call": lure})) as server,
            talking(server.url, headers={"Authorization": "Bearer t"}) as talk,
        ):
            error = await outcome(talk.call())
        assert isinstance(error, HttpRefused)
        assert str(other.port) in error.message
        assert "secret" not in error.message
        assert other.requests == []


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("999999999999", 3600.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
        ("Thu, 01 Jan 9998 00:00:00 GMT", 3600.0),
        ("Mon, 01 Jan 20260 00:00:00 GMT", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("soon", None),
        ("", None),
    ],
)
async def test_retry_after_is_seconds_or_a_date_or_ignored(said: str, seconds: float | None) -> None:
    """An invalid header must not break the connection."""

    async def busy(request: Request) -> None:
        await request.reply(429, Retry_After=said)

    script = ModernScript(on={"tools/call": busy})
    async with fake_http(script) as server, talking(server.url) as talk:
        error = await outcome(talk.call())
        assert isinstance(error, HttpRefused)
        assert error.retry_after == seconds
        await answer_of_a_list(talk)


async def test_redirect_loop_is_an_error() -> None:
    """The limit is three redirects in a row."""

    async def loop(request: Request) -> None:
        await request.reply(307, Location=f"/mcp?{len(request.path)}")

    async with fake_http(LegacyScript(on={"tools/call": loop})) as server, talking(server.url) as talk:
        assert isinstance(await outcome(talk.call()), HttpRefused)


async def test_compressed_response_is_decoded() -> None:
    """Many proxies compress responses."""

    async def packed(request: Request) -> None:
        await request.reply(200, gzip.compress(request.answer({"ok": True})), Content_Encoding="gzip")

    async with fake_http(ModernScript(on={"tools/call": packed})) as server, talking(server.url) as talk:
        assert await answer(talk.call()) == {"ok": True}


@pytest.mark.parametrize("stream", [False, True])
async def test_decompression_bomb_is_refused(stream: bool) -> None:
    """The limit applies to decoded bytes, in a body and in an event."""
    bomb = gzip.compress(b'data: {"a":"' + b"x" * (64 << 20), 9)

    async def explode(request: Request) -> None:
        kind = "text/event-stream" if stream else "application/json"
        await request.reply(200, bomb, kind, Content_Encoding="gzip")

    async with (
        fake_http(ModernScript(on={"tools/call": explode})) as server,
        talking(server.url, max_frame=1 << 20) as talk,
    ):
        error = await outcome(talk.call())
        assert isinstance(error, ProtocolViolation)
        assert "maxFrame" in error.message
        await answer_of_a_list(talk)
