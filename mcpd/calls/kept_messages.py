"""Messages of servers that wait for a client: questions that it has not answered, and responses that arrived
while it was away. Limits the memory that they take.
"""

from __future__ import annotations

from msgspec import Raw

from mcpd.calls.byte_budget import ByteBudget
from mcpd.calls.call import Caller
from mcpd.model.errors import ProtocolViolation
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire.message import ABSENT, Message

ALLOWANCE = 4 * 1024 * 1024
"""Bytes that the messages of a server may take in addition to its longest message (`maxFrame`)."""


class KeptMessage:
    """A message that is counted until `release`."""

    def __init__(self, message: Message, budget: ByteBudget, size: int, peers: tuple[object, ...]) -> None:
        self.message = message
        self._budget = budget
        self._size = size
        self._peers = peers

    def release(self) -> None:
        """The message is no longer kept. Idempotent."""
        peers, self._peers = self._peers, ()
        if peers:
            self._budget.remove(self._size, *peers)


class KeptMessages:
    """All of the daemon, limited for each server, for each client, and overall."""

    def __init__(self) -> None:
        self.budget = ByteBudget("of all servers")

    def keep(
        self, message: Message, server: ManagedServer, what: str, caller: Caller | None = None
    ) -> KeptMessage:
        """Count a message that waits for a client: for `caller`, if it is known.

        Raises ProtocolViolation if there is no room; the error says that `what`, such as "the result of git",
        was dropped. The message that is kept has no bytes of its line but those of its own members.
        """
        own = [Raw() if each is ABSENT else each for each in (message.params, message.result, message.error)]
        size, name = sum(map(len, own)), server.spec.name
        peers: dict[object, str] = {server.original or server: f"of {name}"}
        if caller is not None:
            peers[caller] = "for this client"
        if reason := self.budget.add(size, peers, server.spec.max_frame + ALLOWANCE):
            raise ProtocolViolation(
                f"{name}: {what} was dropped: the messages that wait for clients {reason} "
                f"(raise `maxFrame` in the definition of {name} to allow more)",
                server=name,
            )
        return KeptMessage(_detached(message), self.budget, size, tuple(peers))


def _detached(message: Message) -> Message:
    """Return the message without the line that it is a part of, which may be much longer."""
    return Message(
        id=_copy(message.id),
        method=message.method,
        params=_copy(message.params),
        result=_copy(message.result),
        error=_copy(message.error),
    )


def _copy(raw: Raw) -> Raw:
    return raw if raw is ABSENT else raw.copy()
