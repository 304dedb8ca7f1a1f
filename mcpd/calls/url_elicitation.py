"""URL elicitation errors (-32042, 2025-11-25): a legacy server requires its user to visit a URL first.

A modern client is asked with an ordinary `input_required` result. When it returns with the user's consent,
the call is repeated until the server accepts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, Call, Caller
from mcpd.model.errors import InputNeeded
from mcpd.protocol.revision_translation import translate_request
from mcpd.protocol.upstream_session import ServerNotification
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

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
    call.params, call.resumed_after_url = msgspec.json.encode(members), True


def as_input_required(call: Call, error: Raw) -> bytes | None:
    """Return a legacy server's URL elicitation error as a result for a modern client; None if it has no URL.

    A client that cannot show URLs gets `missing_capability_error` instead.
    """
    pages = _url_requests(error)
    if not pages:
        return None
    if not call.context.supports("elicitation", "url"):
        call.missing_capabilities = {"elicitation": {"url": {}}}
        return None
    label = call.caller.message_prefix(call.server.spec.name)
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
