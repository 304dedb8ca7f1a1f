"""Joins those who ask with what the server says: ids, the window, the deadlines, and no bytes.

A call costs one table entry and no task: whoever asks hands over a frame, whoever reads finds the
exchange by its id and calls it. Deadlines are looked after by one sleeping task for all. How frames
travel is the business of the class that builds on this one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import NoReturn

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import LinkLost, McpdError, Overloaded, ProtocolViolation
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import shorten
from mcpd.support.outbox import batch
from mcpd.transports import lost_requests
from mcpd.transports.base import Deaf, Dialect, Inbound
from mcpd.transports.call_stats import Tally
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.request_meta import request_with_meta

log = logging.getLogger("mcpd.link")
_batch = batch()
_SAMPLE = 4096
"""Characters kept of what was no message: secrets in it are masked before it is shortened."""


class Switchboard:
    """The half of a `Channel` that all transports share; see there for what its members promise.

    Who builds on it gives `_post`, `_withdraw`, `_unsent` and `_put`, lets `watch_deadlines` run,
    and hands every frame that comes to `receive`.
    """

    has_headers = False
    tells_apart = False

    def __init__(self, spec: ServerSpec) -> None:
        self.name = spec.name
        self.inbound: Inbound = Deaf()
        self.dialect = Dialect()
        self.batches = False
        self.junk_lines = 0
        self.junk_sample = ""
        self.late_replies = 0
        self.oddities: dict[str, int] = {}
        self.heard_at = trio.current_time()
        self.called_well_at = -math.inf
        self.ended: McpdError | None = None
        self.session: str | None = None
        self.footing = ""
        self.tap: Callable[[str, bytes], None] | None = None
        self.tally = Tally()
        self._meta = b""
        self._call_meta = b'"progressToken":'
        self._max_in_flight = spec.max_in_flight
        self._max_queued = spec.max_queued
        self._table: dict[bytes, Exchange] = {}
        self._standing: dict[bytes, Exchange] = {}
        self._queue: deque[tuple[Exchange, bytes]] = deque()
        self._last_id = 0
        self._alarm = trio.CancelScope()
        self._alarm_at = math.inf

    # ── how frames travel ───────────────────────────────────────────────────────────────────────

    def _post(self, exchange: Exchange, frame: bytes) -> None:
        """Send a request's frame (with its newline). It stands in the table."""
        raise NotImplementedError

    def _withdraw(self, exchange: Exchange, reason: str) -> bool:
        """Take back a request nobody waits for any more. False when the server should be told."""
        raise NotImplementedError

    def _unsent(self) -> set[Exchange]:
        """The exchanges in the table of which not all has left."""
        raise NotImplementedError

    def _put(self, frame: bytes) -> None:
        """Send any other frame. Not called once it has ended."""
        raise NotImplementedError

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, exchange: Exchange, method: str, params: Raw | bytes = b"", *, plain: bool = False
    ) -> None:
        full = len(self._table) >= self._max_in_flight and not exchange.standing
        if full or self.ended is not None:
            self._must_accept_more()
        self._last_id = number = self._last_id + 1
        exchange.key = key = b"%d" % number
        exchange.method = method
        # Progress is asked for on every call, wanted or not: it also tells us that the server is at work.
        meta = exchange.meta or self._meta
        is_call = method == "tools/call"
        if is_call or exchange.reports:
            meta = (meta + b',"progressToken":' if exchange.meta else self._call_meta) + key
        now = _batch.now if _batch.depth else trio.current_time()
        if is_call:
            exchange.count = self.tally.of(params if type(params) is bytes else bytes(params))
            exchange.sent_at = now
        deadline, hard_deadline = now + exchange.idle, now + exchange.limit
        exchange.hard_deadline = hard_deadline
        exchange.deadline = deadline = deadline if deadline < hard_deadline else hard_deadline
        if deadline < self._alarm_at:
            self._alarm_at = self._alarm.deadline = deadline
        frame = request_with_meta(key, method, bytes(params), meta, plain=plain)
        if full:
            self._queue.append((exchange, frame))
        else:
            self._send(exchange, frame)

    def _must_accept_more(self) -> None:
        if self.ended is not None:
            raise LinkLost(self.ended.message, server=self.name, may_have_run=False)
        if len(self._queue) >= self._max_queued:
            raise Overloaded(
                f"{self.name}: {len(self._table)} requests are unanswered and {len(self._queue)} wait; "
                "nothing was sent, try again later",
                server=self.name,
            )

    def speak(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._meta = meta = dialect.meta
        self._call_meta = meta + b',"progressToken":' if meta else b'"progressToken":'

    def grant(self, exchange: Exchange, seconds: float) -> None:
        exchange.deadline = deadline = min(trio.current_time() + seconds, exchange.hard_deadline)
        if deadline < self._alarm_at:
            self._alarm_at = self._alarm.deadline = deadline

    def cancel(self, exchange: Exchange, reason: str) -> None:
        if self._take_back(exchange, reason) and exchange.count is not None:
            exchange.count.cancelled += 1

    def _take_back(self, exchange: Exchange, reason: str) -> bool:
        """Whether it was still under way."""
        if self._table.get(exchange.key) is exchange:
            del self._table[exchange.key]
            if not self._withdraw(exchange, reason):
                self._say_cancelled(exchange, reason)
            self._next_in_queue()
        elif self._standing.get(exchange.key) is exchange:
            del self._standing[exchange.key]
            if not self._withdraw(exchange, reason):
                self._say_cancelled(exchange, reason)
        else:
            before = len(self._queue)
            self._queue = deque(entry for entry in self._queue if entry[0] is not exchange)
            return len(self._queue) < before
        return True

    def notify(self, method: str, params: bytes = b"") -> None:
        self._tapped(wire.notification(method, params))

    def respond(self, request: Message, result: bytes) -> None:
        self._reply(wire.result(request.key, result))

    def refuse(self, request: Message, code: int, words: str) -> None:
        self._reply(wire.error(request.key, wire.error_body(code, words)))

    def under_way(self) -> Collection[Exchange]:
        return self._table.values()

    @property
    def in_flight(self) -> int:
        return len(self._table) + len(self._queue)

    @property
    def busy(self) -> bool:
        return bool(self._queue) or any(e.deadline != math.inf for e in self._table.values())

    async def flushed(self) -> None:
        """One line after the other: nothing overtakes anything."""

    async def listen(self, missed: Callable[[], None], hears: Callable[[], None]) -> None:
        """The server has our ear already."""

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def _send(self, exchange: Exchange, frame: bytes) -> None:
        (self._standing if exchange.standing else self._table)[exchange.key] = exchange
        if self.tap is not None:
            self.tap("→", frame.rstrip())
        self._post(exchange, frame)

    def _tapped(self, frame: bytes) -> None:
        if self.ended is not None:
            return
        if self.tap is not None:
            self.tap("→", frame.rstrip())
        self._put(frame)

    def _reply(self, frame: bytes) -> None:
        self._tapped(frame)

    def _next_in_queue(self) -> None:
        while self._queue and len(self._table) < self._max_in_flight:
            self._send(*self._queue.popleft())

    def _say_cancelled(self, exchange: Exchange, reason: str) -> None:
        if not exchange.cancellable:
            return
        params = msgspec.json.encode({"requestId": Raw(exchange.key), "reason": reason})
        self.notify("notifications/cancelled", params)

    # ── receiving ───────────────────────────────────────────────────────────────────────────────

    def receive(self, line: bytes, exchange: Exchange | None = None, *, alone: bool = True) -> None:
        """Take one frame, or, not `alone`, one part of a batch; batches do not nest. Within a `batch()`.

        `exchange`: whose own stream it came on, see `Inbound`.
        """
        try:
            message = wire.parse(line)
        except BadFrame:
            self._receive_odd(line, exchange, alone=alone)
            return
        if self.tap is not None:
            self.tap("←", line)
        if message.method:
            self._receive_unasked(message, exchange)
            return
        answered = self._pick(bytes(message.id))
        if answered is None:
            self._receive_stray(message, line)
            return
        self._answer(answered, message, line)

    def _pick(self, key: bytes) -> Exchange | None:
        return self._table.pop(key, None) or self._standing.pop(key, None)

    def _answer(self, exchange: Exchange, message: Message, line: bytes) -> None:
        """Give an exchange, out of the table already, its response."""
        self.heard_at = _batch.now
        if self._queue:
            self._next_in_queue()
        if message.result is ABSENT and message.error is ABSENT:
            how = f"with neither result nor error: {shorten(line)}"
            self._lose(exchange, lost_requests.violated(self.name, exchange, how))
            return
        if exchange.count is not None:
            if message.error is ABSENT:
                self.called_well_at = self.heard_at
            exchange.count.answered(self.heard_at - exchange.sent_at, message, line)
        try:
            exchange.answered(message)
        except Exception:
            self._met_a_bug("passing on an answer")
            words = f"{self.name}: its answer to {exchange.named} could not be passed on"
            self._fail_with(exchange, ProtocolViolation(words, server=self.name))

    def _lose(self, exchange: Exchange, error: McpdError) -> None:
        """There will be no answer to one that is out of the table."""
        if exchange.count is not None:
            exchange.count.lost += 1
        self._fail_with(exchange, error)

    def _fail_with(self, exchange: Exchange, error: McpdError) -> None:
        try:
            exchange.failed(error)
        except Exception:
            self._met_a_bug(f"failing {exchange.method}")

    def _met_a_bug(self, doing: str) -> None:
        """On the way to one caller: it must not cost the connection, which is everybody's."""
        log.exception("%s: an error in mcpd itself in %s", self.name, doing)

    def _receive_unasked(self, message: Message, exchange: Exchange | None) -> None:
        self.heard_at = _batch.now
        if message.id is not ABSENT:
            self.inbound.on_request(message, exchange)
        elif message.method == "notifications/progress":
            self._receive_progress(message)
        else:
            self.inbound.on_notification(message, exchange)

    def _receive_odd(self, line: bytes, exchange: Exchange | None, *, alone: bool) -> None:
        stripped = line.strip()
        if not stripped:
            return  # blank lines between messages are common and mean nothing
        if self.batches and alone and stripped.startswith(b"["):
            try:
                parts = wire.split_batch(stripped)
            except BadFrame:
                pass  # junk after all
            else:
                for part in parts:
                    self.receive(part, exchange, alone=False)
                return
        if self.tap is not None:
            self.tap("←", line)
        self._junk(line)
        answered = self._pick(wire.guess_response_id(line))
        if answered is not None:
            self._next_in_queue()
            self._lose(answered, lost_requests.unreadable(self.name, answered, line))

    def _receive_stray(self, message: Message, line: bytes) -> None:
        key = message.key
        number = wire.normalize_id(key)
        exchange = self._pick(number) if number != key else None
        if exchange is not None:
            self._odd("answers came with the id as another type than it was sent")
            message.id = Raw(number)
            self._answer(exchange, message, line)
        elif key.isdigit() and int(key[:20]) <= self._last_id:
            self.late_replies += 1
        else:
            self._junk(line)

    def _odd(self, what: str) -> None:
        self.oddities[what] = self.oddities.get(what, 0) + 1

    def _junk(self, line: bytes) -> None:
        self.junk_lines += 1
        self.junk_sample = self.junk_sample or line[:_SAMPLE].decode("utf-8", "replace")

    def _receive_progress(self, message: Message) -> None:
        try:
            token = bytes(wire.members(message.params).get("progressToken", b""))
        except BadFrame:
            return
        exchange = self._table.get(token) or self._table.get(wire.normalize_id(token))
        if exchange is None:
            return
        patience = max(trio.current_time() + exchange.idle, exchange.deadline)  # what was granted stays
        exchange.deadline = min(patience, exchange.hard_deadline)
        try:
            exchange.progressed(message.params)
        except Exception:
            self._met_a_bug("passing on progress")

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        if self.ended is None:
            self._end(LinkLost(f"{self.name}: {reason}", server=self.name), reason)

    def _end(self, error: McpdError, reason: str) -> None:
        self.ended = error
        unsent = self._unsent()
        in_flight = [*self._table.values(), *self._standing.values()]
        self._table, self._standing = {}, {}
        queued, self._queue = [entry[0] for entry in self._queue], deque()
        may_have_run = [(exchange, exchange not in unsent) for exchange in in_flight]
        may_have_run += [(exchange, False) for exchange in queued]
        with _batch:
            for exchange, ran in may_have_run:
                # Where nothing could be sent at all, the reason of that says more.
                plain = ran or isinstance(error, LinkLost)
                told = lost_requests.lost(self.name, exchange, reason, may_have_run=ran) if plain else error
                self._lose(exchange, told)

    # ── watching the clock ──────────────────────────────────────────────────────────────────────

    async def watch_deadlines(self) -> NoReturn:
        while True:
            self._alarm_at = self._first_deadline()
            with trio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await trio.sleep_forever()
            self._expire()

    def _first_deadline(self) -> float:
        waiting = [*self._table.values(), *(entry[0] for entry in self._queue)]
        return min((exchange.deadline for exchange in waiting), default=math.inf)

    def _expire(self) -> None:
        now = trio.current_time()
        waiting = [*self._table.values(), *(entry[0] for entry in self._queue)]
        with _batch:
            for exchange in waiting:
                if exchange.deadline <= now:
                    self._take_back(exchange, "timed out")
                    self._lose(exchange, lost_requests.timed_out(self.name, exchange, now))
