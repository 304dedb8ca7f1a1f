"""Rounds of one call that a modern client sends as several requests (2026-07-28, `input_required`).

The rules apply to the call, not to each request: a person who approved the call is not asked again when the
client sends the next round with the server's input, and all rounds count as one use.
"""

from __future__ import annotations

import hashlib
from functools import partial
from weakref import ref

import trio

from mcpd.calls.call import Call
from mcpd.calls.suspended_calls import RESUME_TIMEOUT, request_digest
from mcpd.model.policy import ClientFacts
from mcpd.wire import message as wire

_MAX_ROUNDS = 1000
_Key = tuple[object, ...]


class PassedRounds:
    """Which requests continue a call that has passed the rules. Each can be continued once, within
    RESUME_TIMEOUT, by the same client, with the same params and the state that it was given. A client
    without a connection of its own is the same if the facts that policies know about it are the same."""

    def __init__(self) -> None:
        self._until: dict[_Key, float] = {}

    def continues(self, call: Call, client: ClientFacts, use: tuple[str, str, str]) -> bool:
        """Return whether a call is another round. In both cases, the call may itself be continued."""
        request = call.request
        if request is None or not call.context.modern:
            return False
        caller = call.caller
        who = (client.executable, client.transport, client.names) if caller.may_return else ref(caller)
        server, kind, name = use
        key = (who, server, kind, _digest(name), request_digest(*_content(call)))
        call.on_input_required = partial(self._remember, key)
        if b'"inputResponses"' not in request.params and b'"requestState"' not in request.params:
            return False
        return self._until.pop((*key, _state_digest(request.params)), 0.0) > trio.current_time()

    def _remember(self, key: _Key, result: bytes) -> None:
        """Record that the client got `result`, and may send another round."""
        now = trio.current_time()
        if len(self._until) >= _MAX_ROUNDS:
            self._until = {each: until for each, until in self._until.items() if until > now}
        if len(self._until) < _MAX_ROUNDS:
            self._until[*key, _state_digest(result)] = now + RESUME_TIMEOUT


def _state_digest(document: bytes) -> bytes:
    """Return a digest of the `requestState`, which can have any length: a thousand may be remembered."""
    return _digest(wire.string_or(wire.members_or_empty(document), "requestState"))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _content(call: Call) -> tuple[str, bytes]:
    assert call.request is not None
    return call.request.method, call.request.params
