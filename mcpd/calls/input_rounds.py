"""Results of type `input_required` (2026-07-28): passed on to modern clients, resolved by asking others.

A modern client gets the result with a signed `requestState`, and sends a new request with its answers. A
legacy client is asked within its open call, which is then sent to the server again with the answers and the
server's own `requestState`; the client sees one call. Nothing else connects the rounds.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Call
from mcpd.model.errors import InvalidArguments, McpdError, Problem, ProtocolViolation
from mcpd.model.steps import Steps
from mcpd.model.text import shorten
from mcpd.protocol.revision_translation import COMPLETE_FIRST
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

MAX_ROUNDS = 10
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 0.25
"""Seconds before repeating a request whose server asks for nothing but that; doubled up to the maximum."""


class InputRequired(msgspec.Struct, frozen=True):
    """What a server needs before it can complete a request."""

    members: dict[str, Raw]
    questions: Mapping[str, Raw]
    state: Raw | None
    """The server's `requestState`, byte for byte."""


def result_type(result: Raw) -> str:
    """Return the `resultType` of a modern result; `complete` if it has none."""
    data = bytes(result)
    if (
        data.startswith(b'{"resultType":"complete"')
        or COMPLETE_FIRST.match(data)
        or (data.find(b'"resultType"') < 0 and data.find(b"\\u") < 0)
    ):
        return "complete"
    return _read_type(data)


def result_type_in_steps(result: Raw) -> Steps[str]:
    """Do the same as `result_type`, for a large result: read its members without searching it first."""
    if COMPLETE_FIRST.match(result):
        return "complete"
    data = bytes(result)
    yield
    return _read_type(data)


def _read_type(data: bytes) -> str:
    try:
        kind = wire.value(wire.members(data).get("resultType", b'"complete"'))
    except BadFrame:
        return "complete"  # the next parser reports the error
    return kind if isinstance(kind, str) else shorten(repr(kind), 40)


def parse_input_required(call: Call, result: Raw) -> InputRequired:
    """Parse an `input_required` result. Raises ProtocolViolation if it asks for nothing."""
    name = call.server.spec.name
    try:
        members = wire.members(result)
        questions = wire.members(members.get("inputRequests", b"{}"))
    except BadFrame as error:
        text = f"{name}: invalid response to {call.description}: {error}"
        raise ProtocolViolation(text, server=name) from None
    state = members.get("requestState")
    if not questions and state is None:
        text = f"{name}: answered {call.description} with `input_required`, but asks for nothing"
        raise ProtocolViolation(text, server=name)
    return InputRequired(members, questions, state)


def pass_on(call: Call, needed: InputRequired, signer: StateSigner) -> bytes:
    """Return the result for a modern client, which answers with a new request."""
    members = dict(needed.members)
    if needed.state is not None:
        sealed = signer.sign(call.server.spec.name, needed.state)
        members["requestState"] = Raw(msgspec.json.encode(sealed))
    return msgspec.json.encode(members)


async def answer_round(call: Call, needed: InputRequired) -> None:
    """Ask the client, and put its answers into the call's params. Raises what ends the call."""
    call.start_round()
    if call.rounds >= MAX_ROUNDS:
        name = call.server.spec.name
        text = f"{name}: {call.description} still requires input after {MAX_ROUNDS} rounds"
        raise ProtocolViolation(text, server=name)
    members = wire.members(call.params or b"{}")
    members.pop("inputResponses", None)
    members.pop("requestState", None)
    if needed.questions:
        members["inputResponses"] = Raw(msgspec.json.encode(await _ask_all(call, needed.questions)))
    else:
        await trio.sleep(min(_FIRST_PAUSE * 2 ** (call.rounds - 1), _MAX_PAUSE))
    if needed.state is not None:
        members["requestState"] = needed.state
    call.params = msgspec.json.encode(members)


async def _ask_all(call: Call, questions: Mapping[str, Raw]) -> dict[str, Raw]:
    """Ask all at once: the client decides which one a person sees first."""
    answers: dict[str, Raw] = {}
    trouble: list[McpdError] = []
    async with trio.open_nursery() as nursery:

        async def ask(key: str, question: Raw) -> None:
            try:
                answers[key] = await _ask_one(call, question)
            except McpdError as error:
                trouble.append(error)

        for key, question in questions.items():
            nursery.start_soon(ask, key, question)
    if trouble:
        raise trouble[0]
    return answers


async def _ask_one(call: Call, question: Raw) -> Raw:
    name = call.server.spec.name
    try:
        members = wire.members(question)
        method = wire.string(members, "method")
    except BadFrame as error:
        raise ProtocolViolation(f"{name}: sent an invalid input request: {error}", server=name) from None
    return await _ask_client(call, method, members.get("params", Raw(b"{}")))


async def ask(call: Call, method: str, params: Raw) -> Mapping[str, object]:
    """Return the client's answer to a question within a task; see `Caller.ask`."""
    return wire.mapping(await _ask_client(call, method, params))


async def _ask_client(call: Call, method: str, params: Raw) -> Raw:
    with call.handler.asking(call, method, params):
        return await call.caller.ask(call, method, params)


def add_task_param(call: Call) -> None:
    """Add the `task` param if the client did not. Raises BadFrame."""
    members = wire.members(call.params or b"{}")
    if "task" not in members:
        members["task"] = Raw(b'{"ttl":%d}' % (call.total_timeout * 1000))
        call.params, call.is_task = msgspec.json.encode(members), True


_SIGNED_PREFIX = "u."
_SIGNATURE_LENGTH = 32


class StateSigner:
    """Signs `requestState` values, which pass through clients, with a key of this daemon."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def sign(self, server: str, state: Raw) -> str:
        """Return the server's `requestState` (JSON) with a signature."""
        text = bytes(state).decode("utf-8", "surrogatepass")
        return f"{_SIGNED_PREFIX}{self._signature(server, text)}.{text}"

    def verify(self, server: str, raw: Raw) -> Raw | None:
        """Return the state passed to `sign`, byte for byte; None if the signature does not match."""
        try:
            sealed = msgspec.json.decode(raw, type=str)
        except msgspec.MsgspecError:
            return None
        if not sealed.startswith(_SIGNED_PREFIX):
            return None
        signature, _, text = sealed.removeprefix(_SIGNED_PREFIX).partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(server, text).encode()):
            return None
        return Raw(text.encode("utf-8", "surrogatepass"))

    def restore(self, server: str, params: bytes) -> bytes:
        """Return the params with the server's own `requestState`. Raises InvalidArguments if it is forged."""
        members = wire.members(params)
        if "requestState" in members:
            state = self.verify(server, members["requestState"])
            if state is None:
                message = "`requestState` is not from this server, or mcpd has been restarted since"
                problems = [Problem("$.requestState", message)]
                raise InvalidArguments(f"{message}; send the call again", problems)
            members["requestState"] = state
        return msgspec.json.encode(members)

    def _signature(self, server: str, text: str) -> str:
        message = msgspec.json.encode(server) + b"\0" + text.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()[:_SIGNATURE_LENGTH]
