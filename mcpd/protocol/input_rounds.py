"""Requests that a modern server completes in several rounds, asking for input in between (`input_required`).

Each round is a new request with the original params, the answers, and the server's own `requestState`.
Nothing else connects the rounds, so no state is kept between them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Raw

from mcpd.model.errors import InputNeeded, ProtocolViolation
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The requests that may take more than one round."""
MAX_ROUNDS = 10
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 0.25
"""Seconds before repeating a request whose server asks for nothing but that; doubled up to the maximum."""

InputHandler = Callable[[str, Raw], Awaitable[Mapping[str, object]]]
"""Called with a server's question (method, params); returns the bare result. An exception ends the request,
because a server cannot be told that nobody answers."""


async def request_with_input(
    upstream: Upstream,
    method: str,
    params: Mapping[str, object],
    answer: InputHandler,
    *,
    timeout: float = math.inf,
    meta: bytes = b"",
    first: Raw | None = None,
) -> Raw:
    """Repeat the request until its result is complete; return the result's bytes. `timeout` applies to each
    round, not to the answers.

    `meta`: see `Exchange.meta`. `first`: the result of the first round, if it was already sent. Raises
    ProtocolViolation for a result of unknown type, for more than MAX_ROUNDS, and for a question that is not
    allowed, and whatever `Upstream.request` and `answer` raise.
    """
    pause = _FIRST_PAUSE
    current_params = params
    for last in (*(False,) * (MAX_ROUNDS - 1), True):
        result = first or await upstream.request(method, current_params, timeout=timeout, meta=meta)
        first = None
        needed = _parse_input_required(upstream.link.name, method, result)
        if needed is None:
            return result
        if last:
            break
        questions, state = needed
        next_params: dict[str, object] = dict(params)
        if questions:
            next_params["inputResponses"] = await answer_all(upstream.link.name, questions, answer)
        else:
            await trio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE)
        if state is not None:
            next_params["requestState"] = state
        current_params = next_params
    raise ProtocolViolation(
        f"{upstream.link.name}: still requires input after {MAX_ROUNDS} rounds of {method}",
        server=upstream.link.name,
    )


def _parse_input_required(name: str, method: str, result: Raw) -> tuple[Mapping[str, Raw], Raw | None] | None:
    """Return the questions and the server's state, byte for byte; None if the result is complete."""
    try:
        members = wire.members(result)
        kind = wire.value(members.get("resultType", b'"complete"'))
        questions = wire.members(members.get("inputRequests", b"{}"))
    except BadFrame as error:
        raise ProtocolViolation(f"{name}: invalid response to {method}: {error}", server=name) from None
    if kind == "complete":
        return None
    state = members.get("requestState")
    if kind != "input_required" or method not in INPUT_METHODS or not (questions or state is not None):
        raise ProtocolViolation(
            f"{name}: answered {method} with a result of type {shorten(str(kind), 40)}, not allowed here",
            server=name,
        )
    return questions, state


async def answer_all(name: str, questions: Mapping[str, Raw], answer: InputHandler) -> dict[str, object]:
    """Answer the questions one after the other, because one person may have to answer them all.

    Raises ProtocolViolation, and what `answer` raises.
    """
    given_answers: dict[str, object] = {}
    for key, question in questions.items():
        try:
            fields = wire.members(question)
            method = wire.string(fields, "method")
        except BadFrame as error:
            raise ProtocolViolation(f"{name}: sent an invalid input request: {error}", server=name) from None
        given_answers[key] = await answer(method, fields.get("params", Raw(b"{}")))
    return given_answers


def result_type(result: Raw) -> str:
    """Return the `resultType` of a modern result; `complete` if it has none."""
    data = bytes(result)
    if data.find(b'"resultType"') < 0 and data.find(b"\\u") < 0:
        return "complete"
    try:
        kind = wire.value(wire.members(data).get("resultType", b'"complete"'))
    except BadFrame:
        return "complete"  # the next parser reports the error
    return kind if isinstance(kind, str) else shorten(repr(kind), 40)


def no_client(server: str, what: str) -> InputHandler:
    """Return an InputHandler that raises InputNeeded, for callers without a client."""

    async def answer(method: str, params: Raw) -> Mapping[str, object]:
        await trio.lowlevel.checkpoint()
        question = _describe_question(method, params)
        raise InputNeeded(
            f"{server}: {what} requires input to continue ({question}), and nobody can be asked here; "
            "use an MCP client that can answer, or provide everything in the arguments",
            server=server,
            asked=question,
        )

    return answer


def _describe_question(method: str, params: Raw) -> str:
    """Return the question as the server phrased it, for error messages."""
    try:
        fields = wire.mapping(params)
    except BadFrame:
        fields = {}
    texts = [value for name in ("message", "url") if isinstance(value := fields.get(name), str)]
    text = " ".join(shorten(value, 200) for value in texts)
    return f"{shorten(method, 60)}: {text}" if text else shorten(method, 60)
