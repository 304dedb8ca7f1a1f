"""A client's request forwarded to one server, and its response sent back: ids replaced, other bytes kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from mcpd.gateway import url_elicitation
from mcpd.gateway.client_context import ClientContext, ClientRequest
from mcpd.gateway.revision_translation import R5, Translation
from mcpd.model.errors import McpdError
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.managed_server import ManagedServer
from mcpd.support.pipe_reader import traffic
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.request_meta import strip_reserved

if TYPE_CHECKING:
    from mcpd.gateway.client_session import ClientSession

INTERACTIVE_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods during which a server may request input from the client."""
_INPUT_REQUIRED = b'"input_required"'


class ForwardedCall(Exchange):
    """One request in flight. The client gets exactly one response, unless it cancels.

    A call may outlive its first request: if the server asks something, a modern client answers with a second
    request, and `request` is the one to be answered next.
    """

    session: ClientSession
    context: ClientContext
    request: ClientRequest | None
    """The client's pending request; None while the call is suspended."""
    upstream: Upstream
    server: ManagedServer
    params: bytes
    """As sent, to be sent again with the input that the server requires."""
    translation: Translation
    alias: tuple[str, str] | None = None
    """See `Route.alias`."""
    as_task: bool = False
    """Whether the call runs as a task that the client does not know of."""
    open_questions: int = 0
    """Requests of the server that the client has not answered."""
    rounds: int = 0
    is_suspended: bool = False
    """Whether `SuspendedCalls` keeps it: a modern client was asked something."""
    missing_capabilities: dict[str, object] | None = None
    """Client capabilities whose absence made us decline requests of the server."""
    resumed_after_url: bool = False
    """Whether the client has returned from visiting a URL (`url_elicitation`)."""
    progress_high: float = -math.inf
    """The progress last reported to the client."""
    progress_base: float = 0.0
    """Progress of earlier rounds, added to that of this round."""
    holds_turn: bool = False
    """Whether it is in its server's turn queue."""
    cancel_task: Callable[[str], None] | None = None
    """Cancels the task that works on the call between two requests to the server, while there is one."""

    def submit(self) -> None:
        """Send the call to its server now. Raises LinkLost, Overloaded, BadFrame; nothing was sent then."""
        request, translation = self.request, self.translation
        assert request is not None
        params = self.params if translation.same else translation.params(request.method, self.params)
        self.upstream.link.submit(self, request.method, params, plain=request.has_no_meta)

    def answered(self, message: Message) -> None:
        traffic.more_expected = True
        request = self.request
        if request is None:
            self.session.gateway.suspended_calls.on_answered(self, message)
            return
        if message.error is ABSENT:
            if self.as_task:
                self.session.poll_task(self, message.result)
                return
            result: Raw | bytes = message.result
            if not self.translation.same:
                if self._may_be_input_required(message.result) and self.session.handle_input_required(
                    self, request, message.result
                ):
                    return
                result = self.translation.result(self.method, message.result)
            if self.alias is not None:
                result = _restore_alias(result, *self.alias)
            self.session.finish_call(self, wire.result(request.key, result))
        elif not (self.translation.server < R5 and self._handle_url_elicitation(request, message)):
            body = self.translation.error(self.method, message.error)
            self.session.finish_call(self, wire.error(request.key, body))

    def _may_be_input_required(self, result: Raw) -> bool:
        return (
            self.translation.from_modern
            and self.method in INTERACTIVE_METHODS
            and _INPUT_REQUIRED in bytes(result)
        )

    def _advance_progress(self, members: dict[str, Raw]) -> bool:
        """Keep progress increasing over all rounds of a call; returns False if it does not increase."""
        try:
            done = msgspec.json.decode(members.get("progress", Raw(b"null")), type=float)
            if self.progress_base:
                done += self.progress_base
                members["progress"] = Raw(msgspec.json.encode(done))
                if "total" in members:
                    total = msgspec.json.decode(members["total"], type=float)
                    members["total"] = Raw(msgspec.json.encode(total + self.progress_base))
        except msgspec.MsgspecError:
            return False
        if done <= self.progress_high:
            return False
        self.progress_high = done
        return True

    def start_round(self) -> None:
        """Begin another round: the server's progress starts at zero again."""
        self.rounds += 1
        self.progress_base = max(self.progress_high, 0.0)

    def _handle_url_elicitation(self, request: ClientRequest, message: Message) -> bool:
        """Handle a legacy server's request to visit a URL. Returns False for other errors."""
        if not self.translation.to_modern:
            if url_elicitation.is_url_required(message):
                url_elicitation.record_urls(self, message.error)
            return False
        if (
            self.resumed_after_url
            and self.rounds < url_elicitation.MAX_RETRIES
            and url_elicitation.is_url_required(message)
        ):
            self.start_round()
            self.session.retry_call(self, self.session.gateway.url_elicitations.next_completion())
            return True
        frame = url_elicitation.translate_error(self, request, message)
        if frame is None:
            return False
        self.session.finish_call(self, *frame)
        return True

    def progressed(self, params: Raw) -> None:
        request = self.request
        if request is None or not request.progress_token:
            return
        members = {**wire.members(params), "progressToken": Raw(request.progress_token)}
        strip_reserved(members)
        if not self._advance_progress(members):
            return
        request.responder.send(wire.notification("notifications/progress", msgspec.json.encode(members)))

    def failed(self, error: McpdError) -> None:
        if self.request is None:
            self.session.gateway.suspended_calls.on_failed(self, error)
        else:
            self.session.refuse_request(self.request, error, self)

    def abandon(self, reason: str) -> None:
        """Cancel the call at its server, or the task that works on it."""
        if self.cancel_task is not None:
            self.cancel_task(reason)
        else:
            self.upstream.link.cancel(self, reason)


def _restore_alias(result: Raw | bytes, own: str, public: str) -> Raw | bytes:
    """Return a read resource under the URI that the client asked for."""
    try:
        members = wire.members(result)
        contents = wire.value(members["contents"])
    except (BadFrame, KeyError):
        return result
    if not isinstance(contents, list):
        return result
    renamed = [
        {**each, "uri": public} if isinstance(each, dict) and each.get("uri") == own else each
        for each in contents
    ]
    return msgspec.json.encode({**members, "contents": renamed})


def error_response(key: bytes, error: McpdError, *, modern: bool = False) -> bytes:
    """Return an error of mcpd's own as a response. The modern revision reserves -32000 to -32019."""
    code = -32603 if modern and -32019 <= error.rpc <= -32000 else error.rpc
    return wire.error(key, wire.error_body(code, error.message, error.data()))


def tool_name(params: bytes) -> str:
    """Return the tool named by the params of a `tools/call`; empty if none."""
    return wire.string_or(wire.members_or_empty(params), "name")
