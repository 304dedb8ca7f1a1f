"""Calls that wait for their turn: orphaned questions, and what is shown of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from mcpd.calls.concurrency import TurnQueue
from mcpd.calls.waiting_calls import ABSENT_TIMEOUT, CHECK_INTERVAL, RETURN_TIMEOUT
from tests.gateway.model import Asked, User, World, world

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
