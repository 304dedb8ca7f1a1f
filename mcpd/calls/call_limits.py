"""How many calls may wait for a server to connect, and how large they may be.

The arguments of a call are kept until it has ended: while it waits for its server or its turn, is being
written to a server that reads slowly, or may have to be sent again.
"""

from __future__ import annotations

from mcpd.calls.byte_budget import ByteBudget
from mcpd.calls.call import Call
from mcpd.model.errors import Overloaded
from mcpd.supervision.managed_server import ManagedServer

SMALL = 16 * 1024
"""Bytes of arguments that are not counted; `maxQueued` limits how many such calls can wait."""
LARGE = 2 * 1024 * 1024
"""Bytes of params, of a result, or of an error that are not looked at in the turn in which they arrived: each
look takes up to 3 ms per MiB, as reading the envelope did."""


class ArgumentBudget:
    """Limits the arguments of unfinished calls: of each client, and of all clients."""

    def __init__(self) -> None:
        self.budget = ByteBudget("of all clients")

    def add(self, call: Call) -> None:
        """Count a call with more than SMALL bytes of arguments. Raises Overloaded if there is no room."""
        size, name = len(call.params), call.server.spec.name
        if reason := self.budget.add(size, {call.caller: "of this client"}):
            raise Overloaded(
                f"{name}: the arguments of unfinished calls {reason}; nothing was sent, try again later",
                server=name,
            )
        call.counted_bytes, call.counted_for = size, call.caller

    def remove(self, call: Call) -> None:
        """The call has ended. Does nothing if it is not counted."""
        caller = call.counted_for
        if caller is not None:
            call.counted_for = None
            self.budget.remove(call.counted_bytes, caller)


class ConnectingCalls:
    """The calls that wait until their server is connected; `maxQueued` in its definition limits them."""

    def __init__(self) -> None:
        self._calls: dict[ManagedServer, set[Call]] = {}

    def add(self, call: Call) -> None:
        """Raise Overloaded if too many calls wait for the server: each holds memory."""
        server = call.server
        if len(self._calls.get(server, ())) >= server.spec.max_queued:
            name, limit = server.spec.name, server.spec.max_queued
            raise Overloaded(
                f"{name}: {limit} calls are already waiting until it is connected (`maxQueued` in its "
                "definition sets the limit); nothing was sent, try again later",
                server=name,
            )
        self._calls.setdefault(server, set()).add(call)

    def remove(self, call: Call) -> None:
        """The call no longer waits. Does nothing if it did not wait."""
        if (calls := self._calls.get(call.server)) is not None:
            calls.discard(call)
            if not calls:
                del self._calls[call.server]

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))
