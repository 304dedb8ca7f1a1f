"""Which client a legacy server's request goes to, and who answers it otherwise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.calls.call import Call
from mcpd.calls.questions.open_questions import OpenQuestions
from mcpd.calls.questions.rounds import MISSING_CAPABILITIES
from mcpd.calls.questions.router import (
    AMBIGUITY_TIMEOUT,
    MAX_OPEN_REQUESTS,
    REJECTED,
    ServerRequest,
)
from mcpd.model.server_spec import Share
from mcpd.protocol import mcp_tasks
from mcpd.supervision.elicitation_history import QUIET_AFTER
from mcpd.transports.outgoing_request import AwaitedExchange
from mcpd.wire import message as wire
from tests.gateway.model import Json, User, Working, World, make_catalog, world

Clock = trio.testing.MockClock
FORM: Json = {"elicitation": {"form": {}}}


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def working(w: World, user: User) -> Working:
    w.hear()
    return next(call for call in w.work.values() if call.tag == user.tag)


def calls_of(user: User) -> list[Call]:
    return list(user.session.calls.values())


def ask(w: World, method: str = "elicitation/create", exchange: Any = None, **params: object) -> str:
    """Have the server ask outside of any known call, or on the stream of `exchange`."""
    key = f"q{next(w._ids)}"
    message = {"jsonrpc": "2.0", "id": key, "method": method, "params": params}
    parsed = wire.parse(json.dumps(message).encode())
    if not w.gateway.calls.questions.requests.route(w.server, w.wire, parsed, exchange):
        w.wire.refuse(parsed, -32601, "no")
    return key


def answers(w: World) -> dict[str, Json]:
    """What the server was answered, by the ids of its requests; other frames are dropped."""
    frames, w.wire.frames = w.wire.frames, []
    messages = [json.loads(frame) for frame in frames]
    return {str(each["id"]): each for each in messages if "method" not in each}


def outcome(w: World, key: str) -> object:
    message = answers(w)[key]
    return message["error"]["code"] if "error" in message else message["result"]


DECLINED: Json = {"action": "decline"}


def a_request(w: World, method: str = "elicitation/create") -> ServerRequest:
    message = wire.parse(json.dumps({"jsonrpc": "2.0", "id": "q", "method": method}).encode())
    return ServerRequest(w.server, w.wire, message, lambda request: None, OpenQuestions())


async def test_unknown_method_is_not_handled(w: World) -> None:
    assert outcome(w, ask(w, "other/method")) == -32601
    assert outcome(w, ask(w)) == DECLINED, "no call is in flight"
    assert w.empty() == []


@pytest.mark.parametrize("second", [{}, {"sampling": {}}])
async def test_ambiguous_request_is_declined_immediately_if_nobody_can_be_asked(
    w: World, second: Json
) -> None:
    users = [w.user("legacy", {}), w.user("legacy", second)]
    for user in users:
        user.call()
    assert outcome(w, ask(w)) == DECLINED
    assert w.empty() == ["2 at the server"]


async def test_ambiguous_request_waits_until_one_client_is_left(autojump_clock: Clock, w: World) -> None:
    one, two = w.user("legacy"), w.user("legacy")
    one.call()
    first = working(w, one)
    two.call()
    key = ask(w, message=f"{two.tag}: x", requestedSchema={})
    w.hear()
    await trio.sleep(AMBIGUITY_TIMEOUT / 2)
    assert one.questions == two.questions == []
    w.end(first)
    await trio.sleep(0.05)
    assert (len(one.questions), len(two.questions)) == (0, 1)
    two.answer()
    assert outcome(w, key) == {"action": "accept", "content": {"name": two.tag}}


async def test_task_may_end_while_its_client_is_asked(
    autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A modern client gets the result when it returns."""
    is_done = trio.Event()

    async def poll(*_: object, **how: object) -> Raw:
        await is_done.wait()
        return Raw(b'{"content":[]}')

    monkeypatch.setattr(mcp_tasks, "await_task", poll)
    w.server.catalog = make_catalog(tools=[{"name": "converse", "execution": {"taskSupport": "required"}}])
    w.server.upstream.accepts_task_param = True
    user = w.user("modern")
    asked = user.call()
    w._say({"id": working(w, user).key, "result": {"task": {"taskId": "t", "status": "working"}}})
    w.work.clear()
    await trio.testing.wait_all_tasks_blocked()
    related = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
    ask(w, message=f"{user.tag}: x", requestedSchema={}, _meta=related)
    await trio.sleep(1)
    is_done.set()
    await trio.sleep(1)
    user.come_back(asked)
    assert asked.done is not None
    assert asked.done["result"]["content"] == []


async def test_request_goes_to_the_client_whose_call_it_fits(w: World) -> None:
    """Its tool has asked before, and the tools of the others are known to ask nothing."""
    history = w.server.elicitation_history
    for _ in range(QUIET_AFTER):
        history.record_answer("tools/call", "quiet")
    history.record_request("tools/call", "converse")
    one, two = w.user("legacy"), w.user("legacy")
    two.call("quiet")
    one.call()
    key = ask(w, message=f"{one.tag}: x", requestedSchema={})
    one.answer()
    assert outcome(w, key) == {"action": "accept", "content": {"name": one.tag}}
    assert not history.may_ask("tools/call", "quiet")
    history.record_request("tools/call", "quiet")
    key = ask(w, message=f"{one.tag}: x", requestedSchema={})
    assert (len(one.questions), len(two.questions)) == (0, 0)


@pytest.mark.parametrize("is_single", [False, True])
async def test_clients_are_separated_after_a_request_that_belongs_to_none(
    autojump_clock: Clock, w: World, is_single: bool
) -> None:
    """Unless the definition forbids another process. The server and its log are told why nobody was asked."""
    lines: list[str] = []
    w.server.log.add_line = lines.append
    w.server.spec = attrs.evolve(w.server.spec, is_single_process=is_single)
    for user in (w.user("legacy"), w.user("legacy")):
        user.call()
    key = ask(w)
    await trio.sleep(AMBIGUITY_TIMEOUT * 1.1)
    message = answers(w)[key]["error"]["message"]
    assert "it is unclear to which of several calls" in message
    has_own = "has a process of its own" in message
    assert w.server.elicitation_history.separates_clients is has_own is not is_single
    assert any("it is unclear to which" in line for line in lines)


async def test_ambiguous_request_does_not_belong_to_a_later_call(autojump_clock: Clock, w: World) -> None:
    one, two, later = (w.user("legacy") for _ in range(3))
    one.call()
    two.call()
    key = ask(w, message=f"{one.tag}: x", requestedSchema={})
    await trio.sleep(0.05)
    later.call()
    w.end(working(w, two))
    w.end(working(w, one))
    await trio.sleep(0.05)
    assert outcome(w, key) == DECLINED
    assert later.questions == []


@pytest.mark.parametrize("calls", [1, 2])
async def test_ambiguous_request_may_belong_to_a_cancelled_call(
    autojump_clock: Clock, w: World, calls: int
) -> None:
    """The server may still be working on that, so another client is not asked. With a second call, the client
    that cancelled the first is asked, but not before it is the only one."""
    one, two = w.user("legacy"), w.user("legacy")
    asked = [one.call() for _ in range(calls)]
    two.call()
    w.hear()
    key = ask(w, message=f"{one.tag}: x", requestedSchema={})
    one.cancel(asked[0])
    await trio.sleep(0.05)
    if calls == 1:
        assert outcome(w, key) == REJECTED
    else:
        w.end(next(call for call in w.work.values() if call.tag == two.tag))
        await trio.sleep(0.05)
        assert len(one.questions) == 1
    assert two.questions == []


async def test_cancelled_ambiguous_request_is_forgotten(autojump_clock: Clock, w: World) -> None:
    lines: list[str] = []
    w.server.log.add_line = lines.append
    for user in (w.user("legacy"), w.user("legacy")):
        user.call()
    key = ask(w)
    w.gateway.calls.questions.requests.cancel(w.wire, Raw(json.dumps({"requestId": key}).encode()))
    before = len(w.nursery.child_tasks)
    await trio.sleep(0.05)
    assert len(w.nursery.child_tasks) == before - 1, "its task has ended"
    await trio.sleep(AMBIGUITY_TIMEOUT + 1)
    assert answers(w) == {}
    assert lines == []


async def test_unanswered_requests_are_limited_per_connection(w: World) -> None:
    user = w.user("legacy")
    user.call()
    for n in range(MAX_OPEN_REQUESTS):
        w.gateway.calls.questions.requests._open[w.wire, b"%d" % n] = a_request(w)
    assert outcome(w, ask(w)) == -1
    w.gateway.calls.questions.requests._open.popitem()
    ask(w, message=f"{user.tag}: x", requestedSchema={})
    assert len(user.questions) == 1


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "expected", "missing"),
    [
        ({}, "elicitation/create", {}, DECLINED, {"elicitation": {}}),
        ({}, "sampling/createMessage", {}, -1, {"sampling": {}}),
        ({"sampling": {}}, "elicitation/create", {}, DECLINED, {"elicitation": {}}),
        ({}, "elicitation/create", {"mode": "url"}, DECLINED, {"elicitation": {"url": {}}}),
        (FORM, "elicitation/create", {"mode": "url"}, -32602, {"elicitation": {"url": {}}}),
        (FORM, "sampling/createMessage", {"mode": "url"}, -1, {"sampling": {}}),
        (FORM, "elicitation/create", {"requestedSchema": {}}, None, None),
        (FORM, "elicitation/create", {"mode": "form", "requestedSchema": {}}, None, None),
        ({"elicitation": {"url": {}}}, "elicitation/create", {"mode": "url"}, None, None),
        ({"sampling": {}}, "sampling/createMessage", {"mode": "url"}, None, None),
    ],
)
async def test_only_a_client_that_declared_it_is_asked(
    w: World, capabilities: Json, method: str, params: Json, expected: object, missing: object
) -> None:
    user = w.user("legacy", capabilities)
    user.call()
    (call,) = calls_of(user)
    key = ask(w, method, **params)
    assert (call.slots.get(MISSING_CAPABILITIES) or None) == missing
    if missing is None:
        assert len(user.questions) == 1
        assert answers(w) == {}
    else:
        assert outcome(w, key) == expected
        assert user.questions == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"result": {"a": 1}}, {"a": 1}),
        ({"error": {"code": 5, "message": "no"}}, 5),
        ({"error": {"message": "no"}}, -1),
        ({"error": {"code": 5}}, 5),
    ],
)
async def test_answer_of_the_client_reaches_the_server(w: World, answer: Json, expected: object) -> None:
    user = w.user("legacy")
    user.call()
    key = ask(w, message=f"{user.tag}: x", requestedSchema={})
    (question,) = user.questions
    user.say({"id": question["id"], **answer})
    assert outcome(w, key) == expected
    assert not len(w.gateway.calls.questions.requests._open)
    assert calls_of(user)[0].open_questions == 0


async def test_request_on_the_stream_of_a_call_without_a_client_is_declined(w: World) -> None:
    """Such as a call of the control API, or a client's that was cancelled."""
    assert outcome(w, ask(w, exchange=AwaitedExchange())) == DECLINED
    user = w.user("legacy")
    user.call()
    (call,) = calls_of(user)
    call.request = None
    assert outcome(w, ask(w, exchange=call)) == DECLINED


@pytest.mark.parametrize(
    ("kind", "capabilities", "calls", "asked"),
    [
        ("modern", {"roots": {}}, 1, True),
        ("modern", {}, 1, False),
        ("legacy", {"roots": {}}, 1, False),
        ("modern", {"roots": {}}, 0, False),
        ("modern", {"roots": {}}, 2, False),
    ],
)
async def test_only_a_modern_client_is_asked_for_roots_during_its_call(
    autojump_clock: Clock, w: World, kind: str, capabilities: Json, calls: int, asked: bool
) -> None:
    """Otherwise the answer holds what is known."""
    users = [w.user(kind, capabilities) for _ in range(calls)]
    made = [user.call() for user in users]
    key = ask(w, "roots/list")
    await trio.sleep(1)
    if asked:
        (needing,) = made
        assert needing.needs is not None
        assert answers(w) == {}
    else:
        assert outcome(w, key) == {"roots": []}
        assert all(each.needs is None for each in made)


async def test_legacy_client_whose_roots_are_missing_is_asked_during_its_call(
    autojump_clock: Clock, w: World
) -> None:
    """Without a GET stream, an HTTP client gets no request outside of its calls."""
    user = w.user("legacy", {"roots": {}})
    user.session.roots_requests = 1
    user.call()
    key = ask(w, "roots/list")
    await trio.sleep(1)
    (question,) = user.questions
    assert question["method"] == "roots/list"
    assert answers(w) == {}
    user.say({"id": question["id"], "result": {"roots": [{"uri": "file:///a"}]}})
    assert outcome(w, key) == {"roots": [{"uri": "file:///a"}]}


async def test_roots_are_those_of_the_calling_client(w: World) -> None:
    """If it is unclear who calls, and outside of calls, they are those of all."""
    one, other = (w.user("legacy", {"roots": {}}) for _ in range(2))
    for user, uri in ((one, "file:///one"), (other, "file:///other")):
        user.session.roots = (Raw(json.dumps({"uri": uri}).encode()),)
    everything = {"roots": [{"uri": "file:///one"}, {"uri": "file:///other"}]}
    assert outcome(w, ask(w, "roots/list")) == everything
    one.call()
    assert outcome(w, ask(w, "roots/list")) == {"roots": [{"uri": "file:///one"}]}
    other.call()
    assert outcome(w, ask(w, "roots/list")) == everything


async def test_server_that_reads_the_roots_after_a_change_gets_those_of_all(
    autojump_clock: Clock, w: World
) -> None:
    """Even if one client has a call in flight: the server keeps the answer for the calls of others."""
    user = w.user("legacy", {"roots": {}})
    user.session.roots = (Raw(b'{"uri":"file:///own"}'),)
    other = w.user("legacy", {"roots": {}})
    other.session.roots = (Raw(b'{"uri":"file:///other"}'),)
    user.call()
    own = {"roots": [{"uri": "file:///own"}]}
    for seconds, expected in ((0.0, {"roots": [*own["roots"], {"uri": "file:///other"}]}), (2.0, own)):
        w.server.upstream.announce_roots()
        await trio.sleep(seconds)
        assert outcome(w, ask(w, "roots/list")) == expected
        assert outcome(w, ask(w, "roots/list")) == own


@pytest.mark.parametrize(("share", "found"), [("declared-root", []), ("client", [{"uri": "file:///a"}])])
async def test_process_of_a_definition_with_one_for_each_root_gets_no_roots(
    w: World, share: Share, found: list[Json]
) -> None:
    """Its answer would stay after the client has left."""
    user = w.user("legacy", {"roots": {}})
    user.call()
    user.session.roots = (Raw(b'{"uri":"file:///a"}'),)
    w.server.upstream.reads_roots_until = 0.0
    w.server.spec = attrs.evolve(w.server.spec, share=share)
    assert outcome(w, ask(w, "roots/list")) == {"roots": found}


async def test_calls_take_turns_once_a_request_has_not_named_its_call(w: World) -> None:
    """Over HTTP, servers on the Python SDK 1.x request sampling on the stream for unrelated messages."""
    w.wire.correlates_server_requests = True
    w.server.spec = attrs.evolve(w.server.spec, concurrency="auto")
    w.server.catalog = make_catalog(tools=[{"name": "converse", "annotations": {"openWorldHint": True}}])
    first, second, third = (w.user("legacy") for _ in range(3))
    ask(w, exchange=None)
    assert w.wire.correlates_server_requests, "no call is in flight"
    first.call()
    (call,) = calls_of(first)
    ask(w, exchange=call, message=f"{first.tag}: a", requestedSchema={})
    assert w.wire.correlates_server_requests
    ask(w, exchange=None, message=f"{first.tag}: b", requestedSchema={})
    assert len(first.questions) == 2
    assert not w.wire.correlates_server_requests
    assert w.server.elicitation_history.names_no_calls
    second.call()
    third.call()
    assert [call.state.name for call in (*calls_of(second), *calls_of(third))] == ["SENT", "QUEUED"]


@pytest.mark.parametrize("spelt", [int, str])
async def test_call_that_its_server_cancels_fails(w: World, spelt: type[int] | type[str]) -> None:
    """A cancellation of a request of the server's own never ends a call, even if both have the same id."""
    user = w.user("legacy")
    asked = user.call()
    [call] = calls_of(user)
    own: Json = {"jsonrpc": "2.0", "id": int(call.key), "method": "elicitation/create"}
    own["params"] = {"message": f"{user.tag}: x", "requestedSchema": {}}
    requests = w.gateway.calls.questions.requests
    assert requests.route(w.server, w.wire, wire.parse(json.dumps(own).encode()), None)
    cancelled = Raw(json.dumps({"requestId": spelt(int(call.key)), "reason": "it has no time"}).encode())
    requests.cancel(w.wire, Raw(json.dumps({"requestId": int(call.key)}).encode()))
    assert calls_of(user) == [call]
    requests._closed.clear()
    requests.cancel(w.wire, cancelled)
    assert asked.done is not None
    assert "the server itself cancelled tool 'converse': it has no time" in asked.done["error"]["message"]
    assert asked.done["error"]["data"]["may_have_run"] is True


async def test_cancelled_request_is_settled_and_withdrawn(w: World) -> None:
    user = w.user("legacy")
    user.call()
    key = ask(w, message=f"{user.tag}: x", requestedSchema={})
    (request,) = w.gateway.calls.questions.requests._open.values()
    raw = Raw(json.dumps({"requestId": key}).encode())
    for _ in range(2):
        w.gateway.calls.questions.requests.cancel(w.wire, raw)
    assert request.is_settled
    assert user.questions == []
    assert calls_of(user)[0].open_questions == 0
