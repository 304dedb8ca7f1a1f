"""Calls that wait while a modern client answers a legacy server's questions (digest 4.5).

The call to the server stays open; the client's request is answered with the questions and a state
that names the parked call. The client comes back with a request of its own, its answers go to the
server, and the call goes on. A state is good once, for the same request, and for a while.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.gateway import call_concurrency
from mcpd.gateway.client_context import Request
from mcpd.gateway.forwarded_call import Relay
from mcpd.gateway.server_requests import Asking
from mcpd.model.errors import InvalidArguments, McpdError, Problem
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message

if TYPE_CHECKING:
    from mcpd.gateway.gateway import Gateway
    from mcpd.gateway.session import Session

KEPT = 900.0
"""Seconds for the client to come back."""
ORPHANED = 30.0
"""Seconds, from when its connection has ended."""
_GATHER = 0.03
"""Seconds in which further questions of the same call are asked together with the first."""
_MARK = "p."
_MOST = 1000
_OURS = ("inputResponses", "requestState", "_meta")


@attrs.define(eq=False)
class _Call:
    """A parked call; there from its first question to its end."""

    relay: Relay
    digest: bytes
    """Of what was asked: the client must come back with the same request."""
    number: int = 0
    questions: dict[str, tuple[Asking, bytes]] = attrs.field(factory=dict)
    """Those without an answer, by the name under which the client is asked."""
    state: str = ""
    """What the client must bring; empty while a request of its waits."""
    outcome: Message | McpdError | None = None
    """The server's response, for a client that is not here to take it."""
    gathering: bool = False
    kept: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """As long as it waits for its client; whoever takes it up, or ends it, cancels this."""


class Parked:
    """All parked calls of the daemon: a client may come back over another connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._calls: dict[Relay, _Call] = {}
        self._states: dict[str, _Call] = {}

    def holds(self, relay: Relay) -> bool:
        return relay in self._calls

    def __len__(self) -> int:
        return len(self._states)

    # ── the server asks ─────────────────────────────────────────────────────────────────────────

    def ask(self, relay: Relay, asking: Asking, params: bytes) -> None:
        """Put a question to the client that the relay's request came from, or will come from."""
        call = self._calls.get(relay)
        if call is None:
            if len(self._calls) >= _MOST:
                asking.nobody("too many calls wait for their clients")
                self._gateway.questions.settled(asking)
                return
            request = relay.request
            assert request is not None
            call = self._calls[relay] = _Call(relay, _digest(request.method, request.params))
            relay.parked = True
        call.number += 1
        call.questions[f"q{call.number}"] = (asking, params)
        if relay.request is not None and not call.gathering:
            call.gathering = True
            self._gateway.spawn(lambda: self._gather(call))

    async def _gather(self, call: _Call) -> None:
        await trio.sleep(_GATHER)
        call.gathering = False
        request = call.relay.request
        if request is None or call.relay not in self._calls:
            return
        if call.questions:
            self._park(call, request)

    def _park(self, call: _Call, request: Request) -> None:
        call.state = _MARK + secrets.token_urlsafe(24)
        self._states[call.state] = call
        asked = {
            name: {"method": asking.message.method, "params": Raw(params)}
            for name, (asking, params) in call.questions.items()
        }
        body = {"resultType": "input_required", "inputRequests": asked, "requestState": call.state}
        call.relay.session.park(call.relay, request, wire.result(request.key, msgspec.json.encode(body)))
        call.kept = trio.CancelScope(deadline=trio.current_time() + KEPT)
        self._gateway.spawn(lambda: self._keep(call, call.kept, call.state))

    async def _keep(self, call: _Call, kept: trio.CancelScope, state: str) -> None:
        with kept:
            await trio.sleep_forever()
        if self._states.get(state) is call:
            self._drop(call, "the client did not come back")

    def orphaned(self, session: Session) -> None:
        """Whoever was asked on that connection is gone. It may come back over another, but others wait."""
        until = trio.current_time() + ORPHANED
        for call in self._states.values():
            if call.relay.session is session:
                call.kept.deadline = min(call.kept.deadline, until)

    def withdrawn(self, asking: Asking) -> None:
        """The server took a question back: its answer will be ignored."""
        call = self._calls.get(asking.relay) if asking.relay is not None else None
        if call is not None:
            call.questions = {n: pair for n, pair in call.questions.items() if pair[0] is not asking}

    # ── the client comes back ───────────────────────────────────────────────────────────────────

    def resume(self, session: Session, request: Request) -> bool:
        """Go on with the call that the request's state names. False when the state is a server's.

        Raises InvalidArguments for a state that is not, or no longer, good for this request; nothing
        is executed then.
        """
        members = wire.members(request.params)
        try:
            state = msgspec.json.decode(members["requestState"], type=str)
        except (KeyError, msgspec.MsgspecError) as error:
            raise BadFrame(f"`requestState`: {error}") from None
        if not state.startswith(_MARK):
            return False
        call = self._states.get(state)
        if call is None or call.digest != _digest(request.method, request.params):
            words = "`requestState` is of no call that waits here for this request: expired, or used"
            raise InvalidArguments(f"{words}; call again", [Problem("$.requestState", words)])
        answers = wire.members(members.get("inputResponses", Raw(b"{}")))
        for name, answer in answers.items():
            if name in call.questions and not bytes(answer).lstrip().startswith(b"{"):
                raise BadFrame(f"`inputResponses`: the answer to {name} must be an object")
        del self._states[state]
        call.state = ""
        call.kept.cancel(reason="the client has come back")
        session.unpark(call.relay, request)
        self._answer(call, answers)  # even if this call is over: they may be about another of this client
        if call.outcome is not None:
            self._finish(call, request)
            return True
        if call.questions:
            self._park(call, request)  # what is missing is asked again
        return True

    def _answer(self, call: _Call, answers: Mapping[str, Raw]) -> None:
        for name in list(call.questions):
            if name in answers:
                asking, _ = call.questions.pop(name)
                self._gateway.questions.settled(asking)
                asking.respond(answers[name])

    # ── the server is done ──────────────────────────────────────────────────────────────────────

    def over(self, relay: Relay, message: Message) -> None:
        """The server has answered a call whose client is away: kept until it comes, or for a while."""
        call = self._calls.get(relay)
        if call is None:
            return
        call.outcome = message
        self._leave_line(relay)

    def failed(self, relay: Relay, error: McpdError) -> None:
        call = self._calls.get(relay)
        if call is not None:
            call.outcome = error
            self._leave_line(relay)

    def _leave_line(self, relay: Relay) -> None:
        """The server is done with it, whenever the client comes."""
        if relay.lined:
            call_concurrency.release_turn(relay)

    def _finish(self, call: _Call, request: Request) -> None:
        outcome = call.outcome
        assert outcome is not None
        relay = call.relay
        self.left(relay)
        relay.parked = False
        if isinstance(outcome, McpdError):
            relay.session.refuse(request, outcome, relay)
        else:
            relay.answered(outcome)

    def left(self, relay: Relay) -> None:
        """The call is over, or nobody's."""
        call = self._calls.pop(relay, None)
        if call is not None:
            self._states.pop(call.state, None)
            call.kept.cancel(reason="the call is over")

    def _drop(self, call: _Call, reason: str) -> None:
        self.left(call.relay)
        for asking, _ in call.questions.values():
            self._gateway.questions.settled(asking)
            asking.nobody(reason)
        call.relay.give_up(reason)
        self._leave_line(call.relay)


def _digest(method: str, params: bytes) -> bytes:
    """Of what a request asks, whatever the order and the spelling of its members. Raises BadFrame."""
    members = {k: v for k, v in wire.members(params or b"{}").items() if k not in _OURS}
    asked: dict[str, object]
    try:
        asked = {k: wire.value(v) for k, v in members.items()}
    except BadFrame:  # legal JSON that we cannot hold (a number like 1E+400): its spelling counts
        asked = {k: bytes(v).hex() for k, v in members.items()}
    return hashlib.sha256(method.encode() + msgspec.json.encode(asked, order="sorted")).digest()
