"""What servers ask clients during calls, in every era: the one object that the engine and the gateway use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw

from mcpd.calls.call import BETWEEN_ROUNDS, SUSPENDED, Call, Caller, CallHandler, Spawn
from mcpd.calls.client_context import ClientRequest
from mcpd.calls.limits import KeptMessages
from mcpd.calls.questions.open_questions import OpenQuestions
from mcpd.calls.questions.rounds import StateSigner, UrlElicitations
from mcpd.calls.questions.router import ServerRequestRouter
from mcpd.calls.questions.suspended import SuspendedCalls
from mcpd.model.errors import InputNeeded
from mcpd.model.replica import Replica
from mcpd.supervision.managed_server import ManagedServer


class Questions:
    """`spawn` must run tasks that outlive clients; `roots` returns the roots of all clients of a server."""

    def __init__(
        self,
        handler: CallHandler,
        spawn: Spawn,
        roots: Callable[[ManagedServer], Sequence[Raw]],
        replica: Replica,
    ) -> None:
        self._handler = handler
        self.kept = KeptMessages()
        self.open = OpenQuestions()
        self.signer = StateSigner(replica)
        self.urls = UrlElicitations()
        self.suspended = SuspendedCalls(handler, spawn, self.kept, replica)
        self.requests = ServerRequestRouter(self.suspended, self.urls, self.open, spawn, roots, self.kept)

    def resume(self, caller: Caller, request: ClientRequest, server: str, params: bytes) -> bytes | None:
        """Continue the suspended call that the request of a modern client names, and return None. For another
        call, return the params with the server's own `requestState`.

        Raises InvalidArguments if the state is not valid; nothing is executed then.
        """
        if self.suspended.resume(caller, request):
            return None
        return self.signer.restore(f"{server}\n{caller.identify(request.context).person}", params)

    def on_call_ended(self, call: Call) -> None:
        """The call has ended: assign its open questions to others, and forget that it was suspended."""
        if call.open_questions:
            self.requests.on_call_ended(call)
        self.suspended.remove(call)

    def drop(self, call: Call, question: str, reason: str) -> None:
        """See `CallHandler.drop_questions`."""
        if call.state is SUSPENDED:
            self.suspended.drop(call, reason)
        elif call.state is BETWEEN_ROUNDS:
            if call.work is not None:
                call.work.cancel(reason=reason)
            name = call.server.spec.name
            message = f"{name}: {call.description} requires input to continue, but {reason}"
            self._handler.fail(call, InputNeeded(message, server=name, asked=question))
        else:
            self.requests.decline_all(call, reason)
