"""Clients that take turns at one server do not wait forever, nor without reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from mcpd.calls import concurrency as turns
from mcpd.calls.call import QUEUED, Binding, Call
from mcpd.calls.concurrency import TurnQueue
from mcpd.calls.open_questions import OpenQuestions
from mcpd.calls.routes import DIRECT, is_read_only, resolve_route
from mcpd.calls.server_request import ANSWER_TIMEOUT
from mcpd.calls.waiting_calls import ABSENT_TIMEOUT, WaitingCalls
from mcpd.config.settings import Settings
from mcpd.model.errors import McpdError
from mcpd.supervision.catalog import Item
from tests.gateway.model import Asked, Json, Script, Stub, User, World, make_catalog, make_server, world

Clock = trio.testing.MockClock


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


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


async def test_answer_counts_after_its_call_has_ended(autojump_clock: Clock, w: World) -> None:
    """The call was suspended with a question that belonged to another call, which gets the answer."""
    user = w.user("modern")
    first, second = user.call(), user.call()
    w.hear()
    one, other = w.work.values()
    w.ask(other)
    await trio.sleep(1)
    assert first.needs is not None
    w.end(one)
    user.come_back(first)
    assert texts(first) == [user.tag]
    finish(w, user)
    assert texts(second) == [user.tag, {"action": "accept", "content": {"name": user.tag}}]
    assert w.empty() == []


async def test_question_of_an_ended_call_is_cancelled(autojump_clock: Clock, w: World) -> None:
    """The client's dialog closes; a late answer is ignored, and the server gets a decline."""
    user = w.user("legacy")
    user.call()
    w.hear()
    (call,) = w.work.values()
    w.ask(call)
    (question,) = user.questions
    w.end(call)
    assert user.questions == []
    user.say({"id": question["id"], "result": {"action": "accept", "content": {}}})
    w.hear()
    assert w.late == ["s1"]
    assert w.empty() == []


async def test_request_that_cannot_be_sent_leaves_the_queue(autojump_clock: Clock, w: World) -> None:
    w.wire.choke()
    one, two = w.user("legacy"), w.user("legacy")
    failed = one.call()
    assert failed.done is not None
    assert failed.done["error"]["data"]["code"] == "overloaded"
    w.wire.choke(on=False)
    two.call()
    assert at_server(w) == [two.tag]


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


async def test_queued_call_fails_if_its_server_stays_away(autojump_clock: Clock, w: World) -> None:
    one, two = w.user("legacy"), w.user("legacy")
    one.call()
    waiting = two.call()
    w.lose()
    await trio.sleep(31)
    assert waiting.done is not None
    assert waiting.done["error"]["data"]["code"] == "not_ready"
    assert w.empty() == []


async def test_waiting_for_a_turn_is_bounded_by_the_timeout(autojump_clock: Clock, w: World) -> None:
    """While a person thinks about one client's question, others learn for whom they wait, and what to do."""
    thinks, waits = w.user("legacy"), w.user("legacy")
    slow = thinks.call()
    w.hear()
    (call,) = w.work.values()
    w.ask(call)
    refused = waits.call()
    await trio.sleep(119)
    assert refused.done is None
    await trio.sleep(3)
    assert refused.done is not None
    assert refused.done["error"]["data"]["may_have_run"] is False
    message = refused.done["error"]["message"]
    assert "for an answer of u0, which tool 'converse' asked (u0: who?) at 20" in message
    assert "share: client" in message
    thinks.answer()
    finish(w, thinks)
    assert texts(slow)[0] == thinks.tag
    assert w.empty() == []


async def test_client_that_disconnects_while_asked_blocks_others_briefly(
    autojump_clock: Clock, w: World
) -> None:
    """It may return over another connection for a few seconds."""
    gone, waits = w.user("modern"), w.user("legacy")
    gone.call()
    w.hear()
    (call,) = w.work.values()
    w.ask(call)
    await trio.sleep(1)
    waits.call()
    gone.leave()
    await trio.sleep(ABSENT_TIMEOUT)
    assert waits.tag not in at_server(w)
    await trio.sleep(3)
    assert at_server(w) == [waits.tag]


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
    for asked in (first, second):
        assert asked.done is not None
        assert asked.done["error"]["data"]["code"] == "timeout"
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


@pytest.mark.parametrize("kind", ["script", "legacy"])
async def test_call_waits_for_its_turn_no_longer_than_for_an_answer(autojump_clock: Clock, kind: str) -> None:
    async with world(concurrency="serial") as w:
        script = Script(w)
        script.call(arguments={"tag": "first"})
        second, user = 0, w.user("legacy")
        if kind == "script":
            second = script.call()
        else:
            user.call()
        assert len(at_server(w)) == 1
        (working,) = w.work.values()
        for _ in range(13):
            await trio.sleep(10)
            w.progress(working)
        if kind == "script":
            error = script.error(second)
        else:
            (waits,) = user.requests
            assert waits.done is not None
            error = waits.done["error"]
        assert error["data"]["may_have_run"] is False
        assert "waited 120 s" in error["message"]
        w.end(working)
        assert at_server(w) == []
        assert w.empty() == []


@pytest.mark.parametrize("kind", ["script", "legacy"])
async def test_waiting_calls_are_limited_by_max_queued(autojump_clock: Clock, kind: str) -> None:
    async with world(concurrency="serial") as w:
        most, script = w.server.spec.max_queued, Script(w)
        script.call(arguments={"tag": "first"})
        for _ in range(most):
            script.call()
        assert script.answers == {}
        if kind == "script":
            error = script.error(script.call())
        else:
            refused = w.user("legacy").call()
            assert refused.done is not None
            error = refused.done["error"]
        assert error["data"]["code"] == "overloaded"
        assert "256 calls are already waiting for their turn" in error["message"]
        assert len(w.server.turn_queue) == 1 + most


def test_turns_that_end_immediately_do_not_recurse() -> None:
    """As when a server has gone: each turn ends as it begins, and the last call still gets its own."""
    line, turns = TurnQueue(), list[int]()
    line.acquire("first", "first", lambda: None)

    def pass_on(entry: int) -> None:
        turns.append(entry)
        line.release(entry)

    for entry in range(5000):
        line.acquire(entry, entry // 3, lambda entry=entry: pass_on(entry))  # type: ignore[misc]
    line.release("first")
    assert turns == list(range(5000))
    assert len(line) == 0


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


def a_call(server: Any, caller: Any, method: str = "tools/call", **more: Any) -> Any:
    """Return a call that is about to be sent."""
    context: Any = SimpleNamespace(accepts_server_requests=more.get("accepts", True))
    tool = more.get("tool", "t") if method == "tools/call" else ""
    call = Call(
        handler=Stub(),
        caller=caller,
        request=None,
        context=context,
        server=server,
        params=b'{"name":"%b"}' % more.get("tool", "t").encode(),
        route=resolve_route(DIRECT, server, method, tool, Settings(), ()),
        idle_timeout=10.0,
    )
    call.binding = Binding(
        upstream=Stub(  # type: ignore[arg-type]
            link=Stub(correlates_server_requests=more.get("correlates", False))
        ),
        context=context,
        translation=Stub(),  # type: ignore[arg-type]
        is_verbatim=True,
        is_modern_to_legacy=False,
        meta=b"",
        may_ask=more.get("may_ask", True),
    )
    return call


def a_caller() -> Stub:
    return Stub(describe=lambda context: "cursor (pid 7)")


READER: Json = {"name": "reader", "annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize(
    ("concurrency", "method", "call", "never_asks", "owner"),
    [
        ("free", "tools/call", {}, False, "session"),
        ("free", "prompts/get", {}, False, "session"),
        ("free", "completion/complete", {}, False, None),
        ("free", "tools/call", {"may_ask": False}, False, None),
        ("free", "tools/call", {"correlates": True}, False, None),
        ("free", "tools/call", {}, True, None),
        ("free", "tools/call", {"tool": "reader"}, False, None),
        ("free", "prompts/get", {"tool": "reader"}, False, "session"),
        ("writes", "tools/call", {}, True, "call"),
        ("writes", "tools/call", {"tool": "unknown", "may_ask": False}, False, "call"),
        ("writes", "tools/call", {"tool": "reader"}, False, None),
        ("writes", "prompts/get", {}, False, "session"),
        ("writes", "prompts/get", {}, True, None),
        ("serial", "tools/call", {"tool": "reader"}, True, "call"),
        ("serial", "tools/call", {"may_ask": False}, False, "call"),
        ("serial", "resources/read", {}, True, None),
    ],
)
def test_which_calls_need_a_turn(
    concurrency: str, method: str, call: Json, never_asks: bool, owner: str | None
) -> None:
    """Exclusive calls own their turn; those that the server may ask in share one with their session."""
    server = make_server(catalog=make_catalog(tools=["t", READER]), concurrency=concurrency)
    server.elicitation_history.never_asks = never_asks
    caller = Stub()
    found = turns.turn_owner(a_call(server, caller, method, **call))
    assert found is (caller if owner == "session" else None) or isinstance(found, Call) is (owner == "call")


@pytest.mark.parametrize(
    ("tool", "read_only"),
    [
        (b'{"annotations":{"readOnlyHint":true}}', True),
        (b'{"annotations":{"readOnlyHint":false}}', False),
        (b'{"annotations":{"readOnlyHint":1}}', False),
        (b'{"annotations":{}}', False),
        (b'{"annotations":[true]}', False),
        (b"{}", False),
        (b"[", False),
    ],
)
def test_only_a_clear_hint_makes_a_tool_read_only(tool: bytes, read_only: bool) -> None:
    assert is_read_only(Item("t", tool)) is read_only


def test_turns_are_granted_in_order_of_arrival() -> None:
    queue, started = TurnQueue(), list[str]()

    def take(entry: str) -> bool:
        return queue.acquire(entry, entry[0], lambda: started.append(entry))

    assert take("a1")
    assert take("a2"), "the owner may start more"
    assert not take("b1")
    assert not take("a3"), "others wait"
    assert not take("b2")
    assert queue.waiting() == ["b1", "a3", "b2"]
    assert len(queue) == 5
    queue.release("a1")
    assert started == []
    queue.release("a2")
    assert started == ["b1"]
    queue.release("unknown")
    queue.release("b1")
    assert started == ["b1", "a3"]
    queue.release("b2")  # stops waiting
    queue.release("a3")
    assert started == ["b1", "a3"]
    assert len(queue) == 0
    assert take("c1")


def test_released_call_holds_no_turn() -> None:
    server = make_server()
    learned: list[int] = []
    server.elicitation_history.record_call = lambda: learned.append(1)
    for accepts, key, counted in ((True, b"", 0), (False, b"1", 0), (True, b"1", 1)):
        call = a_call(server, Stub(), accepts=accepts)
        call.key, call.holds_turn = key, True
        assert turns.turn_queue(server).acquire(call, call.caller, lambda: None)
        turns.release_turn(call)
        assert not call.holds_turn
        assert len(learned) == counted, "counted only if it was sent and the server could have asked"


@pytest.mark.parametrize("concurrency", ["free", "serial"])
async def test_overdue_call_is_refused_at_its_deadline(autojump_clock: Clock, concurrency: str) -> None:
    """One task watches all that wait, and ends with the last."""
    server = make_server(concurrency=concurrency)
    refused: list[tuple[float, str]] = []

    def fail(call: Call, error: McpdError) -> None:
        refused.append((trio.current_time() - began, error.message))
        turns.release_turn(call)

    async with trio.open_nursery() as nursery:
        watchers: list[object] = []

        def spawn(work: Any) -> None:
            watchers.append(work)
            nursery.start_soon(work)

        waiting = WaitingCalls(Stub(), OpenQuestions(), spawn, lambda caller, server: None)
        assert turns.acquire_turn(a_call(server, a_caller()), "owner", lambda: None)
        assert watchers == []
        for generation in (1, 2):
            began = trio.current_time()
            for seconds in (3.0, 5.0):
                call = a_call(server, a_caller())
                call.handler, call.idle_timeout = Stub(on_failed=fail), seconds
                assert not turns.acquire_turn(call, call, lambda: None)
                call.move(QUEUED)
                waiting.add(call)
            assert len(watchers) == generation
            await trio.sleep(20)
            assert [after for after, _ in refused] == [3, 5]
            assert refused[0][1].startswith("srv: tool 't' waited 3 s for other calls")
            assert "(tool 't' of cursor (pid 7))" in refused[0][1], "whose calls"
            assert ("`share: client`" in refused[0][1]) is (concurrency == "free")
            assert not turns.turn_queue(server).is_watched
            refused.clear()
