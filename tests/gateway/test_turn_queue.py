"""Clients that take turns at one server do not wait forever, nor without reason."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.gateway import calls_awaiting_client, turn_queue
from mcpd.gateway.control_call import CallRequest, ControlCall
from mcpd.gateway.elicitation_routing import ANSWER_TIMEOUT
from mcpd.gateway.turn_queue import TurnQueue
from mcpd.model.errors import McpdError, NotReady, Overloaded
from mcpd.transports.outgoing_request import Exchange
from tests.gateway.model import Asked, Json, Stub, User, World, make_catalog, make_server, world

Clock = trio.testing.MockClock


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def texts(asked: Asked) -> list[object]:
    """What the server was told during that call, its own tag first."""
    assert asked.done is not None
    told: list[object] = json.loads(asked.done["result"]["content"][0]["text"])
    return told


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
    """While a person thinks about one client's question, others learn why they wait, and what to do."""
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
    assert "share: client" in refused.done["error"]["message"]
    thinks.answer()
    finish(w, thinks)
    assert texts(slow)[0] == thinks.tag
    assert w.empty() == []


async def test_client_that_disconnects_while_asked_blocks_others_briefly(
    autojump_clock: Clock, w: World
) -> None:
    """It may return over another connection for half a minute."""
    gone, waits = w.user("modern"), w.user("legacy")
    gone.call()
    w.hear()
    (call,) = w.work.values()
    w.ask(call)
    await trio.sleep(1)
    waits.call()
    gone.leave()
    await trio.sleep(calls_awaiting_client.ORPHAN_TIMEOUT + 1)
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


def script(w: World, failed: list[McpdError], tag: str = "script") -> ControlCall:
    """What `mcpd/call` makes of one."""
    return ControlCall(
        request=CallRequest(server="srv", tool="t", arguments=Raw(b'{"tag":"%b"}' % tag.encode())),
        on_result=lambda body: None,
        on_error=failed.append,
        on_progress=lambda params: None,
        spawn=lambda work: None,
        spawn_detached=w.gateway.spawn,
    )


async def test_control_call_waits_for_its_turn_no_longer_than_others(autojump_clock: Clock) -> None:
    """It used to wait as long as earlier clients made calls."""
    failed: list[McpdError] = []
    async with world(concurrency="serial") as w:
        w.server.validators = {}
        first, second = script(w, failed, "first"), script(w, failed)
        assert first.try_send(w.gateway.core)
        assert second.try_send(w.gateway.core)
        assert at_server(w) == ["first"]
        (working,) = w.work.values()
        for _ in range(13):
            await trio.sleep(10)
            w.progress(working)
        (error,) = failed
        assert error.data()["may_have_run"] is False
        assert "waited 120 s" in error.message
        w.end(working)
        assert at_server(w) == []
        assert w.empty() == []


@pytest.mark.parametrize("kind", ["script", "legacy"])
async def test_waiting_calls_are_limited_by_max_queued(autojump_clock: Clock, kind: str) -> None:
    failed: list[McpdError] = []
    async with world(concurrency="serial") as w:
        w.server.validators = {}
        most = w.server.spec.max_queued
        first = script(w, failed, "first")
        assert first.try_send(w.gateway.core)
        for _ in range(most):
            assert script(w, failed).try_send(w.gateway.core)
        if kind == "script":
            with pytest.raises(Overloaded, match="256 calls are already waiting for their turn"):
                script(w, failed).try_send(w.gateway.core)
        else:
            refused = w.user("legacy").call()
            assert refused.done is not None
            assert refused.done["error"]["data"]["code"] == "overloaded"
        assert len(w.server.turn_queue) == 1 + most
        assert failed == []


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
def test_failed_turn_of_a_control_call_goes_to_the_next(there: bool) -> None:
    """Its server is gone by then, or it hits a bug; the queue used to be blocked."""

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    upstream = SimpleNamespace(default_meta=b"", submit=broken) if there else None
    server: Any = SimpleNamespace(
        turn_queue=TurnQueue(),
        upstream=upstream,
        not_ready=lambda: NotReady("it is gone", server="it", state="failed"),
        spec=SimpleNamespace(name="it"),
    )
    failed: list[McpdError] = []
    turns: list[str] = []
    call = ControlCall(
        request=CallRequest(server="it", tool="t"),
        on_result=lambda body: None,
        on_error=failed.append,
        on_progress=lambda params: None,
        spawn=lambda work: None,
        spawn_detached=lambda work: None,
        holds_turn=True,
        server=server,
    )
    server.turn_queue.acquire("first", "first", lambda: None)
    server.turn_queue.acquire(call, call, lambda: call._start_turn(b"{}"))
    server.turn_queue.acquire("last", "last", lambda: turns.append("last"))
    server.turn_queue.release("first")
    assert len(failed) == 1
    assert turns == ["last"]
    assert len(server.turn_queue) == 1


def a_call(server: Any, session: Any, **more: Any) -> Any:
    """Return what `acquire_turn` and `release_turn` read of a call."""
    session.gateway = SimpleNamespace(spawn=session.spawned.append)
    return Stub(
        server=server,
        session=session,
        key=b"",
        params=b'{"name":"%b"}' % more.get("tool", "t").encode(),
        context=SimpleNamespace(accepts_server_requests=more.get("accepts", True)),
        translation=SimpleNamespace(from_modern=more.get("from_modern", False)),
        upstream=SimpleNamespace(
            link=SimpleNamespace(correlates_server_requests=more.get("correlates", False))
        ),
        holds_turn=False,
        idle_timeout=10.0,
        deadline=math.inf,
    )


def a_session() -> Any:
    return Stub(spawned=[])


READER: Json = {"name": "reader", "annotations": {"readOnlyHint": True}}


@pytest.mark.parametrize(
    ("concurrency", "method", "call", "never_asks", "owner"),
    [
        ("free", "tools/call", {}, False, "session"),
        ("free", "prompts/get", {}, False, "session"),
        ("free", "completion/complete", {}, False, None),
        ("free", "tools/call", {"accepts": False}, False, None),
        ("free", "tools/call", {"from_modern": True}, False, None),
        ("free", "tools/call", {"correlates": True}, False, None),
        ("free", "tools/call", {}, True, None),
        ("free", "tools/call", {"tool": "reader"}, False, None),
        ("free", "prompts/get", {"tool": "reader"}, False, "session"),
        ("writes", "tools/call", {}, True, "call"),
        ("writes", "tools/call", {"tool": "unknown", "accepts": False}, False, "call"),
        ("writes", "tools/call", {"tool": "reader"}, False, None),
        ("writes", "prompts/get", {}, False, "session"),
        ("writes", "prompts/get", {}, True, None),
        ("serial", "tools/call", {"tool": "reader"}, True, "call"),
        ("serial", "tools/call", {"from_modern": True}, False, "call"),
        ("serial", "resources/read", {}, True, None),
    ],
)
def test_which_calls_need_a_turn(
    concurrency: str, method: str, call: Json, never_asks: bool, owner: str | None
) -> None:
    """Exclusive calls own their turn; those that the server may ask in share one with their session."""
    server = make_server(catalog=make_catalog(tools=["t", READER]), concurrency=concurrency)
    server.elicitation_history.never_asks = never_asks
    session = a_session()
    made = a_call(server, session, **call)
    request: Any = SimpleNamespace(method=method)
    assert turn_queue.acquire_turn(made, request, lambda call: None), "nobody else is there"
    assert made.holds_turn is (owner is not None)
    if owner is None:
        assert server.turn_queue is None
    else:
        assert server.turn_queue._owner is (made if owner == "call" else session)


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
    assert turn_queue.declares_read_only(tool) is read_only


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
        call = a_call(server, a_session(), accepts=accepts)
        call.key, call.holds_turn = key, True
        turn_queue.release_turn(call)
        assert not call.holds_turn
        assert len(learned) == counted, "counted only if it was sent and the server could have asked"


class Waiting(Exchange):
    def failed(self, error: McpdError) -> None:
        self.label = f"{trio.current_time() - self.sent_at:g} {error.message}"
        turn_queue.turn_queue(SERVER[0]).release(self)


SERVER: list[Any] = [None]


@pytest.mark.parametrize("concurrency", ["free", "serial"])
async def test_overdue_call_is_refused_at_its_deadline(autojump_clock: Clock, concurrency: str) -> None:
    """One task watches all that wait, and ends with the last."""
    SERVER[0] = server = make_server(concurrency=concurrency)
    holder = Exchange()
    async with trio.open_nursery() as nursery:
        watchers: list[object] = []

        def spawn(work: Any) -> None:
            watchers.append(work)
            nursery.start_soon(work)

        assert turn_queue.wait_for_turn(server, holder, holder, lambda: None, spawn)
        assert watchers == []
        for generation in (1, 2):
            waiting = [Waiting(idle_timeout=seconds, sent_at=trio.current_time()) for seconds in (3.0, 5.0)]
            for call in waiting:
                assert not turn_queue.wait_for_turn(server, call, call, lambda: None, spawn)
            assert len(watchers) == generation
            await trio.sleep(20)
            assert [call.label.split(" ", 1)[0] for call in waiting] == ["3", "5"]
            assert waiting[0].label.startswith("3 srv: waited 3 s for other calls")
            assert ("`share: client`" in waiting[0].label) is (concurrency == "free")
            assert not turn_queue.turn_queue(server).has_timeout_watcher
