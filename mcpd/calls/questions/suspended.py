"""Calls that are suspended while a modern client answers a legacy server's questions.

The call stays open at the server. The client's request is answered with the questions and a `requestState`
that names the call; the client then sends a new request with its answers, and the call continues. A state is
valid once, for the same request, and for a limited time.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from functools import partial

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import (
    BETWEEN_ROUNDS,
    PREPARING,
    SENT,
    SUSPENDED,
    Call,
    Caller,
    CallHandler,
    Question,
    Spawn,
)
from mcpd.calls.client_context import ClientRequest
from mcpd.calls.limits import KeptMessage, KeptMessages
from mcpd.calls.turns import release_turn
from mcpd.model.errors import InvalidArguments, McpdError, Problem, ProtocolViolation
from mcpd.model.replica import ALONE, Replica
from mcpd.supervision.attachments import Attachment
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message

RESUME_TIMEOUT = 900.0
"""Seconds for the client to return."""
ORPHAN_TIMEOUT = 30.0
"""The same, once its connection has ended."""
_GATHER_DELAY = 0.03
"""Seconds in which further questions of the same call are collected."""
_STATE_PREFIX = "p."
_MAX_CALLS = 1000
_IGNORED_MEMBERS = ("inputResponses", "requestState", "_meta")


class _SuspendedCall(msgspec.Struct, eq=False):
    """A suspended call, from its first question to its end."""

    call: Call
    digest: bytes
    """Of the request: the client must return with the same one."""
    person: str
    """Whose call it is."""
    number: int = 0
    questions: dict[str, tuple[Question, bytes]] = msgspec.field(default_factory=dict)
    """Unanswered questions, by the key the client sees."""
    state: str = ""
    """The `requestState` that the client must bring; empty while it has a request pending."""
    outcome: KeptMessage | McpdError | None = None
    """The server's response, kept until the client returns."""
    is_gathering: bool = False
    expiry: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)
    """Ends the call if the client does not return; cancelled when it does."""


_SUSPENDED_CALL = Attachment[_SuspendedCall]("how the call is suspended")


class SuspendedCalls:
    """All suspended calls of the daemon: a client may return over another connection."""

    def __init__(
        self, handler: CallHandler, spawn: Spawn, kept: KeptMessages, replica: Replica = ALONE
    ) -> None:
        self._replica = replica
        self._handler = handler
        self._kept = kept
        self._spawn = spawn
        self._calls: dict[Call, _SuspendedCall] = {}
        self._states: dict[str, _SuspendedCall] = {}

    def holds(self, call: Call) -> bool:
        return call in self._calls

    def __len__(self) -> int:
        return len(self._states)

    def ask(self, call: Call, question: Question, params: bytes) -> None:
        """Put a question to the client that made the call, now or when it returns."""
        suspended = self._calls.get(call)
        if suspended is None:
            if len(self._calls) >= _MAX_CALLS:
                question.decline("too many calls are waiting for their clients")
                return
            request = call.request
            assert request is not None
            suspended = self._calls[call] = _SuspendedCall(
                call,
                request_digest(request.method, request.params),
                call.caller.identify(call.context).person,
            )
            call.slots[_SUSPENDED_CALL] = suspended
        suspended.number += 1
        suspended.questions[f"q{suspended.number}"] = (question, params)
        if call.request is not None and not suspended.is_gathering:
            suspended.is_gathering = True
            self._spawn(lambda: self._gather(suspended))

    async def _gather(self, suspended: _SuspendedCall) -> None:
        await trio.sleep(_GATHER_DELAY)
        suspended.is_gathering = False
        call = suspended.call
        if call.request is not None and call in self._calls and suspended.questions:
            self._suspend(suspended)

    def _suspend(self, suspended: _SuspendedCall) -> None:
        suspended.state = self._replica.owner + _STATE_PREFIX + secrets.token_urlsafe(24)
        self._states[suspended.state] = suspended
        content = {
            name: {"method": question.message.method, "params": Raw(params)}
            for name, (question, params) in suspended.questions.items()
        }
        body = {"resultType": "input_required", "inputRequests": content, "requestState": suspended.state}
        call, request = suspended.call, suspended.call.request
        assert request is not None
        call.move(SUSPENDED)
        call.request = None
        call.caller.send_result(call, request, msgspec.json.encode(body))
        suspended.expiry = trio.CancelScope(deadline=trio.current_time() + RESUME_TIMEOUT)
        self._spawn(partial(self._expire, suspended, suspended.expiry, suspended.state))

    async def _expire(self, suspended: _SuspendedCall, kept: trio.CancelScope, state: str) -> None:
        with kept:
            await trio.sleep_forever()
        if self._states.get(state) is suspended:
            self._drop(suspended, "the client did not return")

    def on_caller_left(self, caller: Caller) -> None:
        """A client has disconnected: keep its calls for a shorter time (see also `turns`)."""
        until = trio.current_time() + ORPHAN_TIMEOUT
        for suspended in self._states.values():
            if suspended.call.caller is caller:
                suspended.expiry.deadline = min(suspended.expiry.deadline, until)

    def withdraw(self, call: Call, question: Question) -> None:
        """The question no longer belongs to the call: do not ask it, and ignore an answer."""
        suspended = self._calls.get(call)
        if suspended is not None:
            suspended.questions = {
                name: pair for name, pair in suspended.questions.items() if pair[0] is not question
            }

    def resume(self, caller: Caller, request: ClientRequest) -> bool:
        """Continue the call that the request's state names. Returns False if it has none, or a server's own.

        Raises InvalidArguments if the state is not valid for this request; nothing is executed then.
        """
        members = wire.members(request.params)
        state = wire.string_or(members, "requestState")
        if not self._replica.strip(state).startswith(_STATE_PREFIX):
            return False
        suspended = self._states.get(state)
        if suspended is not None and suspended.person != caller.identify(request.context).person:
            suspended = None
        if suspended is None or suspended.digest != request_digest(request.method, request.params):
            message = "unknown, expired or already used `requestState`"
            raise InvalidArguments(f"{message}; send the call again", [Problem("$.requestState", message)])
        answers = wire.members(members.get("inputResponses", Raw(b"{}")))
        for name, answer in answers.items():
            if name in suspended.questions and not bytes(answer).lstrip().startswith(b"{"):
                raise BadFrame(f"`inputResponses`: the answer to {name} must be an object")
        del self._states[state]
        suspended.state = ""
        suspended.expiry.cancel(reason="the client has returned")
        _resume(suspended.call, caller, request)
        self._answer(suspended, answers)  # even if it has ended: they may belong to another call
        if suspended.outcome is not None:
            self._finish(suspended)
            return True
        if suspended.questions:
            self._suspend(suspended)  # ask again for what is missing
        return True

    def _answer(self, suspended: _SuspendedCall, answers: Mapping[str, Raw]) -> None:
        for name in list(suspended.questions):
            if name in answers:
                question, _ = suspended.questions.pop(name)
                question.respond(answers[name])

    def on_answered(self, call: Call, message: Message) -> None:
        """The server answered while the client is away: keep the response until the client returns."""
        suspended = self._calls.get(call)
        if suspended is None:
            return
        what = f"the response to {call.description} arrived while its client was away, and"
        try:
            suspended.outcome = self._kept.keep(message, call.server, what, call.caller)
        except ProtocolViolation as error:
            suspended.outcome = error
        release_turn(call)  # whenever the client returns

    def on_failed(self, call: Call, error: McpdError) -> None:
        suspended = self._calls.get(call)
        if suspended is not None:
            suspended.outcome = error
            release_turn(call)  # whenever the client returns

    def _finish(self, suspended: _SuspendedCall) -> None:
        """The server answered while the client was away: the client gets the response now."""
        call, outcome = suspended.call, suspended.outcome
        assert outcome is not None
        self.remove(call)
        if isinstance(outcome, McpdError):
            self._handler.fail(call, outcome)
        else:
            self._handler.on_answered(call, outcome.message)

    def remove(self, call: Call) -> None:
        """Forget a call that has ended or been abandoned."""
        suspended = self._calls.pop(call, None)
        if suspended is not None:
            self._states.pop(suspended.state, None)
            if isinstance(suspended.outcome, KeptMessage):
                suspended.outcome.release()
            suspended.expiry.cancel(reason="the call has ended")

    def drop(self, call: Call, reason: str) -> None:
        """Decline the questions of a suspended call, and end it: its client is not expected to return."""
        suspended = self._calls.get(call)
        if suspended is not None:
            self._drop(suspended, reason)

    def _drop(self, suspended: _SuspendedCall, reason: str) -> None:
        self.remove(suspended.call)
        for question, _ in suspended.questions.values():
            question.decline(reason)
        self._handler.cancel(suspended.call, reason)


def _resume(call: Call, caller: Caller, request: ClientRequest) -> None:
    """Continue the call for the client's next request."""
    if call.binding is None:  # a stage asked before anything was sent
        call.move(PREPARING)
    else:
        call.move(SENT if call.work is None else BETWEEN_ROUNDS)
    call.caller, call.request = caller, request
    request.has_no_meta = False  # the params remain those of the first request
    caller.calls[request.key] = call


def request_digest(method: str, params: bytes) -> bytes:
    """Return a digest of the request that ignores order and spelling of its members. Raises BadFrame."""
    members = {k: v for k, v in wire.members(params or b"{}").items() if k not in _IGNORED_MEMBERS}
    content: dict[str, object]
    try:
        content = {k: wire.value(v) for k, v in members.items()}
    except BadFrame:  # valid JSON that Python cannot hold (a number like 1E+400): compare its spelling
        content = {k: bytes(v).hex() for k, v in members.items()}
    return hashlib.sha256(method.encode() + msgspec.json.encode(content, order="sorted")).digest()
