"""Results of type `input_required` (2026-07-28): passed on to modern clients, resolved by asking others.

A modern client gets the result with a signed `requestState`, and sends a new request with its answers. A
legacy client is asked within its open call, which is then sent to the server again with the answers and the
server's own `requestState`; the client sees one call. Nothing else connects the rounds.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, Call, Caller
from mcpd.model.errors import InputNeeded, InvalidArguments, McpdError, Problem, ProtocolViolation
from mcpd.model.replica import ALONE, Replica
from mcpd.protocol.revision_translation import translate_request
from mcpd.protocol.upstream_session import ServerNotification
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

MAX_ROUNDS = 10
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 0.25
"""Seconds before repeating a request whose server asks for nothing but that; doubled up to the maximum."""


VISITED = Attachment[bool]("whether its client has returned from visiting a URL")
MISSING_CAPABILITIES = Attachment[Mapping[str, object]]("what the client lacked to be asked")


class InputRequired(msgspec.Struct, frozen=True):
    """What a server needs before it can complete a request."""

    members: dict[str, Raw]
    questions: Mapping[str, Raw]
    state: Raw | None
    """The server's `requestState`, byte for byte."""


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
        person = call.caller.identify(call.context).person
        sealed = signer.sign(f"{call.server.configured_name}\n{person}", needed.state)
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
    """Signs `requestState` values, which pass through clients."""

    def __init__(self, replica: Replica = ALONE) -> None:
        self._replica = replica
        self._key = replica.key or os.urandom(32)

    def sign(self, server: str, state: Raw) -> str:
        """Return the server's `requestState` (JSON) with a signature. `server`: its name, and the person."""
        text = bytes(state).decode("utf-8", "surrogatepass")
        return f"{self._replica.owner}{_SIGNED_PREFIX}{self._signature(server, text)}.{text}"

    def verify(self, server: str, raw: Raw) -> Raw | None:
        """Return the state passed to `sign`, byte for byte; None if the signature does not match."""
        try:
            sealed = msgspec.json.decode(raw, type=str)
        except msgspec.MsgspecError:
            return None
        sealed = self._replica.strip(sealed)
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


URL_ELICITATION_REQUIRED = -32042
"""`URLElicitationRequiredError` of 2025-11-25."""
MISSING_CLIENT_CAPABILITY = -32021
"""`MissingRequiredClientCapabilityError` of 2026-07-28."""
RETRY_INTERVAL = 5.0
"""Seconds until the call is repeated, if the server does not report that the user is done."""
MAX_RETRIES = 12
"""Repeated calls before the user is asked again."""
_REQUEST_KEY = "page"
_MAX_URLS = 32
_MAX_RECORDED = 1000


class UrlElicitations:
    """Which client was sent to which URL, so that its completion can be reported."""

    def __init__(self) -> None:
        self._sent: dict[tuple[ManagedServer, str], Caller] = {}
        self._done = trio.Event()

    def record(self, caller: Caller, server: ManagedServer, params: Raw) -> None:
        """Remember that a client was shown this elicitation; ignored if it has no id."""
        key = _elicitation_id(params)
        if key:
            self._sent[server, key] = caller
            while len(self._sent) > _MAX_RECORDED:
                del self._sent[next(iter(self._sent))]

    def record_all(self, call: Call, error: Raw) -> None:
        """Record the URLs in an error that a legacy client handles itself."""
        for params in _url_requests(error):
            self.record(call.caller, call.server, params)

    def on_caller_left(self, caller: Caller) -> None:
        self._sent = {key: sent for key, sent in self._sent.items() if sent is not caller}

    def on_completed(self, server: ManagedServer, notification: ServerNotification) -> Caller | None:
        """Handle `notifications/elicitation/complete`. Returns the client that was sent there, if known."""
        caller = self._sent.pop((server, _elicitation_id(notification.params)), None)
        self._done.set()
        self._done = trio.Event()
        return caller

    def next_completion(self) -> Callable[[], Awaitable[None]]:
        """Return a wait for the next completion, at most RETRY_INTERVAL: not every server reports it."""
        done = self._done

        async def wait() -> None:
            with trio.move_on_after(RETRY_INTERVAL):
                await done.wait()

        return wait


def accept_visit(call: Call) -> None:
    """Remove the client's answer to `as_input_required` from the call: its legacy server knows nothing of it.

    Raises InputNeeded if the user declined.
    """
    if call.route.method not in INTERACTIVE_METHODS:
        return
    members = wire.members(call.params)
    raw = members.pop("inputResponses", None)
    if raw is None:
        return
    answers = wire.value(raw)
    given_answers = answers.values() if isinstance(answers, dict) else ()
    if not all(isinstance(each, Mapping) and each.get("action") == "accept" for each in given_answers):
        name = call.server.spec.name
        text = f"{name}: requires its user to visit a URL first, which was declined; send the call again"
        raise InputNeeded(text, server=name, asked="elicitation/create")
    members.pop("requestState", None)
    call.params = msgspec.json.encode(members)
    call.slots[VISITED] = True


def as_input_required(call: Call, error: Raw) -> bytes | None:
    """Return a legacy server's URL elicitation error as a result for a modern client; None if it has no URL.

    A client that cannot show URLs gets `missing_capability_error` instead.
    """
    pages = _url_requests(error)
    if not pages:
        return None
    if not call.context.supports("elicitation", "url"):
        call.slots[MISSING_CAPABILITIES] = {"elicitation": {"url": {}}}
        return None
    label = call.caller.message_prefix(call.server.configured_name)
    translated = (
        translate_request("elicitation/create", params, call.context.version, label) for params in pages
    )
    requests = {
        f"{_REQUEST_KEY}{number}": {"method": "elicitation/create", "params": Raw(params)}
        for number, params in enumerate(translated, 1)
        if params is not None
    }
    return msgspec.json.encode({"resultType": "input_required", "inputRequests": requests})


def is_url_required(error: Raw) -> bool:
    return _error_code(error) == URL_ELICITATION_REQUIRED


def missing_capability_error(capabilities: Mapping[str, object], error: Raw) -> bytes:
    """Return error -32021: the call failed because the client lacks these capabilities."""
    try:
        text = wire.value(wire.members(error).get("message", b'""'))
    except BadFrame:
        text = ""
    message = f"the client lacks a capability that this call requires: {text}"
    return wire.error_body(MISSING_CLIENT_CAPABILITY, message, {"requiredCapabilities": capabilities})


def _url_requests(error: Raw) -> list[Raw]:
    """Return the URL elicitations in an error, as params."""
    try:
        data = wire.members(wire.members(error).get("data", Raw(b"{}")))
        pages, _ = wire.first_items(data.get("elicitations", Raw(b"[]")), _MAX_URLS)
        return [
            Raw(msgspec.json.encode({**members, "mode": "url"}))
            for raw in pages
            if {"url", "message"} <= (members := wire.members(raw)).keys()
        ]
    except BadFrame:
        return []


def _error_code(error: Raw) -> object:
    try:
        return wire.value(wire.members(error).get("code", b"null"))
    except BadFrame:
        return None


def _elicitation_id(params: Raw) -> str:
    try:
        key = wire.value(wire.members(params).get("elicitationId", b"null"))
    except BadFrame:
        return ""
    return key if isinstance(key, str) else ""
