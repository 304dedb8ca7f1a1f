"""Requests to a server: one with its options, those of a channel with their deadlines, and retries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import CallTimeout, LinkLost, McpdError, ProtocolViolation
from mcpd.transports.tool_call_stats import ToolCallStats
from mcpd.wire.message import Message

FROM_TIMEOUT = "`timeout` in its definition sets"


class Exchange(msgspec.Struct, eq=False, kw_only=True):
    """A request in a channel's table. The channel calls either `answered` or `failed`, once, unless
    `Channel.cancel` was called before.

    All callbacks run in the channel's reader and must not block. An exception in one is logged; after an
    exception in `answered`, `failed` is called. (A Struct because it is the cheapest object to create.)
    """

    idle_timeout: float = math.inf
    """Seconds without a response or progress after which it times out."""
    timeout_source: str = FROM_TIMEOUT
    """Where `idle_timeout` was set, for the error message."""
    total_timeout: float = math.inf
    """Seconds after which it times out regardless of progress."""
    label: str = ""
    """For messages: `tool 'echo'`. If empty, the method is used."""
    cancellable: bool = True
    """Whether the server may be sent a cancellation; `initialize` must not be cancelled."""
    wants_progress: bool = False
    """Whether to request progress; for `tools/call` this is always done."""
    long_lived: bool = False
    """Whether it stays open by design (a subscription): no deadline, and not counted as in flight."""
    meta: bytes = b""
    """Members of `_meta` for this request instead of the dialect's; see `Upstream.request_meta`."""
    was_retried: bool = False
    """Whether it was already sent again (`Dialect.retry_after_refusal`); this happens only once."""
    key: bytes = b""
    method: str = ""
    deadline: float = math.inf
    hard_deadline: float = math.inf
    stats: ToolCallStats | None = None
    """Where a `tools/call` is counted; None for other methods."""
    sent_at: float = 0.0
    response_size: int = 0
    """Bytes of the response; 0 if there was none."""
    reports_error: bool = False
    """Whether the response is the result of a tool that reports a failure."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key.decode() or 'unsent'} {self.description}>"

    @property
    def description(self) -> str:
        return self.label or self.method

    @property
    def sender(self) -> object:
        """Whose request it is: those of each take turns while requests must wait."""
        return None

    def answered(self, message: Message) -> None:
        """Called with the response, a result or an error, whose id is the channel's."""
        raise NotImplementedError

    def progressed(self, params: Raw) -> None:
        """Called with the params of a progress notification, whose token is the channel's."""

    def failed(self, error: McpdError) -> None:
        """Called if there will be no response."""
        raise NotImplementedError


class AwaitedExchange(Exchange):
    """An exchange that a task waits for."""

    done: trio.Event = msgspec.field(default_factory=trio.Event)
    error: McpdError | None = None
    message: Message | None = None

    def answered(self, message: Message) -> None:
        self.message = message
        self.done.set()

    def failed(self, error: McpdError) -> None:
        self.error = error
        self.done.set()

    async def wait_response(self) -> Message:
        """Return the response. Raises the McpdError of a failed request."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.message is not None
        return self.message


class PendingRequests:
    """A request is in flight, waits in the queue for its turn, or is long-lived (`Exchange.long_lived`)."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Exchange] = {}
        self.long_lived: dict[bytes, Exchange] = {}
        self.queue: dict[object, deque[tuple[Exchange, bytes]]] = {}
        """Requests that wait for their turn, each with its frame: those of each sender. The first sender is
        the next, so that many requests of one do not delay those of the others."""
        self.next_deadline = math.inf
        """When the clock looks at the requests next (`trio.current_time()`)."""
        self._timer = trio.CancelScope()

    def outstanding(self) -> Collection[Exchange]:
        """Return the requests that the server is working on."""
        return self.pending.values()

    @property
    def in_flight(self) -> int:
        return len(self.pending) + self.waiting

    @property
    def is_busy(self) -> bool:
        """Whether a response with a deadline is pending."""
        return bool(self.queue) or any(each.deadline != math.inf for each in self.pending.values())

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queue.values()))

    def queued(self) -> list[Exchange]:
        return [exchange for line in self.queue.values() for exchange, _ in line]

    def wait_for_turn(self, exchange: Exchange, frame: bytes) -> None:
        self.queue.setdefault(exchange.sender, deque()).append((exchange, frame))

    def take_next(self) -> tuple[Exchange, bytes]:
        """Remove and return the request whose turn it is. Some must wait."""
        sender = next(iter(self.queue))
        line = self.queue.pop(sender)
        entry = line.popleft()
        if line:
            self.queue[sender] = line  # as the last one
        return entry

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
        line = self.queue.get(exchange.sender, ())
        for entry in line:
            if entry[0] is exchange:
                self.queue[exchange.sender].remove(entry)
                if not line:
                    del self.queue[exchange.sender]
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


BeforeRetry = Callable[[], Awaitable[None]]


class PendingRetries:
    """The requests that await their retry: removed from the table, and not answered yet."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Exchange] = {}

    async def retry(
        self, exchange: Exchange, before_retry: BeforeRetry, then: Callable[[bool], None]
    ) -> None:
        """Await `before_retry`, then call `then` with whether it succeeded, unless the request was withdrawn.

        Bounded by the deadline of the request.
        """
        worked = False
        exchange.was_retried = True
        try:
            with trio.move_on_at(exchange.deadline):
                await before_retry()
                worked = True
        except McpdError:
            pass  # the original error says more about this request
        finally:
            if self.withdraw(exchange):
                then(worked)

    def add(self, exchange: Exchange) -> None:
        """Hold the request from now on; `retry` must be called soon."""
        self._waiting[exchange.key] = exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Remove the request; return whether it was held."""
        if self._waiting.get(exchange.key) is not exchange:
            return False
        del self._waiting[exchange.key]
        return True


def connection_lost(server: str, exchange: Exchange, reason: str, *, may_have_run: bool) -> LinkLost:
    """Return the error for a request that was open when the connection was lost."""
    message = f"{server}: {reason} before {exchange.description} was answered"
    if exchange.method == "tools/call":  # for other methods it does not matter
        message += "; it may have run, so it is not repeated" if may_have_run else "; it did not run"
    return LinkLost(message, server=server, may_have_run=may_have_run)


def timed_out(server: str, exchange: Exchange, now: float) -> CallTimeout:
    """Return the error for a request that passed one of its two deadlines."""
    hard = now >= exchange.hard_deadline
    after = exchange.total_timeout if hard else exchange.idle_timeout
    how = "in all, the most one call may take" if hard else "without an answer or progress"
    clock = "`maxTimeout` in its definition sets" if hard else exchange.timeout_source
    return CallTimeout(
        f"{server}: {exchange.description} took {after:g} s {how}; "
        f"mcpd asked the server to cancel it ({clock} the limit)",
        server=server,
        after=after,
    )


def answer_dropped(server: str, exchange: Exchange, reason: str) -> ProtocolViolation:
    """Return the error for a response that exceeds a limit, which `reason` names with its value."""
    how = f"with {reason} (raise `maxFrame` in its definition to allow this)"
    if exchange.method == "tools/call":
        how += "; it may have run, so it is not repeated"
    return protocol_violation(server, exchange, how)


def cancelled_by_server(server: str, exchange: Exchange, reason: str) -> ProtocolViolation:
    """Return the error for a request that the server has cancelled instead of answering it."""
    text = f"{server}: the server itself cancelled {exchange.description}: {reason}"
    if exchange.method == "tools/call":
        text += "; it may have run, so it is not repeated"
    error = ProtocolViolation(text, server=server)
    error.may_have_run = exchange.method == "tools/call" or None
    return error


def protocol_violation(server: str, exchange: Exchange, how: str) -> ProtocolViolation:
    """Return the error for a response that violates the protocol; `how` describes it."""
    error = ProtocolViolation(f"{server}: answered {exchange.description} {how}", server=server)
    error.may_have_run = True
    return error


_MAX_IN_FLIGHT = 256
"""A server that sends requests faster than it reads responses gets no more than these."""


class OutgoingNotifications:
    """The number of messages being sent, each in an HTTP request of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._drained = trio.Event()
        self._drained.set()

    def reserve(self) -> bool:
        """Return whether another message may be sent, and count it. Send it within `sending`."""
        if self._count >= _MAX_IN_FLIGHT:
            return False
        if not self._count:
            self._drained = trio.Event()
        self._count += 1
        return True

    @contextmanager
    def sending(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._drained.set()

    async def wait_drained(self) -> None:
        await self._drained.wait()
