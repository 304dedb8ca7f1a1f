"""Where a client's request is sent, when, and with which context."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.calls.call import CallState
from mcpd.calls.limits import MAX_PER_PEER
from mcpd.calls.questions.rounds import RETRY_INTERVAL, VISITED
from mcpd.calls.routes import ROUTES
from mcpd.calls.stages.lost_session import LostSessionStageFactory
from mcpd.calls.turns import CLIENT_TURNS
from mcpd.model.errors import LinkLost
from mcpd.wire.message import Message
from tests.gateway.mcp_client import MODERN, meta
from tests.gateway.model import (
    LEGACY,
    NAME,
    Json,
    Recorder,
    Script,
    User,
    World,
    make_catalog,
    make_server,
    world,
)

Clock = trio.testing.MockClock
STATE = "io.modelcontextprotocol/logLevel"


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def put(user: User, method: str = "tools/call", **params: object) -> Recorder:
    received = Recorder(user)
    if user.kind == "modern":
        params["_meta"] = {**meta(user.capabilities), **params.pop("_meta", {})}  # type: ignore[dict-item]
    received.say({"id": 50 + len(user.session.calls), "method": method, "params": params})
    return received


def sent(w: World) -> list[Json]:
    """The requests that reached the server."""
    frames, w.wire.frames = w.wire.frames, []
    return [message for frame in frames if "id" in (message := json.loads(frame))]


def refusal(received: Recorder) -> int:
    (answer,) = received.answers
    code: int = answer["error"]["code"]
    return code


async def test_only_requests_of_a_modern_client_carry_a_state(w: World) -> None:
    """A forged state is refused; in a method without rounds, and from a legacy client, it is any member."""
    modern, legacy = w.user("modern"), w.user("legacy")
    assert refusal(put(modern, name="t", requestState="forged")) == -32602
    assert refusal(put(modern, name="t", requestState="p.unknown")) == -32602
    assert sent(w) == []
    put(modern, "completion/complete", requestState="forged")
    put(legacy, name="t", requestState="forged")
    put(modern, name="t", arguments={"requestState": 1})
    assert [request["params"].get("requestState") for request in sent(w)] == ["forged", "forged", None]


async def test_signed_state_reaches_its_server_only(w: World) -> None:
    user = w.user("modern")
    sign = w.gateway.calls.questions.signer.sign
    put(user, name="t", requestState=sign(f"{NAME}\n", b'{"a":1}'))  # type: ignore[arg-type]
    assert refusal(put(user, name="t", requestState=sign("other\n", b"1"))) == -32602  # type: ignore[arg-type]
    assert [request["params"]["requestState"] for request in sent(w)] == [{"a": 1}]


@pytest.mark.parametrize(
    ("kind", "version", "method", "params", "accepted"),
    [
        ("modern", LEGACY, "tools/call", {"inputResponses": {"page1": {"action": "accept"}}}, True),
        ("modern", LEGACY, "tools/call", {"arguments": {"inputResponses": {}}}, False),
        ("modern", LEGACY, "tools/call", {}, False),
        ("modern", LEGACY, "completion/complete", {"inputResponses": {}}, False),
        ("modern", MODERN, "tools/call", {"inputResponses": {}}, False),
        ("legacy", LEGACY, "tools/call", {"inputResponses": {}}, False),
    ],
)
async def test_consent_to_a_url_visit_is_read_for_legacy_servers(
    kind: str, version: str, method: str, params: Json, accepted: bool
) -> None:
    async with world(version=version) as w:
        user = w.user(kind, {})
        put(user, method, name="t", **params)
        (call,) = user.session.calls.values()
        assert (VISITED in call.slots) is accepted
        (request,) = sent(w)
        assert ("inputResponses" in request["params"]) is ("inputResponses" in params and not accepted)


async def test_request_waits_for_its_server_once(autojump_clock: Clock, w: World) -> None:
    user = w.user("legacy", {})
    w.lose()
    received = put(user, name="t")
    await trio.testing.wait_all_tasks_blocked()
    assert (len(user.session.calls), user.session.in_flight) == (1, 1)
    w.connect()
    await trio.testing.wait_all_tasks_blocked()
    assert user.session.request_tasks == {}
    assert len(sent(w)) == 1
    w.lose()
    assert len(received.answers) == 1
    late = put(user, name="t")
    await trio.sleep(60)
    assert late.answers[0]["error"]["data"]["code"] == "not_ready"


def modern_meta(w: World) -> list[tuple[Json, object]]:
    """Record for which capabilities and level the server's `_meta` is made."""
    made: list[tuple[Json, object]] = []

    def record(capabilities: Any, level: object) -> bytes:
        made.append((dict(capabilities), level))
        return b'"n":%d' % len(made)

    w.server.upstream.request_meta = record
    return made


async def test_context_of_the_client_is_declared_to_a_modern_server() -> None:
    """Made once for each client and connection; extensions only if the client sees this server alone."""
    async with world(version=MODERN) as w:
        made = modern_meta(w)
        capabilities: Json = {"sampling": {}, "extensions": {"x": {}}}
        legacy, modern = w.user("legacy", {}), w.user("modern", capabilities)
        put(legacy, name="t")
        put(legacy, name="t")
        assert made == [({}, "info")]
        put(modern, name="t")
        assert made[1:] == [(capabilities, None)]
        put(modern, name="t", _meta={STATE: "debug"})
        assert made[2:] == [(capabilities, "debug")]
        assert [request["params"]["_meta"]["n"] for request in sent(w)] == [1, 1, 2, 3]
        w.connect()
        modern_meta(w)
        put(modern, name="t")
        assert [request["params"]["_meta"]["n"] for request in sent(w)] == [1]


TASK: Json = {"name": "task", "execution": {"taskSupport": "required"}}


@pytest.mark.parametrize(
    ("method", "tool", "accepts", "as_task"),
    [
        ("tools/call", "task", True, True),
        ("tools/call", "task", False, False),
        ("tools/call", "other", True, False),
        ("prompts/get", "task", True, False),
    ],
)
async def test_required_task_is_made_for_clients_that_do_not_know_tasks(
    w: World, method: str, tool: str, accepts: bool, as_task: bool
) -> None:
    w.server.catalog = make_catalog(tools=[TASK, "other"])
    w.server.upstream.accepts_task_param = accepts
    user = w.user("legacy", {})
    put(user, method, name=tool)
    (call,) = user.session.calls.values()
    assert call.is_task is as_task
    (request,) = sent(w)
    assert ("task" in request["params"]) is as_task


@pytest.mark.parametrize("holds_turn", [True, False])
async def test_repeated_call_gives_up_its_turn_meanwhile(autojump_clock: Clock, *, holds_turn: bool) -> None:
    """Repeated because its legacy server requires that the user visits a URL first."""
    url = {"code": -32042, "message": "m", "data": {"elicitations": [{"message": "m", "url": "https://a"}]}}
    async with world(concurrency="serial" if holds_turn else "free") as w:
        user, other = w.user("modern", {"elicitation": {"url": {}}}), w.user("legacy", {})
        put(user, name="t", inputResponses={"page1": {"action": "accept"}})
        (call,) = user.session.calls.values()
        assert call.holds_turn is holds_turn
        sent(w)
        w._say({"id": int(call.key), "error": url})
        assert not call.holds_turn
        assert call.state is CallState.BETWEEN_ROUNDS
        put(other, name="t")
        (theirs,) = other.session.calls.values()
        assert len(sent(w)) == 1
        await trio.sleep(RETRY_INTERVAL + 1)
        assert call.state is (CallState.QUEUED if holds_turn else CallState.SENT)
        assert len(sent(w)) == (0 if holds_turn else 1)
        w._say({"id": int(theirs.key), "result": {}})
        assert len(sent(w)) == (1 if holds_turn else 0)


async def test_calls_waiting_for_a_server_are_limited(autojump_clock: Clock, w: World) -> None:
    """By `maxQueued`, like the calls that wait for a connected server."""
    w.server.spec = attrs.evolve(w.server.spec, max_queued=3)
    user, script = w.user("legacy", {}), Script(w)
    w.lose()
    for _ in range(2):
        put(user, name="t")
    waiting = script.call()
    await trio.testing.wait_all_tasks_blocked()
    assert refusal(put(user, name="t")) == -32000
    refused = script.error(script.call())
    assert refused["data"]["code"] == "overloaded"
    assert "3 calls are already waiting until it is connected (`maxQueued`" in refused["message"]
    script.cancel(waiting)
    await trio.testing.wait_all_tasks_blocked()
    put(user, name="t")
    await trio.testing.wait_all_tasks_blocked()
    w.connect()
    await trio.testing.wait_all_tasks_blocked()
    assert len(sent(w)) == 3
    assert len(w.gateway.calls.connections) == 0


async def test_burst_of_calls_that_arrive_together_is_limited(w: World) -> None:
    """The limit holds before the task of any of them has run."""
    w.server.spec = attrs.evolve(w.server.spec, max_queued=3)
    user = w.user("legacy", {})
    w.lose()
    received = [put(user, name="t") for _ in range(5)]
    assert [len(each.answers) for each in received] == [0, 0, 0, 1, 1]
    user.leave()
    assert len(w.gateway.calls.connections) == 0


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 4, 5, 100])
async def test_call_that_waited_for_a_replaced_server_is_no_longer_counted(w: World, ticks: int) -> None:
    """Whenever it ends: `maxQueued` would refuse later calls."""
    user, other = w.user("legacy", {}), make_server()

    async def wait_replaced(server: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return other

    w.gateway.core.supervisor.wait_replaced = wait_replaced  # type: ignore[method-assign]
    w.lose()
    put(user, name="t")
    assert len(w.gateway.calls.connections) == 1
    w.connect()
    other.upstream = w.server.upstream
    for _ in range(ticks):
        await trio.lowlevel.checkpoint()
    user.leave()
    await trio.testing.wait_all_tasks_blocked()
    assert len(w.gateway.calls.connections) == 0


@pytest.mark.parametrize("choked", [True, False])
async def test_client_that_leaves_with_queued_calls_disturbs_nobody(*, choked: bool) -> None:
    """None of them is sent while it leaves, whether or not that could succeed; those of others continue."""
    async with world(concurrency="serial") as w:
        leaves, stays = w.user("legacy", {}), w.user("legacy", {})
        script = Script(w)
        for _ in range(3):
            put(leaves, name="t")
            script.call()
        assert len(sent(w)) == 1
        w.wire.choke(choked)
        script.leave()
        assert sent(w) == []
        put(stays, name="t")
        w.wire.choke(on=False)
        leaves.leave()
        assert leaves.session.calls == {}
        assert script.caller.calls == {}
        assert len(sent(w)) == 1
        assert len(w.server.attachments[CLIENT_TURNS]) == len(stays.session.calls) == 1


async def test_client_leaves_whose_calls_wait_for_their_connection() -> None:
    """In another order than that in which they were made; see above."""
    async with world(concurrency="free") as w:
        user = w.user("legacy", {})
        for _ in range(3):
            put(user, name="t")
            w.wire._max_in_flight = 1
        calls = user.session.calls
        user.session.calls = {key: calls[key] for key in reversed(calls)}
        assert len(sent(w)) == 1
        user.leave()
        assert sent(w) == []
        assert w.empty() == []


async def test_call_whose_session_was_refused_is_sent_once_more(
    autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server did not execute it. If the new connection refuses it in the same way, it fails."""
    monkeypatch.setattr(LostSessionStageFactory, "is_enabled", lambda *_: True)  # it is a local server
    user = w.user("legacy", {})
    received = put(user, name="t")
    (call,) = user.session.calls.values()
    for _ in range(2):
        assert len(sent(w)) == 1
        assert not received.answers
        error = LinkLost("refused", may_have_run=False)
        error.is_session_refused = True
        w.wire.requests.pop(call.key)
        w.lose()
        call.failed(error)
        w.connect()
        await trio.testing.wait_all_tasks_blocked()
    assert sent(w) == []
    assert received.answers[0]["error"]["data"]["code"] == "link_lost"


async def large(user: User, megabytes: int) -> list[Json]:
    """Make a call, and return its answers so far. It is read, and sent, in later turns."""
    received = put(user, name="t", arguments={"text": "x" * megabytes * 1024 * 1024})
    await trio.sleep(1)
    return received.answers


async def test_large_arguments_of_unfinished_calls_are_limited(autojump_clock: Clock, w: World) -> None:
    """For each client and overall; calls with small arguments pass, and ended calls make room."""
    one, two, three = (w.user("legacy", {}) for _ in range(3))
    for user in (one, two):
        for _ in range(3):
            assert not await large(user, 11)
        (answer,) = await large(user, 11)
        assert answer["error"]["data"]["code"] == "overloaded"
        assert "of this client" in answer["error"]["message"]
        assert f"the limit of {MAX_PER_PEER}" in answer["error"]["message"]
        assert not put(user, name="t").answers
    assert "of all clients" in (await large(three, 11))[0]["error"]["message"]
    one.leave()
    assert not await large(three, 11)
    budget = w.gateway.calls._arguments.budget
    for call in list(two.session.calls.values()):
        w.wire.requests.pop(call.key)
        call.answered(Message(result=Raw(b"{}")))
    assert [bool(budget.of(each.session)) for each in (one, two, three)] == [False, False, True]
    three.leave()
    assert (budget.total, budget._by_peer) == (0, {})


async def test_names_that_clients_invent_take_no_memory(w: World) -> None:
    user = w.user("legacy", {})
    put(user, name="x" * 1_000_000)
    put(user, name="short")
    assert sum(len(tool) for _, _, tool in w.server.list_attachments[ROUTES]) < 1000
