"""The requests of one channel that await a response, and the clock that watches their deadlines."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from typing import NoReturn

import trio

from mcpd.transports.outgoing_request import Exchange


class PendingRequests:
    """A request is in flight, waits in the queue for its turn, or is long-lived (`Exchange.long_lived`)."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Exchange] = {}
        self.long_lived: dict[bytes, Exchange] = {}
        self.queue: deque[tuple[Exchange, bytes]] = deque()
        """Requests that wait for their turn, each with its frame."""
        self.next_deadline = math.inf
        """When the clock looks at the requests next (`trio.current_time()`)."""
        self._timer = trio.CancelScope()

    def outstanding(self) -> Collection[Exchange]:
        """Return the requests that the server is working on."""
        return self.pending.values()

    @property
    def in_flight(self) -> int:
        return len(self.pending) + len(self.queue)

    @property
    def is_busy(self) -> bool:
        """Whether a response with a deadline is pending."""
        return bool(self.queue) or any(each.deadline != math.inf for each in self.pending.values())

    def queued(self) -> list[Exchange]:
        return [exchange for exchange, _ in self.queue]

    def add(self, exchange: Exchange) -> None:
        (self.long_lived if exchange.long_lived else self.pending)[exchange.key] = exchange

    def holds(self, exchange: Exchange) -> bool:
        """Return whether it was sent, and neither answered nor cancelled yet."""
        return (self.long_lived if exchange.long_lived else self.pending).get(exchange.key) is exchange

    def pop(self, key: bytes) -> Exchange | None:
        return self.pending.pop(key, None) or self.long_lived.pop(key, None)

    def discard(self, exchange: Exchange) -> bool:
        """Remove a request that was sent; return whether it was there."""
        if self.holds(exchange):
            self.pop(exchange.key)
            return True
        return False

    def withdraw_queued(self, exchange: Exchange) -> bool:
        """Remove a request that waits for its turn; return whether it was there."""
        for entry in self.queue:
            if entry[0] is exchange:
                self.queue.remove(entry)
                return True
        return False

    def take_all(self) -> list[Exchange]:
        """Remove and return all requests."""
        found = [*self.pending.values(), *self.long_lived.values(), *self.queued()]
        self.pending.clear()
        self.long_lived.clear()
        self.queue.clear()
        return found

    # ── deadlines ───────────────────────────────────────────────────────────────────────────────

    def extend_deadline(self, exchange: Exchange, seconds: float) -> None:
        """Allow the request to be silent for `seconds` from now on; progress does not shorten that."""
        exchange.deadline = deadline = min(trio.current_time() + seconds, exchange.hard_deadline)
        self.watch_earlier(deadline)

    def watch_earlier(self, deadline: float) -> None:
        """Look at the requests at `deadline` at the latest."""
        if deadline < self.next_deadline:
            self.next_deadline = self._timer.deadline = deadline

    def expired(self, now: float) -> list[Exchange]:
        return [each for each in self._unanswered() if each.deadline <= now]

    async def watch_deadlines(self, expire: Callable[[], None]) -> NoReturn:
        """Call `expire` whenever a deadline has passed."""
        while True:
            self.next_deadline = min((each.deadline for each in self._unanswered()), default=math.inf)
            with trio.CancelScope(deadline=self.next_deadline) as self._timer:
                await trio.sleep_forever()
            expire()

    def _unanswered(self) -> list[Exchange]:
        return [*self.pending.values(), *self.queued()]
