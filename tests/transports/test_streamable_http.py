"""Streamable HTTP against a scripted server on loopback."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from mcpd.model.errors import (
    LinkLost,
    UpstreamRefused,
)
from mcpd.model.server_spec import RemoteSpec
from mcpd.protocol import modern
from mcpd.supervision.catalog_fetch import fetch_catalog
from mcpd.wire.message import ABSENT
from tests.fakes.http import LegacyScript, ModernScript, Request, fake_http
from tests.transports.remote import BOUND, answer, answer_of_a_list, asked, outcome, talking, until

pytestmark = pytest.mark.usefixtures("engine")

# ── sent messages ───────────────────────────────────────────────────────────────────────────────


async def test_modern_request_has_headers_for_version_method_and_name() -> None:
    """There is no session, GET or DELETE."""
    async with fake_http(ModernScript()) as server:
        async with talking(server.url) as talk:
            await answer(talk.call(a=1))
            await talk.upstream.request(
                "resources/read", {"uri": "x://caf\N{LATIN SMALL LETTER E WITH ACUTE}"}
            )
        call, read = server.of("tools/call")[0], server.of("resources/read")[0]
    assert server.asked() == ["server/discover", "tools/call", "resources/read"]
    assert call.headers["accept"] == "application/json, text/event-stream"
    assert call.headers["content-type"] == "application/json"
    assert call.headers["mcp-protocol-version"] == "2026-07-28"
    assert (call.headers["mcp-method"], call.headers["mcp-name"]) == ("tools/call", "echo")
    assert call.message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert read.headers["mcp-name"] == "=?base64?eDovL2NhZsOp?="
    assert server.requests[0].headers["mcp-method"] == "server/discover"


async def test_call_with_mismatching_headers_is_sent_again_once() -> None:
    """The server refused it without running it, because it knows a newer definition of the tool."""

    refreshed: list[str] = []

    async def refuse(request: Request) -> None:
        if len(refreshed) < 3:
            await request.error(modern.HEADER_MISMATCH, 400)
        else:
            await request.result({"content": []})

    async def refresh(member: str) -> None:
        refreshed.append(member)

    async with fake_http(ModernScript(on={"tools/call": refuse})) as server, talking(server.url) as talk:
        talk.link.set_dialect(modern.dialect("2026-07-28", refresh_list=refresh))
        with trio.fail_after(BOUND):
            refused = await talk.call(a=1).wait_response()
        assert refused.error is not ABSENT
        assert server.asked() == ["server/discover", "tools/call", "tools/call"]
    assert refreshed == ["tools"]


async def test_annotated_arguments_become_headers_and_invalid_annotations_hide_the_tool() -> None:
    """`Mcp-Param-*` headers are sent; an invalid annotation hides only its tool."""
    mirrored = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    broken = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
    tools = [{"name": "echo", "inputSchema": mirrored}, {"name": "bad", "inputSchema": broken}]
    async with fake_http(ModernScript(tools=tools)) as server, talking(server.url) as talk:
        catalog = await fetch_catalog(talk.upstream, RemoteSpec(name="it", kind="http", url=server.url))
        await answer(talk.call(region="eu west"))
        assert [tool.name for tool in catalog.tools] == ["echo"]
        assert "bad" in catalog.warnings[0]
        assert server.of("tools/call")[0].headers["mcp-param-region"] == "eu west"


async def test_a_legacy_session_is_named_on_every_request_and_ended() -> None:
    """`initialize` has neither a session nor a version header; all other requests have both."""
    async with fake_http(LegacyScript()) as server, talking(server.url) as talk:
        await answer(talk.call())
    opening, *later = server.requests[1:]
    assert (opening.rpc, opening.headers.get("mcp-session-id")) == ("initialize", None)
    assert "mcp-protocol-version" not in opening.headers
    assert [request.rpc or request.method for request in later] == [
        "notifications/initialized",
        "tools/call",
        "DELETE",
    ]
    for request in later:
        assert request.headers["mcp-session-id"] == "s-1"
        assert request.headers["mcp-protocol-version"] == "2025-11-25"


# ── received messages ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [200, 400, 404, 500])
@pytest.mark.parametrize("id", ["own", None])
async def test_an_error_in_the_body_counts_whatever_the_status(status: int, id: str | None) -> None:
    """Without an id, the error belongs to the request of that HTTP exchange."""

    async def refuse(request: Request) -> None:
        own = request.message["id"]
        await request.error(-32602, status, data={"why": 1}, id=own if id else None)

    async with fake_http(ModernScript(on={"tools/call": refuse})) as server, talking(server.url) as talk:
        with pytest.raises(UpstreamRefused) as refused, trio.fail_after(BOUND):
            await talk.upstream.request("tools/call", {"name": "echo"})
        assert (refused.value.upstream_code, refused.value.upstream_data) == (-32602, {"why": 1})
        assert not talk.ended


async def test_batches_are_accepted_in_the_revision_that_allows_them() -> None:
    """2025-03-26 allows arrays in a JSON body."""

    async def array(request: Request) -> None:
        note = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
        await request.reply(200, b"[" + note + b"," + request.answer({"content": []}) + b"]")

    script = LegacyScript(on={"tools/call": array}, version="2025-03-26")
    async with fake_http(script) as server, talking(server.url) as talk:
        await answer(talk.call())
        assert talk.changes == ["tools"]


# ── requests from the server ────────────────────────────────────────────────────────────────────


async def test_server_requests_are_answered_by_post() -> None:
    """A ping gets `{}`. Unsupported requests are refused before the call times out."""
    answers: list[dict[str, object]] = []
    answered = trio.Event()

    async def collect(request: Request) -> None:
        answers.append(request.message)
        if len(answers) == 2:
            answered.set()
        await request.reply(202)

    async def ask(request: Request) -> None:
        await request.events()
        await request.event(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
        await request.event(b'{"jsonrpc":"2.0","id":7,"method":"roots/list"}')
        await answered.wait()
        await request.event(request.answer({"content": []}))
        await request.end()

    script = LegacyScript(on={"tools/call": ask, "response": collect})
    async with fake_http(script) as server, talking(server.url) as talk:
        await answer(talk.call())
    by_id = {str(message["id"]): message for message in answers}
    assert by_id["p"]["result"] == {}
    assert by_id["7"]["error"]["code"] == -32601  # type: ignore[index]


# ── cancellation and deadlines ──────────────────────────────────────────────────────────────────


async def hang(request: Request) -> None:
    await request.events()
    await request.wait_hung_up()


async def test_cancelling_a_modern_request_closes_its_stream() -> None:
    """Closing the response stream cancels the request."""
    async with fake_http(ModernScript(on={"tools/call": hang})) as server, talking(server.url) as talk:
        exchange = talk.call()
        (request,) = await asked(server, "tools/call")
        talk.link.cancel(exchange, "enough")
        with trio.fail_after(BOUND):
            await request.hung_up.wait()
        await answer_of_a_list(talk)
        assert "notifications/cancelled" not in server.asked()


async def test_cancelling_a_legacy_request_sends_a_notification() -> None:
    """A closed connection does not cancel in the legacy era, so a notification is sent."""
    async with fake_http(LegacyScript(on={"tools/call": hang})) as server, talking(server.url) as talk:
        exchange = talk.call()
        (request,) = await asked(server, "tools/call")
        talk.link.cancel(exchange, "enough")
        (said,) = await asked(server, "notifications/cancelled")
        assert said.message["params"]["requestId"] == request.message["id"]
        with trio.fail_after(BOUND):
            await request.hung_up.wait()
        await answer_of_a_list(talk)


# ── failures ────────────────────────────────────────────────────────────────────────────────────


async def test_connection_reset_fails_only_its_call() -> None:
    """The reset may come before or within the headers, within the body or within an event."""
    for cut in (b"", b"HTTP/1.1 200 OK\r\nConte", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", None):

        async def reset(request: Request, cut: bytes | None = cut) -> None:
            if cut is None:
                await request.events()
                await request.send(b'data: {"jsonrpc"')
            elif cut:
                await request.raw(cut)
            await trio.sleep(0.02)
            request.reset()

        async with fake_http(LegacyScript(on={"tools/call": reset})) as server, talking(server.url) as talk:
            error = await outcome(talk.call())
            assert isinstance(error, LinkLost)
            assert error.may_have_run
            assert "it: " in error.message
            await answer_of_a_list(talk)


async def test_unreachable_server_ends_the_channel_and_nothing_ran() -> None:
    """The supervisor reconnects. The caller may retry, because the request was not sent."""
    async with fake_http(LegacyScript()) as server, talking(server.url) as talk:
        assert server.nursery is not None
        server.nursery.cancel_scope.cancel()
        await trio.sleep(0.05)
        errors = [await outcome(talk.call())]
        if not talk.ended:  # the first request may have used the closing connection
            errors.append(await outcome(talk.call()))
        assert isinstance(errors[-1], LinkLost)
        assert not errors[-1].may_have_run
        assert "cannot be reached" in (await until(talk)).message
        with pytest.raises(LinkLost):
            talk.call()


async def test_dropped_session_ends_the_channel_once() -> None:
    """64 concurrent 404 responses end the channel once, and none of those calls ran."""
    script = LegacyScript()
    async with fake_http(script) as server, talking(server.url) as talk:
        await answer(talk.call())
        script.sessions.clear()
        exchanges = [talk.call(n=n) for n in range(64)]
        errors = [await outcome(exchange) for exchange in exchanges]
        assert all(isinstance(error, LinkLost) for error in errors)
        assert any(isinstance(error, LinkLost) and not error.may_have_run for error in errors)
        assert "dropped our session" in (await until(talk)).message
        assert len(talk.ended) == 1
        assert len(server.of("initialize")) == 1
    assert server.of("DELETE") == []  # there is no session to end


# ── reuse and resources ─────────────────────────────────────────────────────────────────────────


async def test_nothing_of_a_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """HTTP libraries log whole URLs and headers, which can contain keys."""
    caplog.set_level(logging.DEBUG)
    async with (
        fake_http(LegacyScript()) as server,
        talking(f"{server.url}?key=canary", headers={"Authorization": "Bearer canary"}) as talk,
    ):
        await answer(talk.call())
    assert "canary" not in caplog.text
