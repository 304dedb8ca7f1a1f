"""Limits: how many bytes peers can make the daemon keep, and how many calls may wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw

from mcpd.calls.call import Call, Caller
from mcpd.model.errors import Overloaded, ProtocolViolation
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire.message import ABSENT, Message

MAX_INCOMPLETE = 64 * 1024 * 1024
"""Bytes of long messages that have arrived only in part."""
MAX_PER_PEER = 36 * 1024 * 1024
"""Bytes for one peer: a little more than the longest message that mcpd accepts by default."""
_TOTAL_FACTOR = 2
"""How many peers can use all that they may."""


class ByteBudget:
    """Counts bytes until they are removed: every `add` that succeeds needs a `remove` of the same bytes."""

    def __init__(self, all_peers: str) -> None:
        """`all_peers` says whose bytes the total is, as in "of all clients". See `add`."""
        self.total = 0
        self._all_peers = all_peers
        self._by_peer: dict[object, int] = {}

    def add(self, size: int, peers: Mapping[object, str], limit: int = MAX_PER_PEER) -> str:
        """Count `size` bytes for each of the peers, and once in the total; return an empty string.

        If a peer would have more than `limit` bytes, or all peers more than twice as many, count nothing, and
        return the reason for an error message. `peers` says how that refers to each, as in "of this client".
        """
        used = [(whose, self._by_peer.get(peer, 0), limit) for peer, whose in peers.items()]
        for whose, kept, most in (*used, (self._all_peers, self.total, _TOTAL_FACTOR * limit)):
            if kept + size > most:
                return f"{whose} take {kept} bytes, and these {size} bytes would exceed the limit of {most}"
        self.total += size
        for peer in peers:
            self._by_peer[peer] = self._by_peer.get(peer, 0) + size
        return ""

    def remove(self, size: int, *peers: object) -> None:
        self.total -= size
        for peer in peers:
            self._by_peer[peer] -= size
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def of(self, peer: object) -> int:
        """Return how many bytes are counted for a peer."""
        return self._by_peer.get(peer, 0)


class IncompleteLines:
    """Limits the long messages that clients have sent in part, each on a connection of its own."""

    def __init__(self) -> None:
        self._sizes: dict[Callable[[], None], int] = {}

    def count(self, size: int, drop: Callable[[], None]) -> None:
        """Count the message of a connection as `size` bytes, and no more if that is 0.

        If all take more than MAX_INCOMPLETE, call `drop` of the longest, which then counts it as 0: who sends
        less is not affected.
        """
        if size:
            self._sizes[drop] = size
            if sum(self._sizes.values()) > MAX_INCOMPLETE:
                max(self._sizes, key=self._sizes.__getitem__)()
        else:
            self._sizes.pop(drop, None)


SMALL = 16 * 1024
"""Bytes of arguments that are not counted; `maxQueued` limits how many such calls can wait."""


_COUNTED = Attachment[tuple[Caller, int]]("for which client its arguments are counted, and their bytes")


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
        call.slots[_COUNTED] = call.caller, size

    def remove(self, call: Call) -> None:
        """The call has ended. Does nothing if it is not counted."""
        if call.kept is not None and (counted := call.kept.pop(_COUNTED, None)) is not None:
            caller, size = counted
            self.budget.remove(size, caller)


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
