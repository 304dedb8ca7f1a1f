"""Event streams over Streamable HTTP, with and without a request: interruption, resumption, silence."""

from __future__ import annotations

import gc
import gzip
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from mcpd.model.errors import ProtocolViolation
from mcpd.transports.mcp_http_responses import _is_offered
from mcpd.transports.outgoing_request import AwaitedExchange
from tests.fakes.http import LegacyScript, ModernScript, Request, fake_http
from tests.stopwatch import affordable, stopwatch, within
from tests.transports.remote import BOUND, answer, answer_of_a_list, asked, outcome, talking

pytestmark = pytest.mark.usefixtures("engine")


async def test_response_may_follow_notifications_on_an_event_stream() -> None:
    """Comments, empty events and CRLF are accepted, and progress reaches its request."""
    heard: list[bytes] = []

    class Listening(AwaitedExchange):
        def progressed(self, params: object) -> None:
            heard.append(bytes(params))  # type: ignore[call-overload]

    async def stream(request: Request) -> None:
        token = request.message["params"]["_meta"]["progressToken"]
        progress = {"jsonrpc": "2.0", "method": "notifications/progress"}
        progress["params"] = {"progressToken": token, "progress": 1}  # type: ignore[assignment]
        await request.events()
        await request.send(b": hello\r\n\r\nid: 1\r\ndata:\r\n\r\n")
        await request.event(json.dumps(progress).encode())
        await request.event(request.answer({"content": []}))
        await request.end()

    async with fake_http(LegacyScript(on={"tools/call": stream})) as server, talking(server.url) as talk:
        exchange = Listening(idle_timeout=30, total_timeout=30)
        talk.link.submit(exchange, "tools/call", b'{"name":"echo"}')
        await answer(exchange)
        assert json.loads(heard[0])["progress"] == 1


_LONG = {"content": [], "text": "x" * 70_000}
_MODERN_LIMIT = r"answered tool 'echo' with more than 65536 bytes \(raise `maxFrame`.*it may have run"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_response_longer_than_the_limit_fails_only_its_call(is_stream: bool) -> None:
    """The rest of a stream that stays open after it is not waited for."""

    async def respond(request: Request) -> None:
        arguments = request.message["params"]["arguments"]
        if arguments.get("late"):
            await may_answer.wait()
            await request.result({"content": []})
        elif is_stream:
            await request.events()
            await request.event(request.answer(_LONG))
            await request.wait_hung_up()
            was_closed.set()
        else:
            await request.reply(200, request.answer(_LONG))

    may_answer, was_closed = trio.Event(), trio.Event()
    async with (
        fake_http(ModernScript(on={"tools/call": respond})) as server,
        talking(server.url, max_frame=1 << 16) as talk,
    ):
        other = talk.call(late=True)
        error = await outcome(talk.call())
        assert isinstance(error, ProtocolViolation)
        assert re.search(_MODERN_LIMIT, str(error))
        assert error.may_have_run is True
        if is_stream:
            with trio.fail_after(BOUND):
                await was_closed.wait()
        may_answer.set()
        assert await answer(other) == {"content": []}
        await answer_of_a_list(talk)


async def test_a_broken_stream_is_resumed_where_its_last_event_ended() -> None:
    """It is resumed by GET with Last-Event-ID after the `retry` time, without duplicate events."""
    changes = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    times: list[float] = []
    taken: list[float] = []
    asked_for: list[bytes] = []

    async def begin(request: Request) -> None:
        asked_for.append(request.answer({"content": [], "late": True}))
        await request.events()
        await request.event(b"", id="s:1", retry="300")
        await request.event(changes, id="s:2")
        times.append(trio.current_time())
        taken.append(watch.now())
        request.reset()

    async def resume(request: Request) -> None:
        times.append(trio.current_time())
        taken.append(watch.now())
        await request.events()
        await request.event(asked_for[0], id="s:3")
        await request.end()

    script = LegacyScript(on={"tools/call": begin, "GET": resume})
    with stopwatch() as watch:
        async with fake_http(script) as server, talking(server.url, follow=False) as talk:
            assert (await answer(talk.call()))["late"] is True
            (get,) = server.of("GET")
            assert get.headers["last-event-id"] == "s:2"
            assert get.headers["accept"] == "text/event-stream"
            assert times[1] - times[0] >= 0.25
            assert within(taken[1] - taken[0], 0.6)
            assert talk.changes == ["tools"]
            assert len(server.of("tools/call")) == 1


LISTENING = {"tools": {"listChanged": True}}


async def test_stream_is_opened_for_a_server_that_announces_changes() -> None:
    """A GET follows the handshake. After an interruption, the stream is reopened and lists are fetched."""
    lives = 0

    async def tell(request: Request) -> None:
        nonlocal lives
        lives += 1
        await request.events()
        await request.send(b"retry: 100\n\n")
        await request.event(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        if lives == 1:
            request.reset()
        else:
            await request.wait_hung_up()

    script = LegacyScript(on={"GET": tell}, capabilities=LISTENING)
    async with fake_http(script) as server, talking(server.url) as talk:
        await asked(server, "GET", 2)
        with trio.fail_after(BOUND):
            while len(talk.changes) < 3:  # noqa: ASYNC110 - a test's wait
                await trio.sleep(0.01)
        assert server.asked().index("notifications/initialized") < server.asked().index("GET")
        await answer(talk.call())


@pytest.mark.parametrize(
    ("status", "content_type", "expected"),
    [
        (200, "text/event-stream; charset=utf-8", True),
        (200, "text/html", False),
        (404, "", False),
        (405, "", False),
        (429, "", True),
        (503, "text/event-stream", True),
    ],
)
def test_stream_is_asked_for_again_unless_the_server_has_none(
    status: int, content_type: str, expected: bool
) -> None:
    response = httpx.Response(status, headers={"Content-Type": content_type})
    assert _is_offered(response) is expected


# ── floods ──────────────────────────────────────────────────────────────────────────────────────


class Turns:
    """The longest turn of the event loop while it was watched."""

    longest = 0.0
    """CPU seconds."""


@asynccontextmanager
async def watching_turns() -> AsyncIterator[Turns]:
    """Watch the event loop. The garbage collector is off, because this process has far more objects than
    a daemon."""
    turns = Turns()

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await trio.lowlevel.checkpoint()
            turns.longest = max(turns.longest, time.thread_time() - began)

    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield turns
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("noise", [b"\n", b":\n", b"x\n", b"retry\n"])
async def test_flood_without_events_is_refused_and_delays_nothing(noise: bytes, compressed: bool) -> None:
    """230 KiB of gzip become 230 MiB of blank lines. The error names the limit."""
    flood = noise * ((230 if compressed else 4) * (1 << 20) // len(noise))
    if compressed:
        flood = gzip.compress(flood, 6)

    async def drown(request: Request) -> None:
        coding = {"Content_Encoding": "gzip"} if compressed else {}
        await request.reply(200, flood, "text/event-stream", **coding)

    async with fake_http(ModernScript(on={"tools/call": drown})) as server, talking(server.url) as talk:
        await answer_of_a_list(talk)
        longest = []
        for _ in range(3):
            async with watching_turns() as turns:
                error = await outcome(talk.call())
            longest.append(turns.longest)
            assert isinstance(error, ProtocolViolation)
            assert "bytes without an event (the limit is 1048576 bytes" in error.message
            await answer_of_a_list(talk)
    assert affordable(min(longest), 0.02)
