"""Asking by answering, as 2026-07-28 does: a call returns with questions, and is made again with answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from tests.servers.reference.asking import failed, question, said
from tests.servers.reference.content import Json, form, text

STRING = {"type": "string"}


def elicit(message: str, **fields: Json) -> Json:
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": form(**fields)},
    }


def sample(what: str, most: int = 100) -> Json:
    return {"method": "sampling/createMessage", "params": question(what, most)}


ROOTS: Json = {"method": "roots/list", "params": {}}
NAME = elicit("What is your name?", name=STRING)
CONFIRM = elicit("Please confirm", ok={"type": "boolean"})

NEEDS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
"""The capability that a client declares when it can be asked this."""


@attrs.frozen
class Round:
    """What came with a call: answers, and the state that we gave out last time, proven to be ours."""

    arguments: Mapping[str, Any]
    capabilities: frozenset[str]
    answers: Mapping[str, Json]
    state: str | None


Question = Mapping[str, Json]

ASKED: dict[str, list[Question]] = {
    "test_input_required_result_elicitation": [{"user_name": NAME}],
    "test_input_required_result_sampling": [{"capital_question": sample("What is the capital of France?")}],
    "test_input_required_result_list_roots": [{"client_roots": ROOTS}],
    "test_input_required_result_request_state": [{"confirm": CONFIRM}],
    "test_input_required_result_tampered_state": [{"confirm": CONFIRM}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": NAME, "greeting": sample("Generate a greeting", 50), "client_roots": ROOTS}
    ],
    "test_input_required_result_multi_round": [
        {"step1": elicit("Step 1: What is your name?", name=STRING)},
        {"step2": elicit("Step 2: What is your favorite color?", color=STRING)},
    ],
    "test_input_required_result_capabilities": [{"sample": sample("Say hello", 50), "ask": NAME}],
    "test_streaming_elicitation": [{"user_name": NAME}],
}
"""What each asks, round after round."""

STATELESS = frozenset(
    {
        "test_input_required_result_elicitation",
        "test_input_required_result_sampling",
        "test_input_required_result_list_roots",
        "test_streaming_elicitation",
    }
)
"""Those that know from the answers alone how far they are, and give out no state."""

PROMPT: Json = {
    "name": "test_input_required_result_prompt",
    "description": "Asks for its context",
}
CONTEXT = {"user_context": elicit("What context should the prompt use?", context=STRING)}


def required(questions: Question, state: Json | None, capabilities: frozenset[str]) -> Json:
    """A result that asks; only what this client can be asked."""
    wanted = {key: asked for key, asked in questions.items() if NEEDS[asked["method"]] in capabilities}
    result: Json = {"resultType": "input_required", "inputRequests": wanted}
    return result if state is None else {**result, "requestState": json.dumps(state)}


def play(tool: str, now: Round) -> Json:
    """The result of a call of one of `ASKED`: the questions of its round, again while one is unanswered."""
    rounds = ASKED[tool]
    state: Json = json.loads(now.state) if now.state else {"round": 0, "heard": {}}
    current = rounds[min(state["round"], len(rounds) - 1)]
    askable = {key for key, asked in current.items() if NEEDS[asked["method"]] in now.capabilities}
    if not askable:
        return failed("the client can answer none of the questions")
    begun = bool(now.state) or tool in STATELESS
    if begun and askable <= now.answers.keys():
        heard = {**state["heard"], **{key: now.answers[key] for key in sorted(askable)}}
        state = {"round": state["round"] + 1, "heard": heard}
        if state["round"] == len(rounds):
            return said(f"{'state-ok: ' if now.state else ''}{json.dumps(heard)}")
        current = rounds[state["round"]]
    return required(current, None if tool in STATELESS else state, now.capabilities)


def play_prompt(now: Round) -> Json:
    if "user_context" not in now.answers:
        return required(CONTEXT, None, now.capabilities)
    context = (now.answers["user_context"].get("content") or {}).get("context")
    return {"messages": [{"role": "user", "content": text(f"Use the following context: {context}")}]}


class Unanswered(Exception):
    """A tool of `asking` asked something that no round has answered yet."""

    def __init__(self, key: str, asked: Json) -> None:
        super().__init__(f"{key} is not answered yet")
        self.key, self.asked = key, asked


class Memory:
    """Lets a tool that asks while it runs be run again each round, with all answers so far at hand.

    The state that goes to the client and comes back is those answers.
    """

    def __init__(self, now: Round) -> None:
        self._answers: Json = {**(json.loads(now.state) if now.state else {}), **now.answers}
        self._asked: Json = {}

    def recall(self, method: str, params: Json) -> Json:
        """The answer; `Unanswered` when there is none yet."""
        key = f"{method}-{len(self._asked) + 1}"
        asked: Json = {"method": method, "params": params}
        if key not in self._answers:
            raise Unanswered(key, asked)
        self._asked[key] = self._answers[key]
        answer: Json = self._answers[key]
        return answer

    def unanswered(self, open_: Unanswered) -> Json:
        """The result that asks for it."""
        return {
            "resultType": "input_required",
            "inputRequests": {open_.key: open_.asked},
            "requestState": json.dumps(self._asked),
        }
