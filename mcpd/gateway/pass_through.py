"""Messages that mcpd does not know. They reach the other side where only one peer can be meant.

A server's message is for the client whose call it belongs to. Outside of calls, it is for the only client
that uses the server. The status of a task is for the client whose call became the task. (A client's message
is for the server that it is attached to: see `ClientSession`.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw

from mcpd.calls.call import Call
from mcpd.calls.questions.router import candidates
from mcpd.calls.stages.tasks import client_of_task
from mcpd.gateway.session import ClientSession
from mcpd.protocol.revision_translation import translate_request
from mcpd.protocol.upstream_session import ServerNotification, parse_error
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.base import Channel
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, INTERNAL_ERROR, BadFrame, Message

_MAX_OPEN = 100
"""Requests that one client may leave unanswered."""
_TASK_STATUS = "notifications/tasks/status"
_QUESTIONS = ("elicitation/create", "sampling/createMessage")


class PassThrough:
    """`users_of` returns the sessions that use a server."""

    def __init__(self, users_of: Callable[[ManagedServer], Sequence[ClientSession]]) -> None:
        self._users_of = users_of
        self._open: dict[tuple[Channel, bytes], tuple[ClientSession, bytes]] = {}
        """Server's connection and request → the client that has it, and its id there."""

    def send_request(
        self, server: ManagedServer, link: Channel, message: Message, exchange: Exchange | None
    ) -> bool:
        """Send a server's request to the client. Returns False if no single client can be meant, or if it
        has not declared to support that."""
        possible, method = candidates(link, exchange), message.method
        if method == "roots/list" or (method in _QUESTIONS and (possible or server.spec.share == "all")):
            return False  # a shared server may ask because of a call that another client has given up
        session = self._receiver(server, possible)
        if session is None or len(session.client_requests) >= _MAX_OPEN:
            return False
        if method in _QUESTIONS and not session.context.supports(method.partition("/")[0]):
            return False
        try:
            params = translate_request(method, message.params, session.context.version, "")
        except BadFrame:
            return False
        if params is None:
            return False
        key = (link, message.key)

        def on_response(response: Message | None) -> None:
            self._open.pop(key, None)
            if response is None:
                link.refuse(message, INTERNAL_ERROR, "the client has disconnected")
            elif response.result is not ABSENT:
                link.respond(message, bytes(response.result))
            else:
                code, text, _ = parse_error(response.error)
                link.refuse(message, INTERNAL_ERROR if code is None else code, text or "the client refused")

        call = possible[0] if possible else None
        responder = call.request.responder if isinstance(call, Call) and call.request is not None else None
        sent = session.client_requests.send_request(method, params, responder, on_response)
        self._open[key] = session, sent
        return True

    def cancel(self, link: Channel, params: Raw) -> None:
        """The server has cancelled a request. Raises BadFrame."""
        found = self._open.pop((link, bytes(wire.members(params).get("requestId", b""))), None)
        if found is not None:
            session, key = found
            session.cancel_request(key, "cancelled by the server")

    def notify_client(self, server: ManagedServer, notification: ServerNotification) -> None:
        upstream = server.upstream
        if upstream is None or not upstream.asks_by_request:
            return
        if notification.method == _TASK_STATUS:
            owner, version = client_of_task(server, notification.params), upstream.version
            users = (
                each for each in self._users_of(server) if each is owner and each.view.single is not None
            )
            session = next((each for each in users if each.context.version == version), None)
        else:
            session = self._receiver(server, candidates(upstream.link, notification.exchange))
        if session is not None:
            session.send(wire.notification(notification.method, bytes(notification.params)))

    def _receiver(self, server: ManagedServer, possible: Sequence[Exchange]) -> ClientSession | None:
        """Return the client that a message is for. Only a legacy client may get one."""
        users = [each for each in self._users_of(server) if each.is_initialized and not each.is_closed]
        if possible:
            calls = [each for each in possible if isinstance(each, Call)]
            users = [each for each in users if len(possible) == len(calls) == 1 and calls[0].caller is each]
        return users[0] if len(users) == 1 else None
