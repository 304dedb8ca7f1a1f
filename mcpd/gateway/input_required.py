"""Results of type `input_required` (2026-07-28): passed on to modern clients, resolved by asking legacy
ones.

A modern client gets the result with a signed `requestState`, and sends a new request with its answers. A
legacy client is asked within its open call, which is then sent to the server again with the answers; the
client sees one call.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd.gateway import call_tasks
from mcpd.gateway.client_context import ClientRequest
from mcpd.gateway.elicitation_routing import ANSWER_TIMEOUT
from mcpd.gateway.forwarded_call import ForwardedCall
from mcpd.gateway.revision_translation import translate_request
from mcpd.model.errors import LinkLost, McpdError, Overloaded, ProtocolViolation
from mcpd.model.text import shorten
from mcpd.protocol import mcp_tasks
from mcpd.protocol.input_rounds import MAX_ROUNDS
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

if TYPE_CHECKING:
    from mcpd.gateway.client_session import ClientSession

_FIRST_PAUSE = 0.05
"""Seconds before repeating a request whose server asks for nothing but that."""


def can_pass_through(server: ManagedServer, request: ClientRequest) -> bool:
    """Return whether both sides share a revision, and so may know a method that mcpd does not."""
    upstream = server.upstream
    if upstream is None or request.method.startswith("notifications/"):
        return False
    return upstream.version == request.context.version


def handle_input_required(
    session: ClientSession, call: ForwardedCall, request: ClientRequest, result: Raw
) -> bool:
    """Handle an `input_required` result. Returns False for any other result."""
    try:
        members = wire.members(result)
        if wire.value(members.get("resultType", b"null")) != "input_required":
            return False
        questions = wire.members(members.get("inputRequests", b"{}"))
    except BadFrame:
        return False
    if request.context.modern:
        state = members.get("requestState")
        if state is not None:
            sealed = session.gateway.state_signer.sign(call.server.spec.name, state)
            members["requestState"] = Raw(msgspec.json.encode(sealed))
        session.finish_call(call, wire.result(request.key, msgspec.json.encode(members)))
        return True
    call_tasks.spawn_for_call(call, lambda: _run_round(session, call, questions, members.get("requestState")))
    return True


async def _run_round(
    session: ClientSession, call: ForwardedCall, questions: Mapping[str, Raw], state: Raw | None
) -> None:
    """Ask the client, then the server again. Raises what ends the call."""
    name = call.server.spec.name
    call.start_round()
    if call.rounds > MAX_ROUNDS:
        raise ProtocolViolation(f"{name}: still requires input after {MAX_ROUNDS} rounds", server=name)
    members = wire.members(call.params or b"{}")
    members.pop("inputResponses", None)
    members.pop("requestState", None)
    if questions:
        members["inputResponses"] = Raw(msgspec.json.encode(await _ask_all(session, call, questions)))
    else:
        await trio.sleep(_FIRST_PAUSE * 2**call.rounds)
    await trio.lowlevel.checkpoint_if_cancelled()
    if state is not None:
        members["requestState"] = state
    call.params = msgspec.json.encode(members)
    call.cancel_task = None
    try:
        call.submit()
    except (LinkLost, Overloaded) as error:  # an earlier round has reached the server
        message = f"{name}: {call.method} was interrupted after it had started and may have partly run"
        raise LinkLost(f"{message}; not retried ({error.message})", server=name) from error


def add_required_task(call: ForwardedCall) -> bool:
    """Add the `task` param if the tool requires it and the client did not. Returns whether it was added."""
    try:
        members = wire.members(call.params or b"{}")
        name = wire.value(members.get("name", b"null"))
        catalog = call.server.catalog
        tool = catalog.tool(str(name)) if catalog is not None and "task" not in members else None
        execution = wire.members(tool.raw).get("execution") if tool is not None else None
        if execution is None or wire.value(wire.members(execution).get("taskSupport", b"null")) != "required":
            return False
    except BadFrame:
        return False
    members["task"] = Raw(b'{"ttl":%d}' % (call.total_timeout * 1000))
    call.params = msgspec.json.encode(members)
    return True


async def poll_task(session: ClientSession, call: ForwardedCall, created: Raw) -> None:
    """Poll the task until it is done, and send its result as the response to the call."""
    request = call.request
    assert request is not None

    async def answer(method: str, params: Raw) -> Mapping[str, object]:
        question = Raw(msgspec.json.encode({"method": method, "params": params}))
        return wire.mapping(await _ask_client(session, call, question))

    result = await mcp_tasks.await_task(
        call.upstream,
        created,
        answer,
        what=request.method,
        timeout=call.idle_timeout,
        limit=call.hard_deadline - trio.current_time(),
        next_connection=lambda: session.gateway.core.wait_reconnected(call.server),
    )
    await trio.lowlevel.checkpoint_if_cancelled()
    call.cancel_task = None
    session.finish_call(call, wire.result(request.key, call.translation.result(call.method, result)))


async def _ask_all(
    session: ClientSession, call: ForwardedCall, questions: Mapping[str, Raw]
) -> dict[str, Raw]:
    """Ask all at once: the client decides which one a person sees first."""
    answers: dict[str, Raw] = {}
    trouble: list[McpdError] = []
    async with trio.open_nursery() as nursery:

        async def ask(key: str, raw: Raw) -> None:
            try:
                answers[key] = await _ask_client(session, call, raw)
            except McpdError as error:
                trouble.append(error)

        for key, raw in questions.items():
            nursery.start_soon(ask, key, raw)
    if trouble:
        raise trouble[0]
    return answers


async def _ask_client(session: ClientSession, call: ForwardedCall, raw: Raw) -> Raw:
    """Return the client's result. If it refuses, cancel an elicitation, or raise ProtocolViolation."""
    name, request = call.server.spec.name, call.request
    assert request is not None
    try:
        question = wire.members(raw)
        method = wire.string(question, "method")
        params = translate_request(
            method, question.get("params", Raw(b"{}")), session.context.version, session.message_prefix(name)
        )
    except BadFrame as error:
        raise ProtocolViolation(f"{name}: sent an invalid input request: {error}", server=name) from None
    message: list[Message | None] = []
    done = trio.Event()

    def answered(response: Message | None) -> None:
        message.append(response)
        done.set()

    if params is not None and session.context.supports(method.partition("/")[0]):
        key = session.client_requests.send_request(method, params, request.responder, answered)
        reason = "its call has ended"
        try:
            with trio.move_on_after(ANSWER_TIMEOUT) as patience:
                await done.wait()
            if patience.cancelled_caught:
                reason = f"no answer within {ANSWER_TIMEOUT:g} s"
        finally:
            if not done.is_set():
                session.client_requests.cancel(key, reason)
    response = message[0] if message else None
    if response is not None and response.result is not ABSENT:
        return response.result
    if method == "elicitation/create":
        return Raw(b'{"action":"cancel"}')
    raise ProtocolViolation(f"{name}: needs {shorten(method, 40)}, which the client refused", server=name)


_SIGNED_PREFIX = "u."
_SIGNATURE_LENGTH = 32


class StateSigner:
    """Signs `requestState` values, which pass through clients, with a key of this daemon."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

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

    def _signature(self, server: str, text: str) -> str:
        message = msgspec.json.encode(server) + b"\0" + text.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()[:_SIGNATURE_LENGTH]
