"""One client's HTTP/1.1 connection: requests in order, one response at a time, no task for each."""

from __future__ import annotations

import contextlib
import logging
import socket as sockets
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

import trio

from mcpd.api.connection_limit import Seats
from mcpd.api.http_server.http_exchange import TEXT, Exchange, Serve, continue_line
from mcpd.api.http_server.parser import MAX_BODY, BadRequest, Head, RequestParser
from mcpd.support.descriptors import has_hung_up
from mcpd.support.memory import trim_heap
from mcpd.support.outbox import Outbox, batch
from mcpd.support.reader import Reader

log = logging.getLogger("mcpd.client")

HEAD_TIME = 5.0
"""Seconds for the head of a request, from its first byte."""
BODY_PAUSE = 30.0
"""Seconds that may pass within a body without anything coming."""
KEEP_ALIVE = 120.0
"""Seconds that a connection may stay without a request."""
QUIET = 15.0
"""Seconds of silence before somebody who waits for a response is told that we are still here."""
BACKLOG = 3 * 1024 * 1024
"""What may wait for a client that takes nothing; one larger response may still be added to nothing."""
STALLED = 30.0
PIPELINE = 64
"""Requests that may wait behind one that is being answered; their bodies together: MAX_BODY."""
_GOODBYE = 1.0
_LINGER = 1.0
"""Seconds in which a client may finish sending what nobody reads: a reset would overtake our answer."""
_LOOK_AGAIN = 0.05

Spawn = Callable[[Callable[[], Awaitable[None]]], None]


class Handler(Protocol):
    """What one connection is for. Nothing here may block, and only `admit` raises."""

    def admit(self, head: Head) -> None:
        """Raise BadRequest for a request whose body is not even to be read."""

    def handle(self, head: Head, body: bytes, exchange: Exchange) -> None:
        """Answer, now or later. The next request of this connection comes when this one is answered."""

    def left(self, reason: str) -> None:
        """The connection is over."""


class HttpConnection:
    """`run` serves it until it ends; whatever a client does ends at most its own connection."""

    def __init__(
        self,
        connection: sockets.socket,
        handler: Callable[[Spawn], Handler],
        name: str,
        seats: Seats,
        *,
        max_body: int = MAX_BODY,
    ) -> None:
        self._socket = connection
        self._fd = connection.fileno()
        self._name = name
        self._seats = seats
        self._max_body = max_body
        self._outbox = Outbox(self._fd, BACKLOG)
        self._parser = RequestParser(self, max_body)
        self._handler = handler(self._spawn)
        self._handle = self._handler.handle
        self._nursery: trio.Nursery
        self._reading = trio.CancelScope()
        self._exchange: Exchange | None = None
        self._waiting: deque[tuple[Head, bytes]] = deque()
        self._waiting_size = 0
        self._refusal: BadRequest | None = None
        """Said when all before it are answered; nothing is read any more."""
        self._heard_at = self._said_at = trio.current_time()
        self._began_at: float | None = None
        """When the first byte came of the request that is not complete."""
        self._look = trio.Event()
        self._left = False
        self.is_last = False
        self._serve: Serve | None = None
        """Who has the connection from now on, instead of requests."""

    async def run(self) -> None:
        reason = "the client left"
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._outbox.run)
                self._nursery.start_soon(self._watch)
                with self._seats.taken_by(self):
                    await self._read()
                    if not self._outbox.broken:
                        await self._goodbye()
                self._nursery.cancel_scope.cancel(reason=reason)
        except* Exception:
            log.exception("%s: an error in mcpd itself; its connection is closed", self._name)
        finally:
            self._hang_up(reason)
            self._outbox.close()  # the descriptor's number may soon be another client's
            # They point back at us: without them, all of a connection goes at once, and not when the
            # collector comes.
            self._parser.forget()
            del self._parser, self._handler, self._handle

    @property
    def idle_since(self) -> float | None:
        """See `Sitter`. Who has sent something that only has not been read yet is not idle."""
        if self._exchange is not None or not self._parser.is_between or _has_sent(self._socket):
            return None
        return self._heard_at

    def leave(self, reason: str) -> None:
        log.debug("%s: closed: %s", self._name, reason)
        self._hang_up(reason)
        self._nursery.cancel_scope.cancel(reason=reason)

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        try:
            with self._reading:
                await Reader(self._fd, self._take).run()
                await self._finish()
            if self._serve is not None:
                await self._outbox.wait_drained()
                await self._serve(trio.SocketStream(trio.socket.from_stdlib_socket(self._socket)))
        except OSError as error:
            log.debug("%s: %s", self._name, error)

    async def _finish(self) -> None:
        """The client sends no more. Over TCP nothing tells that from having left; a Unix socket does."""
        if self._socket.family != sockets.AF_UNIX:
            return
        # No event tells that the other direction was closed too; looked at while a response is under way.
        while self._exchange is not None and not has_hung_up(self._fd):  # noqa: ASYNC110
            await trio.sleep(_LOOK_AGAIN)

    def _take(self, portion: bytes) -> None:
        if self._refusal is not None or self.is_last:
            return
        with batch() as now:
            self._heard_at = now
            try:
                self._parser.feed(portion)
            except BadRequest as error:
                if not self.is_last:
                    self._refuse(error)
                return
            if not self._parser.is_between:
                self._incomplete(now)

    def take_head(self, head: Head, *, awaits_continue: bool) -> None:
        self._handler.admit(head)
        length = int(head.headers.get(b"content-length", b"1"))
        if awaits_continue and 0 < length <= self._max_body and self._exchange is None:
            self._outbox.put(continue_line())

    def take_request(self, head: Head, body: bytes) -> None:
        self._began_at = None
        if self._left or self._refusal is not None:
            return
        if self._exchange is not None:
            self._waiting.append((head, body))
            self._waiting_size += len(body)
            if len(self._waiting) > PIPELINE or self._waiting_size > self._max_body:
                self._waiting.clear()
                raise BadRequest(503, "too many requests were sent without waiting for answers")
        elif not self.is_last:
            self._begin(head, body)

    def _begin(self, head: Head, body: bytes) -> None:
        if not head.keep_alive:
            self.is_last = True
        self._exchange = exchange = Exchange(self, head)
        self._handle(head, body, exchange)
        if self._exchange is exchange:
            self._said_at = self._heard_at

    def _incomplete(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now
            self._look.set()

    def _refuse(self, error: BadRequest) -> None:
        self._refusal = error
        self._parser.forget()
        error.__traceback__ = error.__context__ = None  # their frames hold what has come of a body
        if self._exchange is None:
            self._say_refusal()

    def _say_refusal(self) -> None:
        error = self._refusal
        assert error is not None
        self.is_last = True
        head = Head("GET", "", "", {}, frozenset(), True, False)
        Exchange(self, head).respond(error.status, error.words.encode() + b"\n", TEXT, error.headers)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def put(self, data: bytes) -> None:
        self._outbox.put(data)
        if self._outbox.overflowed.is_set() and not self._left:
            log.warning("%s does not read its answers: its connection is closed", self._name)
            self.leave("the client does not read")

    def upgrade(self, serve: Serve) -> None:
        self._serve = serve
        self.is_last = True
        self._reading.cancel(reason="no more requests come")

    def ended(self, exchange: Exchange) -> None:
        self._exchange = None
        if self.is_last:
            self._waiting.clear()
            self._reading.cancel(reason="this was the last response")
        elif self._waiting:
            head, body = self._waiting.popleft()
            self._waiting_size -= len(body)
            self._begin(head, body)
        elif self._refusal is not None:
            self._say_refusal()

    async def _goodbye(self) -> None:
        """Everything leaves, our direction is closed, and what still comes is thrown away for a moment."""
        with trio.move_on_after(_GOODBYE):
            await self._outbox.wait_drained()
        if self._refusal is None and self._serve is None:
            return
        if self._refusal is not None and self._refusal.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            trim_heap()
        with contextlib.suppress(OSError), trio.move_on_after(_LINGER):
            self._socket.shutdown(sockets.SHUT_WR)
            while True:
                await trio.lowlevel.wait_readable(self._fd)
                if not self._socket.recv(1 << 16):
                    break

    def _hang_up(self, reason: str) -> None:
        if self._left:
            return
        self._left = True
        exchange, self._exchange = self._exchange, None
        self._waiting.clear()
        with batch():
            if exchange is not None:
                exchange.hang_up(reason)
            self._handler.left(reason)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Every deadline of the connection, in one task that seldom wakes: no request arms a timer."""
        while True:
            deadline = self._judge(trio.current_time())
            with trio.move_on_at(deadline):
                await self._look.wait()
            self._look = trio.Event()

    def _judge(self, now: float) -> float:
        """End what is over its time; when to look again."""
        outbox = self._outbox
        if outbox.backlog and not self._left:
            stalled_at = outbox.last_progress_at + STALLED
            if stalled_at <= now:
                log.warning("%s does not read its answers: its connection is closed", self._name)
                self.leave("the client does not read")
        else:
            stalled_at = now + QUIET
        deadlines = [now + QUIET, stalled_at]
        exchange = self._exchange
        if exchange is not None:
            quiet_at = self._said_at + QUIET
            if quiet_at <= now:
                self._said_at, quiet_at = now, now + QUIET
                if exchange.on_quiet is not None:
                    exchange.on_quiet()
            deadlines.append(quiet_at)
        elif self._began_at is not None:
            in_head = self._parser.is_in_head
            late_at = self._began_at + HEAD_TIME if in_head else self._heard_at + BODY_PAUSE
            if late_at <= now and self._refusal is None:
                what = "the head of a request" if in_head else "more of a request's body"
                self._refuse(BadRequest(408, f"{what} did not come in time"))
            deadlines.append(late_at)
        else:
            idle_at = self._heard_at + KEEP_ALIVE
            if idle_at <= now:
                self._reading.cancel(reason="idle for too long")
                idle_at = now + QUIET
            deadlines.append(idle_at)
        return max(min(deadlines), now + 0.01)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(work)


def _has_sent(connection: sockets.socket) -> bool:
    try:
        return bool(connection.recv(1, sockets.MSG_PEEK))
    except OSError:
        return False
