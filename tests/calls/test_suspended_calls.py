"""Calls that wait while a modern client answers: when they are asked, resumed, kept and given up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from mcpd.calls import limits
from mcpd.calls.call import Call
from mcpd.calls.questions import suspended
from mcpd.calls.questions.suspended import ORPHAN_TIMEOUT, RESUME_TIMEOUT, request_digest
from mcpd.calls.turns import CLIENT_TURNS
from mcpd.model.errors import LinkLost
from mcpd.wire import message as wire
from tests.gateway.model import Asked, Json, Recorder, User, Working, World, world

Clock = trio.testing.MockClock


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def suspend(w: World, user: User, questions: int = 1) -> tuple[Asked, Working, Call]:
    """Return a call whose client has been asked."""
    asked = user.call()
    call = list(user.session.calls.values())[-1]
    w.hear()
    working = list(w.work.values())[-1]
    for _ in range(questions):
        w.ask(working)
    await trio.sleep(1)
    assert asked.needs is not None
    return asked, working, call


def resume(user: User, asked: Asked, **changes: object) -> Json:
    """Come back with changed params, and return the error."""
    received = Recorder(user)
    assert asked.needs is not None
    answers = {"q1": {"action": "accept"}}
    state = {"requestState": asked.needs["requestState"], "inputResponses": answers}
    received.say({"id": 99, "method": "tools/call", "params": {**asked.params, **state, **changes}})
    return dict(received.answers[0]["error"])


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (b"", b"{}", True),
        (b'{"a":1,"b":2}', b'{"b":2, "a" : 1}', True),
        (b'{"a":1}', b'{"a":2}', False),
        (b'{"a":1}', b'{"a":1,"_meta":{},"inputResponses":{},"requestState":"x"}', True),
        (b'{"a":1E+400}', b'{"a":1E+400}', True),
        (b'{"a":1E+400}', b'{"a":1E+401}', False),
    ],
)
def test_request_is_the_same_in_any_spelling(one: bytes, other: bytes, equal: bool) -> None:
    assert (request_digest("tools/call", one) == request_digest("tools/call", other)) is equal
    assert request_digest("tools/call", one) != request_digest("prompts/get", one)


async def test_questions_are_gathered_before_the_client_is_asked(autojump_clock: Clock, w: World) -> None:
    user = w.user("modern")
    asked, working, call = await suspend(w, user, questions=2)
    assert asked.needs is not None
    assert list(asked.needs["inputRequests"]) == ["q1", "q2"]
    assert w.gateway.calls.questions.suspended.holds(call)
    assert w.gateway.calls.questions.suspended.holds(call)
    assert len(w.gateway.calls.questions.suspended) == 1
    tasks = len(w.nursery.child_tasks)
    w.ask(working)
    assert len(w.nursery.child_tasks) == tasks, "it is asked when the client returns"
    user.come_back(asked)
    assert asked.needs is not None
    assert list(asked.needs["inputRequests"]) == ["q3"]
    user.come_back(asked)
    w.hear()
    w.end(working)
    assert asked.done is not None
    assert w.empty() == []


@pytest.mark.parametrize("how", ["cancelled by the server", "call ended", "call cancelled"])
async def test_nothing_is_asked_if_the_question_is_gone_meanwhile(
    autojump_clock: Clock, w: World, how: str
) -> None:
    user = w.user("modern")
    asked = user.call()
    w.hear()
    (working,) = w.work.values()
    key = w.ask(working)
    if how == "cancelled by the server":
        w.withdraw(key)
    elif how == "call ended":
        w.end(working)
    else:
        user.cancel(asked)
    await trio.sleep(1)
    assert asked.needs is None
    assert len(w.gateway.calls.questions.suspended) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"requestState": "p.unknown"},
        {"name": "another"},
        {"inputResponses": {"q1": 5}},
        {"inputResponses": {"q1": "text"}},
    ],
)
async def test_invalid_return_changes_nothing(autojump_clock: Clock, w: World, changes: Json) -> None:
    user = w.user("modern")
    asked, working, _ = await suspend(w, user)
    assert resume(user, asked, **changes)["code"] == -32602
    user.come_back(asked)
    w.hear()
    w.end(working)
    assert asked.done is not None


async def test_unknown_answers_are_ignored_and_state_is_valid_once(autojump_clock: Clock, w: World) -> None:
    user = w.user("modern")
    asked, working, _ = await suspend(w, user)
    assert asked.needs is not None
    needs = dict(asked.needs)
    answers = {"q1": {"action": "accept"}, "q9": 5}
    received = Recorder(user)
    received.say(
        {
            "id": 99,
            "method": "tools/call",
            "params": {**asked.params, "requestState": needs["requestState"], "inputResponses": answers},
        }
    )
    w.hear()
    assert len(working.heard) == 1
    w.end(working)
    assert "already used" in resume(user, asked)["message"]
    assert "result" in received.answers[0]


@pytest.mark.parametrize("outcome", ["result", "failure"])
async def test_outcome_is_kept_until_the_client_returns(autojump_clock: Clock, outcome: str) -> None:
    """The next call has its turn meanwhile."""
    async with world(concurrency="serial") as w:
        user, other = w.user("modern"), w.user("legacy", {})
        asked, working, call = await suspend(w, user)
        other.call()
        assert len(w.server.attachments[CLIENT_TURNS]) == 2
        if outcome == "result":
            w.end(working)
        else:
            call.failed(LinkLost("gone", may_have_run=True))
        assert len(w.server.attachments[CLIENT_TURNS]) == 1
        assert not call.holds_turn
        assert len(w.gateway.calls.questions.suspended) == 1
        user.come_back(asked)
        assert asked.done is not None
        assert ("result" in asked.done) is (outcome == "result")
        assert len(w.gateway.calls.questions.suspended) == 0
        assert not w.gateway.calls.questions.suspended.holds(call)


@pytest.mark.parametrize("holds_turn", [True, False])
async def test_client_that_does_not_return_is_given_up(autojump_clock: Clock, holds_turn: bool) -> None:
    async with world(concurrency="serial") as w:
        user = w.user("modern")
        _, working, call = await suspend(w, user)
        if not holds_turn:
            call.holds_turn = False
            w.server.attachments[CLIENT_TURNS].leave(call)
        await trio.sleep(RESUME_TIMEOUT - 3)
        assert len(w.gateway.calls.questions.suspended) == 1
        await trio.sleep(4)
        assert len(w.gateway.calls.questions.suspended) == 0
        w.hear()
        assert working.heard == [] or working.heard[0]["result"] == {"action": "decline"}
        assert w.work == {}, "cancelled at the server"
        assert len(w.server.attachments[CLIENT_TURNS]) == 0


async def test_call_of_a_client_that_left_is_kept_for_a_shorter_time(autojump_clock: Clock, w: World) -> None:
    user, other = w.user("modern"), w.user("modern")
    await suspend(w, user)
    other.leave()
    await trio.sleep(ORPHAN_TIMEOUT + 5)
    assert len(w.gateway.calls.questions.suspended) == 1
    user.leave()
    await trio.sleep(ORPHAN_TIMEOUT - 1)
    assert len(w.gateway.calls.questions.suspended) == 1
    await trio.sleep(2)
    assert len(w.gateway.calls.questions.suspended) == 0


async def test_suspended_calls_are_limited(
    autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspended, "_MAX_CALLS", 2)
    user = w.user("modern")
    for _ in range(2):
        asked = user.call()
        w.hear()
        call = next(call for call in user.session.calls.values() if call.request is not None)
        key = f"s{next(w._ids)}"
        ask(w, call, key)
        await trio.sleep(1)
        assert asked.needs is not None
    third = user.call()
    w.wire.frames.clear()
    call = next(call for call in user.session.calls.values() if call.request is not None)
    ask(w, call, "last")
    (frame,) = w.wire.frames
    assert json.loads(frame)["result"] == {"action": "decline"}
    await trio.sleep(1)
    assert third.needs is None
    assert all(key != b'"last"' for _, key in w.gateway.calls.questions.requests._open)


async def test_messages_that_wait_for_clients_are_limited(
    autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand calls could keep a response of 32 MiB each. An error names the limit and its setting."""
    monkeypatch.setattr(limits, "ALLOWANCE", 1000 - w.server.spec.max_frame)
    budget = w.gateway.calls.questions.kept.budget
    user = w.user("modern")
    calls = [await suspend(w, user) for _ in range(2)]
    asked = budget.total
    assert asked == budget.of(w.server) > 0
    for _, working, _ in calls:
        w.end(working, result={"content": [{"type": "text", "text": "x" * 600}]})
    assert budget.total > 600 + asked
    for number, (request, _, _) in enumerate(calls):
        user.come_back(request)
        assert request.done is not None
        assert ("error" in request.done) == (number == 1)
    message = calls[1][0].done["error"]["message"]  # type: ignore[index]
    assert "would exceed the limit of 1000 (raise `maxFrame`" in message
    assert calls[1][0].done["error"]["data"]["code"] == "protocol"  # type: ignore[index]
    assert (budget.total, budget._by_peer) == (0, {})


async def test_request_too_large_to_wait_for_a_client_is_refused(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ALLOWANCE", 1000 - w.server.spec.max_frame)
    user = w.user("modern")
    user.call()
    (call,) = user.session.calls.values()
    w.wire.frames.clear()
    ask(w, call, "large", "x" * 1000)
    (frame,) = w.wire.frames
    assert "would exceed the limit of 1000 (raise `maxFrame`" in json.loads(frame)["error"]["message"]
    assert not w.gateway.calls.questions.requests._open
    for _ in range(2):
        ask(w, call, "same")  # a server may use an id twice
    user.leave()
    assert w.gateway.calls.questions.kept.budget._by_peer == {}


def ask(w: World, call: Call, key: str, text: str = "x") -> None:
    params = {"message": f"u0: {text}", "requestedSchema": {}}
    message: Any = {"jsonrpc": "2.0", "id": key, "method": "elicitation/create", "params": params}
    w.on_request(wire.parse(json.dumps(message).encode()), call)
