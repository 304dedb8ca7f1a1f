"""HTTP+SSE, the transport of revision 2024-11-05, against a scripted server on loopback."""

from __future__ import annotations

import pytest
import trio

from mcpd.model.errors import HttpRefused, LinkLost, ProtocolViolation
from mcpd.model.server_spec import RemoteSpec
from mcpd.transports.legacy_http_sse import open_http_sse
from mcpd.transports.outgoing_request import AwaitedExchange
from tests.fakes.http import FakeHttp, Json, Request, fake_http
from tests.transports.remote import outcome, talking

pytestmark = pytest.mark.usefixtures("engine")

BOUND = 30


class SseScript:
    """A server of the first revision, with one stream and one endpoint for messages."""

    def __init__(self, endpoint: str = "/inbox?sessionId=1") -> None:
        self.endpoint = endpoint
        self.stream: Request | None = None
        self.posted: list[Json] = []
        self.calls = True
        self.accepts = 202

    async def __call__(self, request: Request) -> None:
        if request.method == "GET":
            self.stream = request
            await request.events()
            await request.event(self.endpoint.encode(), event="endpoint")
            await request.wait_hung_up()
            return
        assert self.stream is not None
        self.posted.append(request.message)
        await request.reply(self.accepts, b"Accepted", "text/plain")
        answer = self.answer(request)
        if answer is not None and self.accepts < 300:
            await self.stream.event(answer, event="message")

    def answer(self, request: Request) -> bytes | None:
        match request.rpc:
            case "initialize":
                return request.answer({"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}})
            case "tools/call" if self.calls:
                return request.answer({"content": []})
            case "tools/list":
                return request.answer({"tools": []})
            case _:
                return None


def sse(server: FakeHttp) -> str:
    return f"http://127.0.0.1:{server.port}/sse"


async def test_messages_go_to_the_endpoint_and_answers_come_on_the_stream() -> None:
    """The endpoint is relative to the URL of the stream, and the handshake keeps its order."""
    script = SseScript()
    async with (
        fake_http(script) as server,
        talking(sse(server), kind="sse", hint="legacy", headers={"X-Key": "k"}) as talk,
    ):
        with trio.fail_after(BOUND):
            await talk.call().wait_response()
        assert talk.upstream.version == "2024-11-05"
    assert [request.path for request in server.requests] == ["/sse"] + 3 * ["/inbox?sessionId=1"]
    assert [message["method"] for message in script.posted] == [
        "initialize",
        "notifications/initialized",
        "tools/call",
    ]
    assert {request.headers["x-key"] for request in server.requests} == {"k"}


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://evil.example/inbox",
        "//evil.example/inbox",
        "https://127.0.0.1/inbox",
        "http://127.0.0.1:1/inbox",
        "http://127.0.0.1:x/inbox",
        "http://[::1/inbox",
        pytest.param("/in\x01box", id="no text"),
        pytest.param(f"/{'inbox' * 20_000}", id="without end"),
        "file:///etc/passwd",
    ],
)
async def test_an_endpoint_of_another_origin_is_refused(endpoint: str) -> None:
    """Nothing is sent to the other origin."""
    async with fake_http(SseScript(endpoint)) as server:
        async with open_http_sse(RemoteSpec(name="it", kind="sse", url=sse(server)), {}) as link:
            exchange = AwaitedExchange()
            link.submit(exchange, "initialize", b"{}")
            with pytest.raises(ProtocolViolation, match="another origin") as raised, trio.fail_after(BOUND):
                await link.run()
        assert exchange.error is raised.value
        assert len(server.requests) == 1


async def test_message_over_the_limit_ends_the_channel() -> None:
    script = SseScript()
    script.calls = False
    async with (
        fake_http(script) as server,
        talking(sse(server), kind="sse", hint="legacy", max_frame=1 << 16) as talk,
    ):
        call = talk.call()
        assert script.stream is not None
        await script.stream.event(b'{"text":"%b"}' % (b"x" * 70_000), event="message")
        error = await outcome(call)
        assert isinstance(error, LinkLost)
        assert "an event with more than 65536 bytes (raise `maxFrame`" in error.message


async def test_end_of_the_stream_ends_the_channel() -> None:
    """Requests in flight fail; calls that were sent may have run."""
    script = SseScript()
    script.calls = False
    async with fake_http(script) as server, talking(sse(server), kind="sse", hint="legacy") as talk:
        exchange = talk.call()
        with trio.fail_after(BOUND):
            while len(script.posted) < 3:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.01)
            assert script.stream is not None
            script.stream.reset()
            await exchange.done.wait()
            while not talk.ended:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.01)
        assert isinstance(exchange.error, LinkLost)
        assert exchange.error.may_have_run
        assert isinstance(talk.ended[0], LinkLost)


async def test_a_refused_message_fails_its_call_alone() -> None:
    """The stream stays open."""
    script = SseScript()
    async with fake_http(script) as server, talking(sse(server), kind="sse", hint="legacy") as talk:
        script.accepts = 503
        exchange = talk.call()
        with trio.fail_after(BOUND):
            await exchange.done.wait()
        assert isinstance(exchange.error, HttpRefused)
        script.accepts = 202
        with trio.fail_after(BOUND):
            await talk.call().wait_response()


async def test_call_that_is_cancelled_before_the_endpoint_is_known_is_not_sent() -> None:
    script = SseScript()
    async with fake_http(script) as server:
        spec = RemoteSpec(name="it", kind="sse", url=sse(server))
        async with open_http_sse(spec, {}) as link, trio.open_nursery() as nursery:
            cancelled, kept = AwaitedExchange(), AwaitedExchange()
            link.submit(cancelled, "tools/call", b"{}")
            link.submit(kept, "tools/list", b"{}")
            link.cancel(cancelled, "not wanted")
            nursery.start_soon(link.run)
            with trio.fail_after(BOUND):
                await kept.wait_response()
            nursery.cancel_scope.cancel()
    assert [message["method"] for message in script.posted] == ["tools/list"]
