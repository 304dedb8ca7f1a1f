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

from mcpd.api.connection_limit import LruConnectionLimit
from mcpd.api.http_server.http_exchange import TEXT, HttpExchange, ServeUpgraded, continue_line
from mcpd.api.http_server.parser import MAX_BODY, BadRequest, Head, RequestParser
from mcpd.support.memory import trim_heap
from mcpd.support.outbox import Outbox, batch
from mcpd.support.reader import Reader, has_hung_up

log = logging.getLogger("mcpd.client")

HEAD_TIMEOUT = 5.0
"""Seconds for the head of a request, from its first byte."""
BODY_TIMEOUT = 30.0
"""Seconds that may pass within a body without anything coming."""
KEEP_ALIVE_TIMEOUT = 120.0
"""Seconds that a connection may stay without a request."""
QUIET_INTERVAL = 15.0
"""Seconds of silence before somebody who waits for a response is told that we are still here."""
MAX_BACKLOG = 3 * 1024 * 1024
"""What may wait for a client that takes nothing; one larger response may still be added to nothing."""
STALL_TIMEOUT = 30.0
MAX_PIPELINED = 64
"""Requests that may wait behind one that is being answered; their bodies together: MAX_BODY."""
_DRAIN_TIMEOUT = 1.0
_LINGER_TIMEOUT = 1.0
"""Seconds in which a client may finish sending what nobody reads: a reset would overtake our answer."""
_POLL_INTERVAL = 0.05

SpawnTask = Callable[[Callable[[], Awaitable[None]]], None]


class ConnectionHandler(Protocol):
    """What one connection is for. Nothing here may block, and only `admit` raises."""

    def admit(self, head: Head) -> None:
        """Raise BadRequest for a request whose body is not even to be read."""

    def handle(self, head: Head, body: bytes, exchange: HttpExchange) -> None:
        """Answer, now or later. The next request of this connection comes when this one is answered."""

    def closed(self, reason: str) -> None:
        """The connection is over."""


class HttpServerConnection:
    """`run` serves it until it ends; whatever a client does ends at most its own connection."""

    def __init__(
        self,
        connection: sockets.socket,
        handler: Callable[[SpawnTask], ConnectionHandler],
        name: str,
        limit: LruConnectionLimit,
        *,
        max_body: int = MAX_BODY,
    ) -> None:
        self._socket = connection
        self._fd = connection.fileno()
        self._name = name
        self._limit = limit
        self._max_body = max_body
        self._outbox = Outbox(self._fd, MAX_BACKLOG)
        self._parser = RequestParser(self, max_body)
        self._handler = handler(self._spawn)
        self._handle = self._handler.handle
        self._nursery: trio.Nursery
        self._reading = trio.CancelScope()
        self._exchange: HttpExchange | None = None
        self._pipelined: deque[tuple[Head, bytes]] = deque()
        self._pipelined_size = 0
        self._error: BadRequest | None = None
        """Said when all before it are answered; nothing is read any more."""
        self._received_at = self._sent_at = trio.current_time()
        self._incomplete_since: float | None = None
        """When the first byte came of the request that is not complete."""
        self._wake = trio.Event()
        self._closed = False
        self.is_last = False
        self._upgraded: ServeUpgraded | None = None
        """Who has the connection from now on, instead of requests."""

    async def run(self) -> None:
        reason = "the client left"
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._outbox.run)
                self._nursery.start_soon(self._watch_deadlines)
                with self._limit.held_by(self):
                    await self._read()
                    if not self._outbox.broken:
                        await self._close_gracefully()
                self._nursery.cancel_scope.cancel(reason=reason)
        except* Exception:
            log.exception("%s: an error in mcpd itself; its connection is closed", self._name)
        finally:
            self._hang_up(reason)
            self._outbox.close()  # the descriptor's number may soon be another client's
            # They point back at us: without them, all of a connection goes at once, and not when the
            # collector comes.
            self._parser.release()
            del self._parser, self._handler, self._handle

    @property
    def idle_since(self) -> float | None:
        """See `Sitter`. Who has sent something that only has not been read yet is not idle."""
        if self._exchange is not None or not self._parser.is_between or _has_unread_input(self._socket):
            return None
        return self._received_at

    def evict(self, reason: str) -> None:
        log.debug("%s: closed: %s", self._name, reason)
        self._hang_up(reason)
        self._nursery.cancel_scope.cancel(reason=reason)

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        try:
            with self._reading:
                await Reader(self._fd, self._received).run()
                await self._await_last_response()
            if self._upgraded is not None:
                await self._outbox.wait_drained()
                await self._upgraded(trio.SocketStream(trio.socket.from_stdlib_socket(self._socket)))
        except OSError as error:
            log.debug("%s: %s", self._name, error)

    async def _await_last_response(self) -> None:
        """The client sends no more. Over TCP nothing tells that from having left; a Unix socket does."""
        if self._socket.family != sockets.AF_UNIX:
            return
        # No event tells that the other direction was closed too; looked at while a response is under way.
        while self._exchange is not None and not has_hung_up(self._fd):  # noqa: ASYNC110
            await trio.sleep(_POLL_INTERVAL)

    def _received(self, portion: bytes) -> None:
        if self._error is not None or self.is_last:
            return
        with batch() as now:
            self._received_at = now
            try:
                self._parser.feed(portion)
            except BadRequest as error:
                if not self.is_last:
                    self._reject(error)
                return
            if not self._parser.is_between:
                self._note_incomplete(now)

    def take_head(self, head: Head, *, awaits_continue: bool) -> None:
        self._handler.admit(head)
        length = int(head.headers.get(b"content-length", b"1"))
        if awaits_continue and 0 < length <= self._max_body and self._exchange is None:
            self._outbox.put(continue_line())

    def take_request(self, head: Head, body: bytes) -> None:
        self._incomplete_since = None
        if self._closed or self._error is not None:
            return
        if self._exchange is not None:
            self._pipelined.append((head, body))
            self._pipelined_size += len(body)
            if len(self._pipelined) > MAX_PIPELINED or self._pipelined_size > self._max_body:
                self._pipelined.clear()
                raise BadRequest(503, "too many requests were sent without waiting for answers")
        elif not self.is_last:
            self._begin(head, body)

    def _begin(self, head: Head, body: bytes) -> None:
        if not head.keep_alive:
            self.is_last = True
        self._exchange = exchange = HttpExchange(self, head)
        self._handle(head, body, exchange)
        if self._exchange is exchange:
            self._sent_at = self._received_at

    def _note_incomplete(self, now: float) -> None:
        if self._incomplete_since is None:
            self._incomplete_since = now
            self._wake.set()

    def _reject(self, error: BadRequest) -> None:
        self._error = error
        self._parser.release()
        error.__traceback__ = error.__context__ = None  # their frames hold what has come of a body
        if self._exchange is None:
            self._send_error()

    def _send_error(self) -> None:
        error = self._error
        assert error is not None
        self.is_last = True
        head = Head("GET", "", "", {}, frozenset(), True, False)
        HttpExchange(self, head).respond(error.status, error.message.encode() + b"\n", TEXT, error.headers)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def put(self, data: bytes) -> None:
        self._outbox.put(data)
        if self._outbox.overflowed.is_set() and not self._closed:
            log.warning("%s does not read its answers: its connection is closed", self._name)
            self.evict("the client does not read")

    def upgrade(self, serve: ServeUpgraded) -> None:
        self._upgraded = serve
        self.is_last = True
        self._reading.cancel(reason="no more requests come")

    def ended(self, exchange: HttpExchange) -> None:
        self._exchange = None
        if self.is_last:
            self._pipelined.clear()
            self._reading.cancel(reason="this was the last response")
        elif self._pipelined:
            head, body = self._pipelined.popleft()
            self._pipelined_size -= len(body)
            self._begin(head, body)
        elif self._error is not None:
            self._send_error()

    async def _close_gracefully(self) -> None:
        """Everything leaves, our direction is closed, and what still comes is thrown away for a moment."""
        with trio.move_on_after(_DRAIN_TIMEOUT):
            await self._outbox.wait_drained()
        if self._error is None and self._upgraded is None:
            return
        if self._error is not None and self._error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            trim_heap()
        with contextlib.suppress(OSError), trio.move_on_after(_LINGER_TIMEOUT):
            self._socket.shutdown(sockets.SHUT_WR)
            while True:
                await trio.lowlevel.wait_readable(self._fd)
                if not self._socket.recv(1 << 16):
                    break

    def _hang_up(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        exchange, self._exchange = self._exchange, None
        self._pipelined.clear()
        with batch():
            if exchange is not None:
                exchange.hang_up(reason)
            self._handler.closed(reason)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    async def _watch_deadlines(self) -> None:
        """Every deadline of the connection, in one task that seldom wakes: no request arms a timer."""
        while True:
            deadline = self._check_deadlines(trio.current_time())
            with trio.move_on_at(deadline):
                await self._wake.wait()
            self._wake = trio.Event()

    def _check_deadlines(self, now: float) -> float:
        """End what is over its time; when to look again."""
        outbox = self._outbox
        if outbox.backlog and not self._closed:
            stalled_at = outbox.last_progress_at + STALL_TIMEOUT
            if stalled_at <= now:
                log.warning("%s does not read its answers: its connection is closed", self._name)
                self.evict("the client does not read")
        else:
            stalled_at = now + QUIET_INTERVAL
        deadlines = [now + QUIET_INTERVAL, stalled_at]
        exchange = self._exchange
        if exchange is not None:
            quiet_at = self._sent_at + QUIET_INTERVAL
            if quiet_at <= now:
                self._sent_at, quiet_at = now, now + QUIET_INTERVAL
                if exchange.on_quiet is not None:
                    exchange.on_quiet()
            deadlines.append(quiet_at)
        elif self._incomplete_since is not None:
            in_head = self._parser.is_in_head
            late_at = self._incomplete_since + HEAD_TIMEOUT if in_head else self._received_at + BODY_TIMEOUT
            if late_at <= now and self._error is None:
                what = "the head of a request" if in_head else "more of a request's body"
                self._reject(BadRequest(408, f"{what} did not come in time"))
            deadlines.append(late_at)
        else:
            idle_at = self._received_at + KEEP_ALIVE_TIMEOUT
            if idle_at <= now:
                self._reading.cancel(reason="idle for too long")
                idle_at = now + QUIET_INTERVAL
            deadlines.append(idle_at)
        return max(min(deadlines), now + 0.01)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(work)


def _has_unread_input(connection: sockets.socket) -> bool:
    try:
        return bool(connection.recv(1, sockets.MSG_PEEK))
    except OSError:
        return False
