"""Sessions over HTTP in memory: what happens when nobody answers, nobody listens, nobody comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from msgspec import Raw

from mcpd.api.mcp import legacy
from mcpd.api.mcp.kept_sessions import IDLE_TIMEOUT, MAX_SESSIONS, SessionFile
from mcpd.api.mcp.legacy import LegacyHttpSession, LegacyHttpSessions, Principal
from mcpd.api.mcp.scope import EndpointScope
from mcpd.calls.client_context import ClientContext, ClientIdentity, Responder
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.views import View
from mcpd.model.replica import ALONE
from mcpd.state.clients import ClientRegistry
from mcpd.wire import message as wire
from mcpd.wire.message import Message
from tests.api.mcp_endpoint.line import Line

Work = Callable[[], Awaitable[None]]


class Conversation:
    """A session of the gateway, as far as it is looked at here: it answers when told to."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.version = ""
        self.peer = ""
        self.used: object = None
        self.is_busy = False
        self.is_initialized = True
        self.calls: dict[bytes, object] = {}
        self.context = ClientContext("2025-11-25")
        self.closed = ""
        self.received: list[tuple[Message, Responder]] = []

    @property
    def accepts_batches(self) -> bool:
        return self.version == "2025-03-26"

    def receive(self, message: Message, reply: Responder) -> None:
        self.received.append((message, reply))

    def close(self, reason: str) -> None:
        self.closed = reason


@attrs.define(eq=False)
class StandIn:
    """The gateway, and all that was opened."""

    nursery: trio.Nursery
    core: SimpleNamespace = attrs.field(factory=lambda: SimpleNamespace(replica=ALONE))
    opened: list[Conversation] = attrs.field(factory=list)
    released: list[object] = attrs.field(factory=list)

    @property
    def subscriptions(self) -> StandIn:
        return self

    def uris(self, session: object) -> list[str]:
        return []

    @property
    def dedicated_servers(self) -> StandIn:
        return self

    def on_session_closed(self, session: object) -> None:
        if session not in self.released:
            self.released.append(session)

    def open_session(
        self, view: View, client: ClientIdentity, tell: Callable[[bytes], None], spawn: Any
    ) -> Conversation:
        self.opened.append(Conversation(view))
        return self.opened[-1]

    def spawn(self, work: Work) -> None:
        self.nursery.start_soon(work)


class NoFile:
    """The file in which sessions outlive the daemon: see test_session_file.py."""

    def __init__(self) -> None:
        self.sessions: dict[str, object] = {}

    def save_soon(self) -> None: ...
    async def run(self, update: object) -> None: ...


class Everything:
    single = None

    def __init__(self) -> None:
        self.scope = object()


VIEW = cast("View", Everything())
ALL = EndpointScope()
HELLO = Message(id=Raw(b"0"), method="initialize")
PING = Message(id=Raw(b"1"), method="ping")


@attrs.define(eq=False)
class World:
    gateway: StandIn
    sessions: LegacyHttpSessions
    who: Principal

    def begin(
        self, version: str = "2025-11-25", who: Principal | None = None, peer: str = "", *, uses: bool = True
    ) -> tuple[LegacyHttpSession, Conversation]:
        line = Line()
        self.sessions.open(HELLO, line.exchange, VIEW, ALL, who or self.who)
        conversation = self.gateway.opened[-1]
        conversation.version = version
        conversation.peer = peer
        conversation.is_initialized = uses
        conversation.received[0][1].finish(wire.result(b"0", b"{}"))
        found = self.find(line.header(b"Mcp-Session-Id"))
        assert found is not None
        return found, conversation

    def find(
        self, key: str, place: EndpointScope = ALL, principal: str = "token"
    ) -> LegacyHttpSession | None:
        return self.sessions.find(key, VIEW, place, attrs.evolve(self.who, name=principal))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        gateway = StandIn(nursery)
        who = Principal("token", ClientIdentity(via="http"), ClientRegistry().add(None))
        file = cast("SessionFile", NoFile())
        yield World(gateway, LegacyHttpSessions(cast("Gateway", gateway), file), who)
        nursery.cancel_scope.cancel(reason="the test is over")


def post(http: LegacyHttpSession, *messages: Message, batch: bool = False) -> Line:
    line = Line()
    if batch:
        legacy.receive_batch(http, messages, line.exchange)
    else:
        [message] = messages
        legacy.receive(http, message, line.exchange)
    return line


async def test_slow_response_becomes_a_resumable_stream() -> None:
    """So that nobody in between hangs up, and a client that loses the line loses no answer."""
    async with world() as here:
        http, conversation = here.begin()
        line = post(http, PING)
        assert line.got == b""
        assert line.exchange.on_quiet is not None
        line.exchange.on_quiet()
        assert b"text/event-stream" in line.got
        priming = next(each.id for each in line.events if each.id)
        line.exchange.on_quiet()
        assert line.got.count(b": still at work") == 1
        line.exchange.hang_up("gone")
        conversation.received[-1][1].finish(b'{"id":1}\n')
        found = http.streams.find(priming)
        assert found is not None
        late = Line()
        found[0].attach(late.exchange, found[1])
        assert late.got.endswith(b'data: {"id":1}\n\n')
        assert late.over


async def test_a_failed_handshake_makes_no_session() -> None:
    async with world() as here:
        line = Line()
        here.sessions.open(HELLO, line.exchange, VIEW, ALL, here.who)
        conversation = here.gateway.opened[-1]
        conversation.version = "2025-11-25"
        conversation.received[0][1].finish(wire.error(b"0", b"{}"), -32000)
        assert b"Mcp-Session-Id" not in line.got
        assert conversation.closed
        assert len(here.sessions) == 0


async def test_session_is_bound_to_its_principal_and_path() -> None:
    """2025-11-25, Security: its name alone lets nobody in; and it cannot be guessed."""
    async with world() as here:
        http, _ = here.begin()
        assert len(http.key) >= 32
        assert here.find(http.key) is http
        assert here.find(http.key, principal="anybody") is None
        assert here.find(http.key, place=EndpointScope("another")) is None
        assert here.find(http.key[:-1]) is None


async def test_idle_sessions_end(autojump_clock: trio.testing.MockClock) -> None:
    """One with a stream open, or a call under way, is used. Its own processes end within five minutes."""
    async with world() as here:
        idle, ended = here.begin()
        listening, heard = here.begin()
        line = Line()
        legacy.listen(listening, line.exchange.head, line.exchange)
        await trio.sleep(180)
        assert not here.gateway.released
        await trio.sleep(130)
        assert here.gateway.released == [ended]
        await trio.sleep(IDLE_TIMEOUT / 2)
        assert here.find(idle.key) is idle
        await trio.sleep(IDLE_TIMEOUT * 0.9)
        assert here.find(idle.key) is idle
        await trio.sleep(IDLE_TIMEOUT * 1.1)
        assert here.find(idle.key) is None
        assert ended.closed == "idle for too long"
        assert here.find(listening.key) is listening
        assert heard.closed == ""


async def test_number_of_sessions_is_limited(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that begins one for each call takes places from nobody who works."""
    async with world() as here:
        working, conversation = here.begin()
        conversation.is_busy = True
        mock_clock.jump(1)
        oldest, _ = here.begin()
        for _ in range(MAX_SESSIONS):
            mock_clock.jump(1)
            here.begin()
        assert len(here.sessions) == MAX_SESSIONS
        assert here.find(working.key) is working
        assert here.find(oldest.key) is None
    ends = [record for record in caplog.records if "HTTP sessions" in record.getMessage()]
    assert ends
    assert all(hasattr(record, "from_outside") for record in ends), "one line per second is enough"


async def test_number_of_streams_per_session_is_limited() -> None:
    async with world() as here:
        http, _ = here.begin()
        lines = [Line() for _ in range(legacy.MAX_LISTEN_STREAMS + 1)]
        for line in lines:
            legacy.listen(http, line.exchange.head, line.exchange)
        assert b" 200 OK" in lines[-2].got
        assert b" 429 " in lines[-1].got


async def test_batch_is_answered_when_all_its_requests_are() -> None:
    """As an array; as an event with it, if something had to be said before."""
    other = Message(id=Raw(b'"b"'), method="ping")
    async with world() as here:
        http, conversation = here.begin("2025-03-26")
        line = post(http, PING, other, batch=True)
        (_, reply), (_, same) = conversation.received[-2:]
        reply.finish(b'{"id":1}\n')
        assert line.got == b""
        same.finish(b'{"id":"b"}\n')
        assert line.got.endswith(b'\r\n\r\n[{"id":1},{"id":"b"}]\n')
        line = post(http, PING, other, batch=True)
        _, reply = conversation.received[-1]
        reply.finish(b'{"id":1}\n')
        reply.send(b'{"method":"x"}')
        reply.finish(b'{"id":"b"}')
        received = [each[6:] for each in line.got.split(b"\n") if each.startswith(b"data: ")]
        assert received == [b'{"method":"x"}', b'[{"id":1},{"id":"b"}]']
        assert line.over


async def test_a_request_that_was_cancelled_keeps_no_connection_and_no_session() -> None:
    """It gets no answer, which HTTP has to say: with a stream that has nothing in it, or nothing more."""
    async with world() as here:
        http, conversation = here.begin()
        line = post(http, PING)
        _, reply = conversation.received[-1]
        reply.drop()
        assert line.over
        assert b"text/event-stream" in line.got
        assert b"data" not in line.got
        line = post(http, PING)
        _, reply = conversation.received[-1]
        reply.send(b'{"method":"x"}')
        reply.drop()
        assert line.over
        assert http.is_idle


async def test_closing_all_sessions_answers_waiting_requests() -> None:
    async with world() as here:
        http, conversation = here.begin()
        waiting, listening = post(http, PING), Line()
        legacy.listen(http, listening.exchange.head, listening.exchange)
        here.sessions.close("mcpd is stopping")
        assert b" 200 OK" in waiting.got, "libraries end their session after an error of HTTP"
        answer = json.loads(waiting.got.rpartition(b"\r\n\r\n")[2])
        assert (answer["id"], answer["error"]["message"]) == (1, "the session was closed: mcpd is stopping")
        assert answer["error"]["data"]["may_have_run"] is False
        assert listening.over
        assert conversation.closed == "mcpd is stopping"
