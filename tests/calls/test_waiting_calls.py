"""Calls that wait for their turn: orphaned questions, spare instances, and what is shown of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcpd.calls.concurrency import TurnQueue
from mcpd.calls.waiting_calls import ABSENT_TIMEOUT, ANSWER_DELAY, CHECK_INTERVAL, RETURN_TIMEOUT
from mcpd.gateway.per_client_servers import LINGER_SECONDS, MAX_SPARES, SPARE_RETRY
from mcpd.model.status import ServerState
from tests.gateway.model import Asked, User, Wire, World, make_server, make_upstream, world

Clock = trio.testing.MockClock


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def asked(w: World, kind: str = "legacy") -> tuple[User, Asked]:
    """Return a client that was asked during its call, and the call."""
    user = w.user(kind)
    call = user.call()
    w.hear()
    w.ask(next(work for work in w.work.values() if work.tag == user.tag))
    return user, call


def tags(w: World) -> list[str]:
    w.hear()
    return [work.tag for work in w.work.values()]


class Spares:
    """A supervisor whose spare instances connect after a second, or not at all."""

    def __init__(self, w: World, *, works: bool = True) -> None:
        self.w = w
        self.works = works
        self.all: list[Any] = []
        self.running: list[Any] = []
        w.server.spec = attrs.evolve(w.server.spec, has_no_spare=False)
        supervisor: Any = w.gateway.core.supervisor
        supervisor.start_instance = self.start
        supervisor.stop_instance = lambda server, reason: self.running.remove(server)
        supervisor.instances = lambda: list(self.running)
        supervisor.is_ending = lambda server: server not in self.running

    def start(self, original: Any, spec: Any) -> Any:
        server = make_server()
        server.original, server.spec, server.state = original, spec, ServerState.PENDING
        server.wire = Wire()
        server.request_start = lambda: self.w.nursery.start_soon(self.connect, server)
        server.settled = trio.Event()
        server.wait_settled = server.settled.wait
        server.status = lambda: SimpleNamespace(in_flight=server.wire.in_flight)
        self.all.append(server)
        self.running.append(server)
        return server

    async def connect(self, server: Any) -> None:
        await trio.sleep(1)
        if self.works:
            server.upstream = make_upstream(server.wire)
            self.w.nursery.start_soon(server.wire.run)
        server.state = ServerState.CONNECTED if self.works else ServerState.FAILED
        server.settled.set()


@pytest.mark.parametrize("kind", ["legacy", "modern", "stateless"])
async def test_others_are_sent_to_a_spare_while_a_client_thinks(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    """The question stays open, and those who come later wait no longer than the answer itself."""
    spares = Spares(w)
    asked(w, kind)
    w.user("legacy").call()
    await trio.sleep(ANSWER_DELAY + 2 + 2 * CHECK_INTERVAL)
    (spare,) = spares.running
    assert len(spare.wire.outstanding()) == 1
    assert w.server.log is not None
    w.user("modern").call()
    assert len(spare.wire.outstanding()) == 1, "one client at a time, there too"
    assert len(w.server.turn_queue) == 1, "only the one that was asked"
    assert len(w.gateway.calls.open_questions.of(w.server)) == 1


async def test_spare_ends_when_it_is_not_used(autojump_clock: Clock, w: World) -> None:
    spares = Spares(w)
    asked(w)
    waits = w.user("legacy")
    waits.call()
    await trio.sleep(10)
    (spare,) = spares.running
    await trio.sleep(1.5 * LINGER_SECONDS)
    assert spares.running == [spare], "its call has not ended"
    waits.leave()
    await trio.sleep(LINGER_SECONDS / 2)
    assert spares.running == []
    assert w.gateway.dedicated_servers.spares([w.server]) == []


async def test_spare_that_does_not_start_is_not_tried_again_for_a_while(
    autojump_clock: Clock, w: World
) -> None:
    """The call keeps its place, and fails only when it has waited too long."""
    spares = Spares(w, works=False)
    user, _ = asked(w)
    waiting = w.user("legacy").call()
    await trio.sleep(100)
    assert len(spares.all) == 1
    assert waiting.done is None
    user.answer()
    w.hear()
    w.end(next(iter(w.work.values())))
    assert len(tags(w)) == 1, "its turn came"
    await trio.sleep(SPARE_RETRY)
    assert spares.running == []


async def test_number_of_spares_is_limited(autojump_clock: Clock, w: World) -> None:
    """Each may be blocked by another question."""
    spares = Spares(w)
    asked(w)
    for _ in range(MAX_SPARES + 2):
        w.user("legacy").call()
        await trio.sleep(8)
        for spare in spares.running:
            for call in spare.wire.outstanding():
                if not call.open_questions:
                    w.gateway.calls.open_questions.add(call, "elicitation/create", b"{}")
    await trio.sleep(8)
    assert len(spares.all) == MAX_SPARES


async def test_calls_of_the_client_that_was_asked_use_no_spare(autojump_clock: Clock, w: World) -> None:
    """Its own calls run beside the one that asked."""
    spares = Spares(w)
    user, _ = asked(w)
    user.call()
    await trio.sleep(30)
    assert spares.all == []
    assert tags(w) == [user.tag] * 2


async def test_calls_of_the_owner_continue_when_the_others_use_a_spare(
    autojump_clock: Clock, w: World
) -> None:
    """They had queued up behind the others, which are gone from the queue."""
    spares = Spares(w)
    user, _ = asked(w)
    w.user("legacy").call()
    user.call()
    assert tags(w) == [user.tag]
    await trio.sleep(10)
    assert len(spares.all) == 1
    assert tags(w) == [user.tag] * 2


@pytest.mark.parametrize(("kind", "seconds"), [("modern", ABSENT_TIMEOUT), ("stateless", RETURN_TIMEOUT)])
async def test_question_of_a_client_that_is_gone_is_dropped(
    autojump_clock: Clock, w: World, kind: str, seconds: float
) -> None:
    """Counted from when others wait."""
    gone, call = asked(w, kind)
    await trio.sleep(1)
    assert call.needs is not None
    gone.leave()
    await trio.sleep(20)
    assert w.gateway.calls.open_questions.of(w.server), "nobody waits"
    waits = w.user("legacy")
    waits.call()
    await trio.sleep(seconds)
    assert tags(w) == [gone.tag]
    await trio.sleep(2 * CHECK_INTERVAL + 0.1)
    assert tags(w) == [waits.tag]
    assert not w.gateway.calls.open_questions.of(w.server)


async def test_client_that_is_back_in_time_keeps_its_question(autojump_clock: Clock, w: World) -> None:
    """A legacy client over HTTP may resume the stream of its call."""
    user, call = asked(w)
    here = True
    user.session.has_connection = lambda: here
    w.user("legacy").call()
    for _ in range(5):
        here = False
        await trio.sleep(ABSENT_TIMEOUT - CHECK_INTERVAL)
        here = True
        await trio.sleep(2 * CHECK_INTERVAL)
    assert user.questions
    here = False
    await trio.sleep(ABSENT_TIMEOUT + 2 * CHECK_INTERVAL)
    assert not user.questions, "it was withdrawn there"
    w.hear()
    (work,) = w.work.values()
    assert [heard["result"] for heard in work.heard] == [{"action": "decline"}]
    w.end(work)
    assert call.done is not None, "the call itself went on"


async def test_round_of_a_modern_server_is_ended(autojump_clock: Clock) -> None:
    """It holds its turn between two rounds if calls must not overlap."""
    async with world(concurrency="serial", version="2026-07-28") as w:
        w.server.turn_queue = TurnQueue()
        user = w.user("legacy")
        call = user.call()
        w.hear()
        (work,) = w.work.values()
        w.need_input(work, asks=True)
        await trio.sleep(0.1)
        assert user.questions
        (question,) = w.gateway.calls.open_questions.of(w.server)
        assert question.text.endswith("who?")
        user.session.has_connection = lambda: False
        waits = w.user("legacy")
        waits.call()
        await trio.sleep(ABSENT_TIMEOUT + 3 * CHECK_INTERVAL)
        assert call.done is not None
        assert call.done["error"]["data"]["code"] == "input_required"
        assert "its client has disconnected, and others wait" in call.done["error"]["message"]
        assert tags(w) == [waits.tag]
        assert not user.questions
        assert not w.gateway.calls.open_questions.of(w.server)


async def test_what_is_shown_of_questions_and_waiting_calls(autojump_clock: Clock, w: World) -> None:
    describe = w.side.describe_waiting
    assert describe is not None
    assert describe(w.server, str.upper) == ((), (), 0)
    asked(w, "modern")
    for _ in range(12):
        w.user("legacy").call()
    (question,), waiting, count = describe(w.server, str.upper)
    assert (question.client, question.call, question.text) == ("test 1", "tool 'converse'", "U0: WHO?")
    assert question.method == "elicitation/create"
    assert question.client_is_connected
    assert (len(waiting), count) == (10, 12)
    assert (waiting[0].client, waiting[0].call) == ("u1", "tool 'converse'")
