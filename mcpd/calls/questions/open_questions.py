"""The questions that servers have asked clients during calls, and that nobody has answered yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import trio

from mcpd.calls.call import Call
from mcpd.model.status import OpenQuestion, rfc3339
from mcpd.model.text import shorten
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire

_MAX_TEXT = 200


class AskedQuestion(msgspec.Struct, eq=False):
    """One unanswered question. Compared by identity."""

    call: Call
    """The call during which the server asked; its caller is who was asked."""
    method: str
    text: str
    """What the server wants to know, in its own words; empty if it did not say."""
    asked_at: float = msgspec.field(default_factory=trio.current_time)
    absent_since: float | None = None
    """Since when the client cannot be reached while other calls wait (`trio.current_time()`); None if it can
    be. Owned by `turns`."""

    @property
    def since(self) -> float:
        """When it was asked, in seconds since the epoch."""
        return time.time() - (trio.current_time() - self.asked_at)

    def describe(self, mask: Callable[[str], str]) -> OpenQuestion:
        caller = self.call.caller
        return OpenQuestion(
            client=mask(caller.describe(self.call.context)),
            call=mask(self.call.description),
            method=self.method,
            text=mask(self.text),
            since=rfc3339(self.since),
            client_is_connected=caller.is_connected,
        )


class OpenQuestions:
    """All unanswered questions of the daemon, by server."""

    def __init__(self) -> None:
        self._by_server: dict[ManagedServer, dict[AskedQuestion, None]] = {}

    def add(self, call: Call, method: str, params: bytes) -> AskedQuestion:
        """Record that the caller is being asked. The code that adds a question must remove it."""
        members = wire.members_or_empty(params)
        text = wire.string_or(members, "message") or wire.string_or(members, "url")
        question = AskedQuestion(call, shorten(method, 60), shorten(text, _MAX_TEXT))
        self._by_server.setdefault(call.server, {})[question] = None
        return question

    def remove(self, question: AskedQuestion) -> None:
        """Forget a question that has been answered, or whose call has ended."""
        server = question.call.server
        questions = self._by_server.get(server, {})
        questions.pop(question, None)
        if not questions:
            self._by_server.pop(server, None)

    @contextmanager
    def asking(self, call: Call, method: str, params: bytes) -> Iterator[None]:
        """Record, while the block runs, that the caller is asked."""
        question = self.add(call, method, params)
        try:
            yield
        finally:
            self.remove(question)

    def of(self, server: ManagedServer) -> Sequence[AskedQuestion]:
        """Return the questions of a server, the oldest first."""
        return list(self._by_server.get(server, ()))


def separate_clients(server: ManagedServer) -> str:
    """Let each client that can be asked use a process of its own, if the definition allows that, because
    questions of this one got into each other's way. Return what that means for the client."""
    server = server.original or server
    spec = server.spec
    if spec.share != "all":
        return ""
    if spec.is_single_process:
        return f" (`share: client` in the definition of {spec.name} gives each client its own process)"
    if not server.elicitation_history.separates_clients:
        server.log.add_line("[mcpd] from now on, each client that can be asked has a process of its own")
        server.elicitation_history.separate_clients()
    return "; from now on, each client that can be asked has a process of its own: call again"
