"""URL elicitation errors (-32042, 2025-11-25): a legacy server requires its user to visit a URL first.

A modern client is asked with an ordinary `input_required` result. When it returns with the user's consent,
the call is repeated until the server accepts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd.gateway.client_context import ClientRequest
from mcpd.gateway.revision_translation import R4, translate_request
from mcpd.model.errors import InputNeeded
from mcpd.protocol.upstream_session import ServerNotification
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message

if TYPE_CHECKING:
    from mcpd.gateway.client_session import ClientSession
    from mcpd.gateway.forwarded_call import ForwardedCall

URL_ELICITATION_REQUIRED = -32042
"""`URLElicitationRequiredError` of 2025-11-25."""
MISSING_CLIENT_CAPABILITY = -32021
"""`MissingRequiredClientCapabilityError` of 2026-07-28."""
RETRY_INTERVAL = 5.0
"""Seconds until the call is repeated, if the server does not report that the user is done."""
MAX_RETRIES = 12
"""Repeated calls before the user is asked again."""
_Frame = tuple[bytes, int]
"""A response, and its error code or 0: the arguments of `finish_call`."""
_REQUEST_KEY = "page"
_MAX_URLS = 32
_MAX_RECORDED = 1000


class UrlElicitations:
    """Which client was sent to which URL, so that its completion can be reported."""

    def __init__(self) -> None:
        self._sent: dict[tuple[ManagedServer, str], ClientSession] = {}
        self._done = trio.Event()

    def record(self, session: ClientSession, server: ManagedServer, params: Raw) -> None:
        """Remember that a client was shown this elicitation; ignored if it has no id."""
        try:
            key = wire.value(wire.members(params).get("elicitationId", b"null"))
        except BadFrame:
            return
        if isinstance(key, str):
            self._sent[server, key] = session
            while len(self._sent) > _MAX_RECORDED:
                del self._sent[next(iter(self._sent))]

    def on_session_closed(self, session: ClientSession) -> None:
        self._sent = {key: sent for key, sent in self._sent.items() if sent is not session}

    def on_completed(self, server: ManagedServer, notification: ServerNotification) -> None:
        """Handle `notifications/elicitation/complete`, for the client that was sent there."""
        try:
            key = wire.value(wire.members(notification.params).get("elicitationId", b"null"))
        except BadFrame:
            return
        session = self._sent.pop((server, str(key)), None)
        if session is not None and session.version >= R4:
            body = msgspec.json.encode({"elicitationId": key})
            session.send(wire.notification("notifications/elicitation/complete", body))
        self._done.set()
        self._done = trio.Event()

    def next_completion(self) -> Callable[[], Awaitable[None]]:
        """Return a wait for the next completion, at most RETRY_INTERVAL: not every server reports it."""
        done = self._done

        async def wait() -> None:
            with trio.move_on_after(RETRY_INTERVAL):
                await done.wait()

        return wait


def accept_visit(server: str, params: Raw | bytes) -> bytes | None:
    """Return the params of the repeated call once the client has agreed to visit the URL; None if it was not
    asked. Raises InputNeeded if the user declined."""
    members = wire.members(params)
    raw = members.pop("inputResponses", None)
    if raw is None:
        return None
    answers = wire.value(raw)
    given_answers = answers.values() if isinstance(answers, dict) else ()
    if not all(isinstance(each, Mapping) and each.get("action") == "accept" for each in given_answers):
        text = f"{server}: requires its user to visit a URL first, which was declined; send the call again"
        raise InputNeeded(text, server=server, asked="elicitation/create")
    members.pop("requestState", None)
    return msgspec.json.encode(members)


def record_urls(call: ForwardedCall, error: Raw) -> None:
    """Record the URLs in an error that a legacy client handles itself."""
    for params in _url_requests(error):
        call.session.gateway.url_elicitations.record(call.session, call.server, params)


def translate_error(call: ForwardedCall, request: ClientRequest, message: Message) -> _Frame | None:
    """Translate a legacy server's error for a modern client; None if it stays as it is."""
    context = request.context
    code = _error_code(message.error)
    if code == URL_ELICITATION_REQUIRED and (pages := _url_requests(message.error)):
        if not context.supports("elicitation", "url"):
            return missing_capability_error(request, {"elicitation": {"url": {}}}, message.error)
        label = call.session.message_prefix(call.server.spec.name)
        translated = (
            translate_request("elicitation/create", params, context.version, label) for params in pages
        )
        requests = {
            f"{_REQUEST_KEY}{number}": {"method": "elicitation/create", "params": Raw(params)}
            for number, params in enumerate(translated, 1)
            if params is not None
        }
        body = {"resultType": "input_required", "inputRequests": requests}
        return wire.result(request.key, msgspec.json.encode(body)), 0
    if call.missing_capabilities:
        return missing_capability_error(request, call.missing_capabilities, message.error)
    return None


def is_url_required(message: Message) -> bool:
    return _error_code(message.error) == URL_ELICITATION_REQUIRED


def missing_capability_error(
    request: ClientRequest, capabilities: Mapping[str, object], error: Raw
) -> _Frame:
    """Return error -32021: the call failed because the client lacks these capabilities."""
    try:
        text = wire.value(wire.members(error).get("message", b'""'))
    except BadFrame:
        text = ""
    message = f"the client lacks a capability that this call requires: {text}"
    body = wire.error_body(MISSING_CLIENT_CAPABILITY, message, {"requiredCapabilities": capabilities})
    return wire.error(request.key, body), MISSING_CLIENT_CAPABILITY


def _url_requests(error: Raw) -> list[Raw]:
    """Return the URL elicitations in an error, as params."""
    try:
        data = wire.members(wire.members(error).get("data", Raw(b"{}")))
        pages = msgspec.json.decode(data.get("elicitations", Raw(b"[]")), type=list[Raw])
        return [
            Raw(msgspec.json.encode({**members, "mode": "url"}))
            for raw in pages[:_MAX_URLS]
            if {"url", "message"} <= (members := wire.members(raw)).keys()
        ]
    except (BadFrame, msgspec.MsgspecError):
        return []


def _error_code(error: Raw) -> object:
    try:
        return wire.value(wire.members(error).get("code", b"null"))
    except BadFrame:
        return None
