"""A modern server that needs something to finish a request says so in its result; then it is asked again.

Each round is a new request with the original params, the answers, and the server's own note to
itself. Nothing else connects the rounds, so nothing has to be remembered here between them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.eras.base import Upstream
from mcpd.model.errors import ProtocolViolation, shorten
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The requests that may take more than one round."""
MOST_ROUNDS = 10
_SOON, _LATER = 0.05, 0.25
"""Seconds before asking again a server that wants nothing but that; they double in between."""

Answer = Callable[[str, Raw], Awaitable[Mapping[str, object]]]
"""Given one of the server's questions (method, params): the bare result. What it raises ends the request:
there is no way to tell a server that nobody answers."""


async def ask_in_rounds(
    upstream: Upstream,
    method: str,
    params: Mapping[str, object],
    answer: Answer,
    *,
    timeout: float = math.inf,
) -> Raw:
    """Ask until the result is complete; its bytes. `timeout` is for each round, not for the answers.

    Raises ProtocolViolation for a result of no known type, for more than MOST_ROUNDS, and for a
    question where none is allowed; besides what `Upstream.request` and `answer` raise.
    """
    pause = _SOON
    asks = params
    for last in (*(False,) * (MOST_ROUNDS - 1), True):
        result = await upstream.request(method, asks, timeout=timeout)
        needed = _needed(upstream.link.name, method, result)
        if needed is None:
            return result
        if last:
            break
        questions, state = needed
        again: dict[str, object] = dict(params)
        if questions:
            again["inputResponses"] = await _answers(upstream.link.name, questions, answer)
        else:
            await trio.sleep(pause)
            pause = min(pause * 2, _LATER)
        if state is not None:
            again["requestState"] = state
        asks = again
    raise ProtocolViolation(
        f"{upstream.link.name}: still wants something after {MOST_ROUNDS} rounds of {method}",
        server=upstream.link.name,
    )


def _needed(name: str, method: str, result: Raw) -> tuple[Mapping[str, Raw], Raw | None] | None:
    """The questions and the server's state, by its bytes; None when the result is complete."""
    try:
        members = wire.members(result)
        kind = wire.value(members.get("resultType", b'"complete"'))
        questions = wire.members(members.get("inputRequests", b"{}"))
    except BadFrame as error:
        raise ProtocolViolation(
            f"{name}: its answer to {method} cannot be read: {error}", server=name
        ) from None
    if kind == "complete":
        return None
    state = members.get("requestState")
    if kind != "input_required" or method not in METHODS or not (questions or state is not None):
        raise ProtocolViolation(
            f"{name}: answered {method} with a result of type {shorten(str(kind), 40)}, which it may not",
            server=name,
        )
    return questions, state


async def _answers(name: str, questions: Mapping[str, Raw], answer: Answer) -> dict[str, object]:
    """One answer for each question, one after the other: it may be one person who gives them."""
    answers: dict[str, object] = {}
    for key, question in questions.items():
        try:
            asked = wire.members(question)
            method = msgspec.json.decode(asked.get("method", b"null"), type=str)
        except (BadFrame, msgspec.MsgspecError) as error:
            raise ProtocolViolation(f"{name}: asks what cannot be read: {error}", server=name) from None
        answers[key] = await answer(method, asked.get("params", Raw(b"{}")))
    return answers
