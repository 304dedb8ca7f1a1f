"""An elicitation, sampling or roots request of a legacy server, until it is answered."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from mcpd.calls.call import INTERACTIVE_METHODS, Call
from mcpd.calls.kept_messages import KeptMessage, KeptMessages
from mcpd.calls.open_questions import AskedQuestion, OpenQuestions
from mcpd.model.text import shorten
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.base import Channel
from mcpd.wire.message import Message

ANSWER_TIMEOUT = 900.0
"""Seconds for a person to answer. Meanwhile the call does not time out."""
REJECTED = -1
"""The error code of a question that nobody answers."""


class ServerRequest(msgspec.Struct, eq=False):
    """An elicitation, sampling or roots request of a server, until it is answered."""

    server: ManagedServer
    link: Channel
    message: Message
    forget: Callable[[ServerRequest], None]
    """Takes the request off the open ones."""
    open_questions: OpenQuestions
    """Where it is recorded that a client is asked."""
    asked: AskedQuestion | None = None
    """The record while it is attached to a call."""
    call: Call | None = None
    client_key: bytes = b""
    """The id of our request, if a legacy client is asked."""
    client_params: bytes = b""
    """The params in the client's own revision."""
    is_settled: bool = False
    kept: KeptMessage | None = None
    """Counts the message until it is settled."""

    @property
    def feature(self) -> str:
        return self.message.method.partition("/")[0]

    def respond(self, result: Raw | bytes) -> None:
        if self._settle():
            self.link.respond(self.message, bytes(result))

    def refuse(self, code: int, text: str) -> None:
        if self._settle():
            self.link.refuse(self.message, code, text)

    def decline(self, reason: str) -> None:
        """Answer for a client that cannot be asked: `decline` for elicitation, otherwise an error."""
        if self.feature == "elicitation":
            self.respond(b'{"action":"decline"}')
        else:
            self.refuse(REJECTED, reason)

    def keep(self, messages: KeptMessages) -> None:
        """Count the message while it waits for a client. Raises ProtocolViolation if there is no room."""
        what = f"its request {shorten(self.message.method, 60)}"
        self.kept = messages.keep(self.message, self.server, what)
        self.message = self.kept.message

    def drop(self) -> None:
        """Let it have no answer from mcpd any more."""
        self.is_settled = True
        if self.kept is not None:
            self.kept.release()
        self.detach()

    def _settle(self) -> bool:
        """Return False if it was settled before, or its connection has ended."""
        was_settled = self.is_settled
        if not was_settled:
            self.forget(self)
            self.drop()
        return not was_settled and self.link.end_error is None

    def attach(self, call: Call) -> None:
        """Assign the request to `call`, and extend the deadlines of all calls it may belong to."""
        self.call = call
        call.open_questions += 1
        call.was_asked = True
        self.asked = self.open_questions.add(call, self.message.method, self.client_params)
        for each in ambiguous_with(call):
            self.link.extend_deadline(each, ANSWER_TIMEOUT)

    def detach(self) -> None:
        """Take the request off its call. With no other request open, normal deadlines apply again."""
        call, self.call = self.call, None
        asked, self.asked = self.asked, None
        if asked is not None:
            self.open_questions.remove(asked)
        if call is not None:
            call.open_questions -= 1
            together = ambiguous_with(call)
            if not any(each.open_questions for each in together):
                for each in together:
                    self.link.extend_deadline(each, each.idle_timeout)


def ambiguous_with(call: Call) -> list[Call]:
    """Return the call and those of its client that a request on this connection may also belong to."""
    link = call.upstream.link
    if link.correlates_server_requests:
        return [call]
    others = (
        each
        for each in link.outstanding()
        if isinstance(each, Call)
        and each is not call
        and each.caller is call.caller
        and each.method in INTERACTIVE_METHODS
    )
    return [call, *others]
