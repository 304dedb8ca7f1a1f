"""Requests of clients that wait for something before mcpd answers them, such as a server that connects.

Calls wait in the call engine instead.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpd.calls.call import Spawn, Work
from mcpd.calls.client_context import ClientRequest
from mcpd.model.errors import Overloaded

MAX_PER_CLIENT = 1024
"""Each request takes a task. A client may subscribe to a thousand resources at once."""
MAX_IN_TOTAL = 8192
"""Each takes some kilobytes."""


class WaitingRequests:
    """Those of one client. `of_all` contains those of all clients, and is shared by them."""

    def __init__(
        self,
        of_all: set[trio.CancelScope],
        spawn: Spawn,
        respond_exception: Callable[[ClientRequest, Exception], None],
    ) -> None:
        self._of_all = of_all
        self._spawn = spawn
        self._respond_exception = respond_exception
        self.scopes: dict[bytes, trio.CancelScope] = {}
        """By the ids of the requests."""
        self._is_closed = False

    def start(self, request: ClientRequest, work: Work) -> None:
        """Answer a request in a task of its own; an exception raised by `work` becomes the response.

        A result that `work` waited for may arrive together with the cancellation, so `work` must check for
        cancellation before it acts. It must undo whatever it did before being cancelled. Raises Overloaded.
        """
        if len(self.scopes) >= MAX_PER_CLIENT:
            raise Overloaded(f"{MAX_PER_CLIENT} requests of this client are already waiting; try again later")
        if len(self._of_all) >= MAX_IN_TOTAL:
            raise Overloaded(f"{MAX_IN_TOTAL} requests of all clients are already waiting; try again later")
        scope = self.scopes[request.key] = trio.CancelScope()
        self._of_all.add(scope)

        async def run() -> None:
            with scope:
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await work()
                except Exception as error:
                    if not scope.cancel_called:
                        self._respond_exception(request, error)
                finally:
                    self._of_all.discard(scope)
            if self.scopes.get(request.key) is scope:
                del self.scopes[request.key]
            if scope.cancel_called and not self._is_closed:
                request.responder.drop()

        self._spawn(run)

    def cancel(self, key: bytes, reason: str) -> None:
        """Cancel the request with this id, if it waits. It gets no response."""
        scope = self.scopes.pop(key, None)
        if scope is not None:
            scope.cancel(reason=reason)

    def close(self, reason: str) -> None:
        """Cancel all requests: the client has disconnected."""
        self._is_closed = True
        for scope in self.scopes.values():
            scope.cancel(reason=reason)
