"""A modern server that requires input: rounds for legacy clients, signed states for modern ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from mcpd.calls.call import CallState
from mcpd.calls.questions.rounds import MAX_ROUNDS, StateSigner
from mcpd.model.errors import LinkLost
from mcpd.protocol import mcp_tasks
from tests.gateway.mcp_client import MODERN
from tests.gateway.model import LEGACY, Json, World, make_catalog, make_upstream, world

Clock = trio.testing.MockClock
FORM: Json = {"method": "elicitation/create", "params": {"message": "u0: x", "requestedSchema": {}}}
SAMPLE: Json = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world(version=MODERN) as made:
        yield made


def needs(questions: object = None, state: object = None) -> Json:
    members = {"inputRequests": questions, "requestState": state}
    return {"resultType": "input_required", **{k: v for k, v in members.items() if v is not None}}


async def sent(w: World) -> Json:
    """Return the params of the next request at the server."""
    await trio.testing.wait_all_tasks_blocked()
    frames = [json.loads(frame) for frame in w.wire.frames]
    w.hear()
    (request,) = [frame for frame in frames if "id" in frame]
    return dict(request["params"])


async def test_legacy_client_answers_within_its_call(autojump_clock: Clock, w: World) -> None:
    user = w.user("legacy")
    asked = user.call()
    await sent(w)
    (working,) = w.work.values()
    w.end(working, result=needs({"a": FORM, "b": SAMPLE}, {"s": 1}))
    await trio.testing.wait_all_tasks_blocked()
    assert len(user.questions) == 2
    user.answer()
    user.answer()
    again = await sent(w)
    assert again["requestState"] == {"s": 1}
    assert again["inputResponses"]["a"]["action"] == "accept"
    assert again["inputResponses"].keys() == {"a", "b"}
    (working,) = w.work.values()
    w.end(working, result=needs(None, "wait"))
    began = trio.current_time()
    await trio.sleep(0.08)
    assert w.wire.frames == []
    await trio.sleep(0.05)
    assert trio.current_time() - began > 0.1
    again = await sent(w)
    assert again["requestState"] == "wait"
    assert "inputResponses" not in again
    (working,) = w.work.values()
    w.end(working, result=needs({"c": FORM}))
    await trio.testing.wait_all_tasks_blocked()
    user.answer()
    again = await sent(w)
    assert again["inputResponses"].keys() == {"c"}
    assert "requestState" not in again, "that of an earlier round does not count"
    (working,) = w.work.values()
    w.end(working, result={"resultType": "complete", "content": []})
    assert asked.done is not None
    assert asked.done["result"] == {"content": []}


@pytest.mark.parametrize("rounds", [MAX_ROUNDS - 2, MAX_ROUNDS - 1])
async def test_rounds_are_limited(autojump_clock: Clock, w: World, rounds: int) -> None:
    user = w.user("legacy", {})
    asked = user.call()
    (call,) = user.session.calls.values()
    w.hear()
    call.rounds = rounds
    (working,) = w.work.values()
    w.end(working, result=needs({}, "state"))
    await trio.testing.wait_all_tasks_blocked()
    assert (asked.done is not None) is (rounds == MAX_ROUNDS - 1)


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (FORM, {"result": {"a": 1}}, {"a": 1}),
        (FORM, {"error": {"code": 1, "message": "no"}}, {"action": "cancel"}),
        (FORM, None, {"action": "cancel"}),
        (SAMPLE, {"result": {"a": 1}}, {"a": 1}),
        (SAMPLE, {"error": {"code": 1, "message": "no"}}, "client refused"),
        (SAMPLE, None, "client refused"),
        ({"params": {}}, None, "invalid input request"),
        ({"method": "sampling/createMessage", "params": []}, None, "invalid input request"),
    ],
)
async def test_answer_of_a_legacy_client(
    autojump_clock: Clock, w: World, question: Json, answer: Json | None, expected: object
) -> None:
    """Without an answer, an elicitation is cancelled; anything else fails the call."""
    user = w.user("legacy", {} if answer is None else {"elicitation": {}, "sampling": {}})
    asked = user.call()
    w.hear()
    (working,) = w.work.values()
    w.end(working, result=needs({"a": question}))
    await trio.testing.wait_all_tasks_blocked()
    if answer is not None:
        (put,) = user.questions
        user.say({"id": put["id"], **answer})
    else:
        assert user.questions == []
    if isinstance(expected, str):
        await trio.testing.wait_all_tasks_blocked()
        assert asked.done is not None
        assert expected in asked.done["error"]["message"]
    else:
        assert (await sent(w))["inputResponses"] == {"a": expected}


async def test_failed_question_withdraws_the_others(autojump_clock: Clock, w: World) -> None:
    user = w.user("legacy")
    asked = user.call()
    w.hear()
    (working,) = w.work.values()
    w.end(working, result=needs({"a": FORM, "b": FORM}))
    await trio.testing.wait_all_tasks_blocked()
    assert len(user.questions) == 2
    user.cancel(asked)
    await trio.testing.wait_all_tasks_blocked()
    assert user.questions == []
    assert w.empty() == []


@pytest.mark.parametrize(("state", "has_state"), [({"s": 1}, True), (None, False)])
async def test_modern_client_gets_a_signed_state(w: World, state: object, has_state: bool) -> None:
    user = w.user("modern")
    asked = user.call()
    w.hear()
    (working,) = w.work.values()
    w.end(working, result=needs({"a": FORM}, state))
    assert asked.needs is not None
    assert ("requestState" in asked.needs) is has_state
    user.come_back(asked)
    again = await sent(w)
    assert again.get("requestState") == state


@pytest.mark.parametrize("kind", ["modern", "legacy"])
@pytest.mark.parametrize("result", [needs(), needs(5), needs({})])
async def test_input_request_without_questions_fails_the_call(w: World, kind: str, result: Json) -> None:
    user = w.user(kind)
    asked = user.call()
    w.hear()
    (working,) = w.work.values()
    w.end(working, result=result)
    assert asked.done is not None
    assert "tool 'converse'" in asked.done["error"]["message"]
    assert w.empty() == []


def test_state_is_valid_unchanged_and_for_its_server_only() -> None:
    signer = StateSigner()
    sealed = signer.sign("a", Raw(b'{"s" : "\\u00fc"}'))

    def verify(text: object, server: str = "a") -> bytes | None:
        found = signer.verify(server, Raw(json.dumps(text).encode()))
        return None if found is None else bytes(found)

    assert verify(sealed) == b'{"s" : "\\u00fc"}'
    assert verify(sealed, "b") is None
    assert verify(sealed + " ") is None
    assert verify(sealed[2:]) is None
    assert verify("u.") is None
    assert verify("ü") is None
    assert verify(5) is None
    assert StateSigner().verify("a", Raw(json.dumps(sealed).encode())) is None


async def test_result_of_a_task_is_translated(
    autojump_clock: Clock, w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is what remains of the call; a failure is reported as such."""

    async def poll(upstream: object, created: Raw, answer: Any, **how: Any) -> Raw:
        assert (how["what"], how["timeout"]) == ("tool 'converse'", 120)
        assert how["limit"] == pytest.approx(1800)
        if b'"failed"' in bytes(created):
            raise LinkLost("gone", may_have_run=True)
        given = await answer("elicitation/create", Raw(b'{"message":"u0: x","requestedSchema":{}}'))
        return Raw(json.dumps({"resultType": "complete", **given}).encode())

    monkeypatch.setattr(mcp_tasks, "await_task", poll)
    w.server.catalog = make_catalog(tools=[{"name": "converse", "execution": {"taskSupport": "required"}}])
    user = w.user("legacy")
    for status, member in (("working", "result"), ("failed", "error")):
        w.server.upstream = make_upstream(w.wire, LEGACY)
        w.server.upstream.accepts_task_param = True
        asked = user.call()
        w.hear()
        (call,) = user.session.calls.values()
        (working,) = w.work.values()
        w._say({"id": working.key, "result": {"task": {"taskId": "t", "status": status}}})
        w.work.clear()
        await trio.testing.wait_all_tasks_blocked()
        assert call.state is CallState.BETWEEN_ROUNDS or member == "error"
        user.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert asked.done is not None
        assert member in asked.done
        assert call.state is CallState.DONE
        if member == "result":
            content = {"name": "u0"}
            assert asked.done["result"] == {"resultType": "complete", "action": "accept", "content": content}
