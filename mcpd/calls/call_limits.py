"""How many calls may wait for a server to connect, and the memory that unfinished calls may take.

The arguments of a call are kept until it has ended: while it waits for its server or its turn, is being
written to a server that reads slowly, or may have to be sent again.
"""

from __future__ import annotations

from mcpd.calls.call import Call, Caller
from mcpd.model.errors import Overloaded
from mcpd.supervision.managed_server import ManagedServer

SMALL = 16 * 1024
"""Bytes of arguments that are not counted; `maxQueued` limits how many such calls can wait."""
MAX_PER_CLIENT = 36 * 1024 * 1024
"""Bytes of all calls of one client: a little more than the longest message that mcpd accepts."""
MAX_TOTAL = 2 * MAX_PER_CLIENT
"""Bytes of all calls of all clients."""


class ArgumentBudget:
    def __init__(self) -> None:
        self.total = 0
        self._by_caller: dict[Caller, int] = {}

    def add(self, call: Call) -> None:
        """Count a call with more than SMALL bytes of arguments. Raises Overloaded if there is no room."""
        size, of_client = len(call.params), self._by_caller.get(call.caller, 0)
        name = call.server.spec.name
        if of_client + size > MAX_PER_CLIENT:
            used, limit, whose = of_client, MAX_PER_CLIENT, "of this client"
        elif self.total + size > MAX_TOTAL:
            used, limit, whose = self.total, MAX_TOTAL, "of all clients"
        else:
            self.total += size
            self._by_caller[call.caller] = of_client + size
            call.counted_bytes, call.counted_for = size, call.caller
            return
        raise Overloaded(
            f"{name}: the arguments of unfinished calls {whose} take {used} bytes, and these {size} bytes "
            f"would exceed the limit of {limit}; nothing was sent, try again later",
            server=name,
        )

    def remove(self, call: Call) -> None:
        """The call has ended. Does nothing if it is not counted."""
        caller, size = call.counted_for, call.counted_bytes
        if caller is None:
            return
        call.counted_for = None
        self.total -= size
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]


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
