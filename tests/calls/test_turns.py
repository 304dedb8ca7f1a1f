"""Calls that take turns at one server do not wait long, nor without reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from mcpd.calls.call import Binding, Call
from mcpd.calls.questions.open_questions import OpenQuestions
from mcpd.calls.questions.router import AMBIGUITY_TIMEOUT, ANSWER_TIMEOUT
from mcpd.calls.routes import DIRECT, resolve_route
from mcpd.calls.turns import (
    ABSENT_WAIT,
    ANSWER_WAIT,
    CLIENT_TURNS,
    DECLARED,
    LOOK_INTERVAL,
    QUESTION_WAIT,
    UNDECLARED,
    ClientTurns,
    turn_owner,
)
from mcpd.config.settings import Settings
from mcpd.model.server_spec import RemoteSpec
from mcpd.supervision.elicitation_history import QUIET_AFTER
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import (
    Asked,
    Json,
    Script,
    Stub,
    User,
    World,
    make_catalog,
    make_server,
    world,
)

Clock = trio.testing.MockClock


def tool(**hints: bool) -> Json:
    return {"name": "converse", "annotations": hints}


@pytest.fixture
async def w() -> AsyncIterator[World]:
    """A server that may ask, and whose tools take no write turns."""
    async with world(concurrency="auto") as made:
        made.server.catalog = make_catalog(tools=[tool(readOnlyHint=False, openWorldHint=True)])
        yield made


@pytest.fixture
async def writing() -> AsyncIterator[World]:
    """A server with tools that say that they write, and which asks nobody."""
    async with world(concurrency="auto", version=MODERN) as made:
        made.server.catalog = make_catalog(tools=[tool(readOnlyHint=False)])
        yield made


def users(w: World, count: int) -> list[User]:
    return [w.user("legacy" if number % 2 else "modern") for number in range(count)]


def texts(asked: Asked) -> list[object]:
    """What the server was told during that call, its own tag first."""
    assert asked.done is not None
    received: list[object] = json.loads(asked.done["result"]["content"][0]["text"])
    return received


def at_server(w: World) -> list[str]:
    w.hear()
    return [call.tag for call in w.work.values()]


def finish(w: World, user: User) -> None:
    """The server ends that client's calls."""
    w.hear()
    for call in [call for call in w.work.values() if call.tag == user.tag]:
        w.end(call)


def asked(w: World, kind: str = "legacy") -> tuple[User, Asked]:
    """Return a client that was asked during its call, and the call."""
    user = w.user(kind)
    call = user.call()
    w.hear()
    w.ask(next(work for work in w.work.values() if work.tag == user.tag))
    return user, call


# ── servers that may ask ────────────────────────────────────────────────────────────────────────


async def test_calls_overlap_after_a_bounded_wait_and_at_once_when_the_tool_is_known(
    autojump_clock: Clock, w: World
) -> None:
    """Eight clients with a tool that takes two seconds."""
    everybody = users(w, 8)

    async def serve(since: float) -> list[float]:
        """Answer each call two seconds after it has arrived; return when that was."""
        arrived, answered = dict[int, float](), list[float]()
        while len(answered) < len(everybody):
            w.hear()
            now = trio.current_time()
            for key, call in list(w.work.items()):
                if now >= arrived.setdefault(key, now) + 2:
                    w.end(call)
                    answered.append(now - since)
            await trio.sleep(0.01)
        return answered

    for latest in (4.05, 2.05):
        calls = [user.call() for user in everybody]
        answered = await serve(trio.current_time())
        assert min(answered) >= 2
        assert max(answered) <= latest
        assert all(call.done is not None and "result" in call.done for call in calls)
    assert w.empty() == []


async def test_a_tool_that_has_asked_waits_two_seconds_for_each_other_client(
    autojump_clock: Clock, w: World
) -> None:
    """Five clients that need 1.5 s each are asked one after the other, so that each gets its own question."""
    everybody = [w.user("legacy") for _ in range(5)]
    calls = [user.call() for user in everybody]
    for user in everybody:
        await trio.sleep(0.1)
        assert at_server(w) == [user.tag]
        w.ask(next(iter(w.work.values())))
        await trio.sleep(1)
        user.answer()
        await trio.sleep(0.5)
        finish(w, user)
    for user, call in zip(everybody, calls, strict=True):
        assert texts(call) == [user.tag, {"action": "accept", "content": {"name": user.tag}}]


async def test_question_during_overlapping_calls_is_refused(autojump_clock: Clock, w: World) -> None:
    """The server learns why."""
    a, b = w.user("legacy"), w.user("legacy")
    a.call()
    b.call()
    await trio.sleep(QUESTION_WAIT + 0.01)
    assert at_server(w) == [a.tag, b.tag]
    call = next(iter(w.work.values()))
    w.ask(call)
    await trio.sleep(AMBIGUITY_TIMEOUT + 1)
    assert a.questions == b.questions == []
    w.hear()
    (heard,) = call.heard
    assert "unclear" in heard["error"]["message"]


@pytest.mark.parametrize("kind", ["legacy", "modern"])
async def test_wait_for_the_answer_of_another_client_is_bounded(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    """While a person thinks about one client's question, others learn for whom they wait, and what to do."""
    thinks, _ = asked(w, kind)
    refused = w.user("legacy").call()
    await trio.sleep(ANSWER_WAIT - 2 * LOOK_INTERVAL)
    assert refused.done is None
    await trio.sleep(2 * LOOK_INTERVAL + 0.1)
    assert refused.done is not None
    assert refused.done["error"]["data"]["may_have_run"] is False
    message = refused.done["error"]["message"]
    assert "for an answer of " in message
    assert "which tool 'converse' asked (u0: who?) at 20" in message
    assert "share: client" in message
    assert at_server(w) == [thinks.tag]
    assert w.gateway.calls.questions.open.of(w.server), "the question stays open"


async def test_calls_of_the_client_that_was_asked_do_not_wait_for_it(autojump_clock: Clock, w: World) -> None:
    """Those behind another client's call run when that has given up, or after the answer."""
    user, _ = asked(w)
    user.call()
    assert at_server(w) == [user.tag] * 2
    other = w.user("legacy")
    other.call()
    user.call()
    assert at_server(w) == [user.tag] * 2
    await trio.sleep(QUESTION_WAIT + LOOK_INTERVAL)
    assert at_server(w) == [user.tag] * 3
    user.answer()
    await trio.sleep(QUESTION_WAIT + LOOK_INTERVAL)
    assert at_server(w) == [user.tag] * 3 + [other.tag]


@pytest.mark.parametrize("kind", ["modern", "stateless"])
async def test_question_of_a_client_that_is_gone_is_dropped(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    """Counted from when others wait."""
    gone, call = asked(w, kind)
    await trio.sleep(1)
    assert call.needs is not None
    gone.leave()
    await trio.sleep(15)
    assert w.gateway.calls.questions.open.of(w.server), "nobody waits"
    waits = w.user("legacy")
    waits.call()
    await trio.sleep(ABSENT_WAIT)
    assert at_server(w) == [gone.tag]
    await trio.sleep(QUESTION_WAIT + 2 * LOOK_INTERVAL)
    assert at_server(w) == [waits.tag]
    assert not w.gateway.calls.questions.open.of(w.server)


async def test_round_of_a_modern_server_is_ended(autojump_clock: Clock) -> None:
    """It holds its turn between two rounds if calls must not overlap."""
    async with world(concurrency="serial", version=MODERN) as w:
        user = w.user("legacy")
        call = user.call()
        w.hear()
        (work,) = w.work.values()
        w.need_input(work, asks=True)
        await trio.sleep(0.1)
        assert user.questions
        user.session.has_connection = lambda: False
        waits = w.user("legacy")
        waits.call()
        await trio.sleep(ABSENT_WAIT + 3 * LOOK_INTERVAL)
        assert call.done is not None
        assert call.done["error"]["data"]["code"] == "input_required"
        assert "its client has disconnected, and others wait" in call.done["error"]["message"]
        assert at_server(w) == [waits.tag]
        assert not user.questions
        assert not w.gateway.calls.questions.open.of(w.server)


@pytest.mark.parametrize("kind", ["modern", "legacy"])
async def test_question_moves_to_the_other_call_when_its_call_ends(
    autojump_clock: Clock, w: World, kind: str
) -> None:
    """Of one client's two calls, nobody can tell which one asks. If the presumed one ends, the other still
    gets its answer."""
    user = w.user(kind)
    first, second = user.call(), user.call()
    w.hear()
    one, other = w.work.values()
    w.ask(other)
    w.end(one)
    await trio.sleep(1)
    assert first.done is not None
    if kind == "modern":
        user.come_back(second)
    else:
        user.answer()
    w.hear()
    assert not other.waits_for
    w.end(other)
    assert texts(second) == [user.tag, {"action": "accept", "content": {"name": user.tag}}]
    assert w.empty() == []


async def test_question_of_an_ended_call_is_cancelled(autojump_clock: Clock, w: World) -> None:
    """The client's dialog closes; a late answer is ignored, and the server gets a decline."""
    user, _ = asked(w)
    (question,) = user.questions
    (call,) = w.work.values()
    w.end(call)
    assert user.questions == []
    user.say({"id": question["id"], "result": {"action": "accept", "content": {}}})
    w.hear()
    assert w.late == ["s1"]
    assert w.empty() == []


async def test_time_to_answer_does_not_count_as_silence(autojump_clock: Clock, w: World) -> None:
    """Not for other calls that the question may belong to, either; after the answer, silence counts again."""
    user = w.user("legacy")
    first, second = user.call(), user.call()
    w.hear()
    one, _ = w.work.values()
    w.ask(one)
    await trio.sleep(ANSWER_TIMEOUT - 10)
    assert first.done is None
    assert second.done is None
    user.answer()
    await trio.sleep(115)
    assert first.done is None
    await trio.sleep(10)
    for each in (first, second):
        assert each.done is not None
        assert each.done["error"]["data"]["code"] == "timeout"
    assert w.empty() == []


# ── servers that come and go ────────────────────────────────────────────────────────────────────


async def test_queued_call_is_sent_to_the_next_process(autojump_clock: Clock, w: World) -> None:
    """Nothing of it was sent before, so that is safe."""
    one, two = w.user("legacy"), w.user("modern")
    running, waiting = one.call(), two.call()
    w.lose()
    assert running.done is not None
    assert running.done["error"]["data"]["may_have_run"]
    assert waiting.done is None
    w.connect()
    await trio.testing.wait_all_tasks_blocked()
    assert at_server(w) == [two.tag]
    finish(w, two)
    assert texts(waiting) == [two.tag]
    assert w.empty() == []


async def test_cancellation_together_with_the_servers_return_is_honored(
    autojump_clock: Clock, w: World
) -> None:
    """Both arrive at the same moment: nothing is sent, and the connection continues."""
    user = w.user("legacy")
    w.lose()
    unwanted = user.call()
    await trio.testing.wait_all_tasks_blocked()
    w.connect()
    user.cancel(unwanted)
    await trio.testing.wait_all_tasks_blocked()
    assert at_server(w) == []
    wanted = user.call()
    finish(w, user)
    assert texts(wanted) == [user.tag]


# ── exclusive calls ─────────────────────────────────────────────────────────────────────────────


async def test_call_waits_for_its_turn_no_longer_than_for_an_answer(autojump_clock: Clock) -> None:
    async with world(concurrency="serial") as w:
        script = Script(w)
        script.call(arguments={"tag": "first"})
        second = script.call()
        assert len(at_server(w)) == 1
        (working,) = w.work.values()
        for _ in range(13):
            await trio.sleep(10)
            w.progress(working)
        error = script.error(second)
        assert error["data"]["may_have_run"] is False
        assert "waited 120 s" in error["message"]
        w.end(working)
        assert at_server(w) == []
        assert w.empty() == []


async def test_waiting_calls_are_limited_by_max_queued(autojump_clock: Clock) -> None:
    async with world(concurrency="serial") as w:
        most, script = w.server.spec.max_queued, Script(w)
        script.call(arguments={"tag": "first"})
        for _ in range(most):
            script.call()
        assert script.answers == {}
        error = script.error(script.call())
        assert error["data"]["code"] == "overloaded"
        assert "256 calls are already waiting for their turn" in error["message"]
        assert len(w.server.attachments[CLIENT_TURNS]) == 1 + most


@pytest.mark.parametrize("there", [False, True])
async def test_failed_turn_goes_to_the_next(autojump_clock: Clock, there: bool) -> None:
    """Its server is gone by then, or it hits a bug: the queue goes on."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    async with world(concurrency="serial") as w:
        script = Script(w)
        script.call(arguments={"tag": "first"})
        failing = script.call(arguments={"tag": "failing"})
        w.hear()
        (first,) = w.work.values()
        submit = w.wire.submit
        w.wire.submit = broken  # type: ignore[method-assign]
        if not there:
            w.server.upstream = None
            w.up = trio.Event()
        w.end(first)
        await trio.sleep(31)
        assert failing in script.answers
        w.wire.submit = submit  # type: ignore[method-assign]
        w.connect()
        script.call(arguments={"tag": "last"})
        assert at_server(w) == ["last"]


# ── write turns ─────────────────────────────────────────────────────────────────────────────────


async def test_calls_that_write_take_turns(autojump_clock: Clock, writing: World) -> None:
    """Those of one client overlap, also those that wait for another client together."""
    w = writing
    a, b, c = users(w, 3)
    for user in (a, a, b, b, c, a):
        user.call()
    for user, count in ((a, 2), (b, 2), (c, 1), (a, 1)):
        assert at_server(w) == [user.tag] * count
        finish(w, user)
    assert w.empty() == []


@pytest.mark.parametrize(("hints", "turn"), [({"readOnlyHint": False}, DECLARED), ({}, UNDECLARED)])
async def test_nobody_waits_longer_than_one_turn_in_all(
    autojump_clock: Clock, writing: World, hints: Json, turn: float
) -> None:
    """However many clients make calls that take longer. Later calls wait for none of them."""
    w = writing
    w.server.catalog = make_catalog(tools=[tool(**hints)])
    everybody = users(w, 6)
    for user in everybody:
        user.call()
    await trio.sleep(turn - 0.01)
    assert at_server(w) == [everybody[0].tag]
    await trio.sleep(0.02)
    assert len(at_server(w)) == 6
    await trio.sleep(turn)
    late = w.user("legacy")
    late.call()
    assert at_server(w)[-1] == late.tag


async def test_turn_ends_at_the_time_for_which_the_clock_is_set(mock_clock: Clock, writing: World) -> None:
    """Although the difference of the times is less than the turn. Otherwise the watching task would not sleep
    until the clock shows another time."""
    w = writing
    w.server.catalog = make_catalog(tools=[tool()])
    a, b = users(w, 2)
    mock_clock.jump(0.7)
    a.call()
    b.call()
    await trio.testing.wait_all_tasks_blocked()
    sent = trio.current_time()
    mock_clock.jump(UNDECLARED)
    assert trio.current_time() - sent < UNDECLARED, "rounded down"
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    assert at_server(w) == [a.tag, b.tag]


async def test_waiting_call_can_be_cancelled(autojump_clock: Clock, writing: World) -> None:
    w = writing
    a, b, c = users(w, 3)
    a.call()
    unwanted = b.call()
    c.call()
    b.say({"method": "notifications/cancelled", "params": {"requestId": unwanted.key}})
    finish(w, a)
    assert at_server(w) == [c.tag]
    finish(w, c)
    assert w.empty() == []


async def test_call_is_not_refused_because_many_wait_to_write(autojump_clock: Clock, writing: World) -> None:
    w = writing
    w.server.spec = attrs.evolve(w.server.spec, max_queued=1)
    a, b, c = users(w, 3)
    for user in (a, b, c):
        user.call()
    assert at_server(w) == [a.tag, c.tag]


@pytest.mark.parametrize(
    ("hints", "definition", "turn"),
    [
        (None, {}, UNDECLARED),
        ({"destructiveHint": True}, {}, UNDECLARED),
        ({"readOnlyHint": False}, {}, DECLARED),
        ({"readOnlyHint": False, "openWorldHint": True}, {}, 0.0),
        ({"readOnlyHint": True}, {}, 0.0),
        ({"readOnlyHint": False}, {"share": "client"}, 0.0),
        ({"readOnlyHint": False}, {"concurrency": "free"}, 0.0),
        ({"readOnlyHint": False}, {"concurrency": "writes"}, 0.0),
    ],
)
def test_which_tools_take_write_turns(hints: Json | None, definition: Json, turn: float) -> None:
    tools = [] if hints is None else [tool(**hints)]
    server = make_server(catalog=make_catalog(tools=tools), **definition)
    route = resolve_route(DIRECT, server, "tools/call", "converse", Settings(), ())
    assert route.write_turn == turn
    assert route.may_wait is (turn > 0 or route.is_exclusive)
    assert resolve_route(DIRECT, server, "prompts/get", "converse", Settings(), ()).write_turn == 0.0


def test_remote_servers_take_no_write_turns() -> None:
    """They have other users anyway."""
    server: Any = make_server()
    server.spec = RemoteSpec(name="srv", kind="http", url="http://h/")
    assert resolve_route(DIRECT, server, "tools/call", "t", Settings(), ()).write_turn == 0.0


# ── the rules for one call ──────────────────────────────────────────────────────────────────────


def a_call(server: Any, caller: Any, method: str = "tools/call", **more: Any) -> Any:
    """Return a call that is about to be sent."""
    context: Any = SimpleNamespace(accepts_server_requests=True)
    name = more.get("tool", "t") if method == "tools/call" else ""
    call = Call(
        handler=Stub(),
        caller=caller,
        request=None,
        context=context,
        server=server,
        params=b"{}",
        route=resolve_route(DIRECT, server, method, name, Settings(), ()),
        idle_timeout=10.0,
    )
    link: Any = Stub(correlates_server_requests=more.get("correlates", False))
    call.binding = Binding(
        upstream=Stub(link=link),  # type: ignore[arg-type]
        context=context,
        translation=Stub(),  # type: ignore[arg-type]
        is_verbatim=True,
        awaits_visits=False,
        meta=b"",
        may_ask=more.get("may_ask", True),
    )
    return call


READER: Json = {"name": "reader", "annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize(
    ("concurrency", "method", "call", "is_quiet", "owner"),
    [
        ("auto", "tools/call", {}, False, "caller"),
        ("auto", "prompts/get", {}, False, "caller"),
        ("auto", "completion/complete", {}, False, None),
        ("auto", "tools/call", {"may_ask": False}, False, None),
        ("auto", "tools/call", {"correlates": True}, False, None),
        ("auto", "tools/call", {}, True, None),
        ("auto", "tools/call", {"tool": "reader"}, False, None),
        ("free", "tools/call", {}, False, None),
        ("writes", "tools/call", {}, True, "call"),
        ("writes", "tools/call", {"may_ask": False}, False, "call"),
        ("writes", "tools/call", {"tool": "reader"}, False, None),
        ("writes", "prompts/get", {}, False, "caller"),
        ("serial", "tools/call", {"tool": "reader"}, True, "call"),
        ("serial", "resources/read", {}, True, None),
    ],
)
def test_which_calls_need_a_turn(
    concurrency: str, method: str, call: Json, is_quiet: bool, owner: str | None
) -> None:
    """Exclusive calls own their turn; those that the server may ask in share one with their client."""
    server = make_server(catalog=make_catalog(tools=["t", READER]), concurrency=concurrency)
    caller = Stub()
    made = a_call(server, caller, method, **call)
    for _ in range(QUIET_AFTER if is_quiet else QUIET_AFTER - 1):
        server.elicitation_history.record_answer(method, made.tool)
    assert turn_owner(made) is {"caller": caller, "call": made, None: None}[owner]


def a_queue(server: Any, started: list[Call]) -> ClientTurns:
    return ClientTurns(started.append, lambda work: None, server, Stub(), OpenQuestions())


async def test_clients_take_turns_with_exclusive_calls() -> None:
    """Many calls of one client do not delay those of another."""
    server, started = make_server(concurrency="serial"), list[Call]()
    queue = a_queue(server, started)
    a, b, c = Stub(), Stub(), Stub()
    calls = [a_call(server, caller) for caller in (a, a, a, a, b, b, c)]
    assert [queue.enter(call, call) for call in calls] == [True, *[False] * 6]
    queue.leave(calls[4])  # it was cancelled
    running = calls[0]
    while len(queue):
        queue.leave(running)
        running = started[-1]
    assert started == [calls[n] for n in (1, 5, 6, 2, 3)]


async def test_turns_that_end_immediately_do_not_recurse() -> None:
    """As when a server has gone: each turn ends as it begins, and the last call still gets its own."""
    server, started = make_server(concurrency="serial", max_queued=5000), list[Call]()
    queue = a_queue(server, started)

    def pass_on(call: Call) -> None:
        started.append(call)
        queue.leave(call)

    queue._start = pass_on
    first, *others = (a_call(server, Stub()) for _ in range(3000))
    queue.enter(first, "first")
    for number, call in enumerate(others):
        queue.enter(call, number // 3)
    queue.leave(first)
    assert started == others
    assert len(queue) == 0
