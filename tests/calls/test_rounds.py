"""Requests that take several rounds: what is repeated, with what, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec import Raw

from mcpd.api.control.calls import ControlCaller
from mcpd.calls.questions.rounds import MAX_ROUNDS, result_type
from mcpd.model.errors import InputNeeded, ProtocolViolation
from mcpd.protocol.negotiate import negotiate
from mcpd.protocol.upstream_session import Hooks, Upstream
from tests.calls.awaiting_caller import request_with_input
from tests.gateway.model import make_server
from tests.transports.peer import PATIENCE, Json, Peer, connected

DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
PARAMS = {"name": "merge", "arguments": {"into": "x"}}
QUESTION = {"method": "elicitation/create", "params": {"message": "Which branch?"}}
ACCEPTED = {"action": "accept", "content": {"branch": "dev"}}


async def ready(peer: Peer) -> Upstream:
    peer.script["server/discover"] = {"result": DISCOVERED}
    hooks = Hooks(lambda _: None, lambda _: None, capabilities={"elicitation": {"form": {}}})
    return await negotiate(peer.link, hooks, "auto", 5, lambda *_: None)


def rounds(peer: Peer, *results: Json, method: str = "tools/call") -> None:
    """One result after the other."""
    left = list(results)
    peer.script[method] = lambda request: {"result": left.pop(0)}


def wanting(**more: Any) -> Json:
    return {"resultType": "input_required", **more}


async def accepting(method: str, params: Raw) -> Mapping[str, object]:
    assert method == "elicitation/create"
    assert json.loads(bytes(params)) == QUESTION["params"]
    return ACCEPTED


async def asked(peer: Peer, method: str = "tools/call", answer: Any = accepting) -> Json:
    upstream = await ready(peer)
    with trio.fail_after(PATIENCE):
        result = await request_with_input(upstream, method, PARAMS, answer)
    body: Json = json.loads(bytes(result))
    return body


def without_meta(message: Json) -> Json:
    return {name: value for name, value in message["params"].items() if name != "_meta"}


async def test_request_is_repeated_with_the_answers() -> None:
    """With a new id, the original params, the answers by key, and the server's state byte for byte."""
    state = 'a"\\u00e9\\n{}'
    async with connected() as peer:
        rounds(
            peer, wanting(inputRequests={"b": QUESTION, "c": QUESTION}, requestState=state), {"content": []}
        )
        assert await asked(peer) == {"content": []}
        first, second = peer.heard[-2:]
    assert first["id"] != second["id"]
    assert without_meta(first) == PARAMS
    answers = {"b": ACCEPTED, "c": ACCEPTED}
    assert without_meta(second) == {**PARAMS, "inputResponses": answers, "requestState": state}
    for request in (first, second):
        declared = request["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert declared == {"elicitation": {"form": {}}}


async def test_only_the_last_state_is_returned() -> None:
    """Not invented, and not kept from an earlier round."""
    async with connected() as peer:
        rounds(
            peer,
            wanting(inputRequests={"b": QUESTION}, requestState="one"),
            wanting(inputRequests={"b": QUESTION}),
            {"resultType": "complete", "content": []},
        )
        await asked(peer)
        second, third = (without_meta(message) for message in peer.heard[-2:])
    assert second["requestState"] == "one"
    assert "requestState" not in third


async def test_request_is_repeated_for_a_state_without_questions() -> None:
    """After a pause, with the state and without answers."""
    async with connected() as peer:
        rounds(peer, wanting(requestState="wait"), {"content": []})
        await asked(peer)
        assert without_meta(peer.heard[-1]) == {**PARAMS, "requestState": "wait"}


async def test_result_without_a_type_is_complete() -> None:
    """Whatever else it contains."""
    async with connected() as peer:
        rounds(peer, {"content": [], "requestState": "x", "inputRequests": {"b": QUESTION}})
        assert (await asked(peer))["requestState"] == "x"
        assert peer.methods.count("tools/call") == 1


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("completion/complete", wanting(inputRequests={"b": QUESTION})),
        ("tools/call", {"resultType": "task", "taskId": 5}),
        ("tools/call", {"resultType": None}),
        ("tools/call", wanting()),
        ("tools/call", wanting(inputRequests=["b"])),
        ("tools/call", wanting(inputRequests={"b": {"params": {}}})),
        ("tools/call", wanting(inputRequests={"b": "what?"})),
    ],
)
async def test_invalid_input_request_ends_the_request(method: str, result: Json) -> None:
    """A result of an unexpected type, or one that does not say what is required."""
    async with connected() as peer:
        rounds(peer, result, method=method)
        with pytest.raises(ProtocolViolation) as caught:
            await asked(peer, method)
        assert caught.value.server == peer.link.name
        assert peer.methods.count(method) == 1


async def test_rounds_are_limited() -> None:
    """The question of the last one is not asked."""
    questions: list[str] = []

    async def counting(method: str, params: Raw) -> Mapping[str, object]:
        questions.append(method)
        return await accepting(method, params)

    async with connected() as peer:
        peer.script["tools/call"] = {"result": wanting(inputRequests={"b": QUESTION})}
        with pytest.raises(ProtocolViolation, match=f"after {MAX_ROUNDS} rounds"):
            await asked(peer, answer=counting)
        assert peer.methods.count("tools/call") == MAX_ROUNDS
        assert len(questions) == MAX_ROUNDS - 1
    async with connected() as peer:
        rounds(peer, *[wanting(inputRequests={"b": QUESTION})] * (MAX_ROUNDS - 1), {"content": []})
        assert await asked(peer) == {"content": []}


async def test_request_ends_if_nobody_can_answer() -> None:
    """The protocol has no message to say so."""

    async def nobody(method: str, params: Raw) -> Mapping[str, object]:
        raise InputNeeded("nobody", server="peer", asked=method)

    async with connected() as peer:
        rounds(peer, wanting(inputRequests={"b": QUESTION}))
        with pytest.raises(InputNeeded):
            await asked(peer, answer=nobody)
        assert peer.methods.count("tools/call") == 1


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (b"{}", "complete"),
        (b'{"resultType":"complete"}', "complete"),
        (b'{"resultType":"task"}', "task"),
        (rb'{"result\u0054ype":"task"}', "task"),
        (b'{"resultType":5}', "5"),
        (b'["resultType"]', "complete"),
    ],
)
def test_type_of_a_result_is_complete_unless_it_is_named(result: bytes, kind: str) -> None:
    assert result_type(Raw(result)) == kind


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        (b'{"message":"Which?","url":"http://h"}', "elicitation/create: Which? http://h"),
        (b'{"message":5}', "elicitation/create"),
        (b"[]", "elicitation/create"),
        (b"{", "elicitation/create"),
    ],
)
async def test_question_nobody_can_answer_is_quoted(params: bytes, shown: str) -> None:
    caller = ControlCaller(None, None, None, lambda work: None, None)  # type: ignore[arg-type]
    call: Any = SimpleNamespace(server=make_server("server"), description="tool 'x'")
    with pytest.raises(InputNeeded, match="server: tool 'x' requires input to continue") as caught:
        await caller.ask(call, "elicitation/create", Raw(params))
    assert caught.value.asked == shown
