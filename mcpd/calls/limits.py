"""Limits: how many bytes peers can make the daemon keep, how many calls may wait, and limits of policies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import trio
from msgspec import Raw

from mcpd.calls.call import Call, Caller
from mcpd.model.errors import LimitReached, Overloaded, ProtocolViolation
from mcpd.model.policy import ClientFacts, ItemKind, PolicyRule
from mcpd.model.text import shorten
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire.message import ABSENT, Message

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


SMALL = 16 * 1024
"""Bytes of arguments that are not counted; `maxQueued` limits how many such calls can wait."""


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


_MAX_COUNTERS = 10_000
"""Counters in use at the same time."""
Use = tuple[str, ItemKind, str]
"""(definition name, kind, name)."""


@attrs.define(eq=False)
class _Uses:
    """What one client does with one item under one rule."""

    times: deque[float] = attrs.field(factory=deque)
    """When the uses that count began (`trio.current_time()`), oldest first."""
    running: int = 0
    seconds: float = 0.0
    """For how long a use counts."""

    def expire(self, now: float) -> None:
        while self.times and self.times[0] <= now - self.seconds:
            self.times.popleft()


class UseLimits:
    """All counters. They start at zero with the daemon, and when a rule changes."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str, str, Use], _Uses] = {}

    def enter(
        self, call: Call, rules: Sequence[PolicyRule], client: ClientFacts, use: Use, *, is_listed: bool
    ) -> None:
        """Count a use until its call ends. Raises LimitReached; the use then counts for no rule.

        Items that are in none of the server's lists are counted together: a client could invent any number.
        """
        now = trio.current_time()
        server, kind, _ = use
        counted = use if is_listed else (server, kind, "")
        found = [self._find(rule, client, counted, now) for rule in rules]
        for rule, uses in zip(rules, found, strict=True):
            uses.expire(now)
            if rule.concurrent is not None and uses.running >= rule.concurrent:
                limit = f"{rule.concurrent} calls at the same time (`concurrent`)"
                raise _refusal(rule, use, limit, "try again when one of them has ended")
            if rule.rate is not None and len(uses.times) >= rule.rate.count:
                wait = math.ceil(uses.times[0] + rule.rate.seconds - now)
                raise _refusal(rule, use, f"{rule.rate.written} (`rate`)", f"try again in {wait} s", wait)
        entered = list(dict.fromkeys(found))  # equal rules have one counter
        for uses in entered:
            uses.running += 1
            if uses.seconds:
                uses.times.append(now)
        call.on_end = partial(_leave, entered)

    def _find(self, rule: PolicyRule, client: ClientFacts, counted: Use, now: float) -> _Uses:
        via = "" if client.executable else client.transport
        key = (rule.fingerprint, client.executable, via, counted)
        uses = self._uses.get(key)
        if uses is None:
            if len(self._uses) >= _MAX_COUNTERS:
                self._drop_unused(now)
            if len(self._uses) >= _MAX_COUNTERS:
                raise _refusal(rule, counted, f"{_MAX_COUNTERS} counters of all rules", "try again later")
            uses = self._uses[key] = _Uses(seconds=0.0 if rule.rate is None else rule.rate.seconds)
        return uses

    def _drop_unused(self, now: float) -> None:
        for key, uses in list(self._uses.items()):
            uses.expire(now)
            if not (uses.times or uses.running):
                del self._uses[key]


def _leave(counters: list[_Uses]) -> None:
    while counters:
        counters.pop().running -= 1


def _refusal(rule: PolicyRule, use: Use, limit: str, advice: str, wait: int | None = None) -> LimitReached:
    server, kind, name = use
    why = f" ({rule.reason})" if rule.reason else ""
    return LimitReached(
        f"{server}: {kind} {shorten(name, 80)!r} was not used: the rule at {rule.place} limits this client "
        f"to {limit}{why}; {advice}",
        server=server,
        rule=rule.place,
        retry_after=wait,
    )
