"""An HTTP/1.1 connection of one client. Requests are handled in order, without a task per request."""

from __future__ import annotations

import contextlib
import logging
import socket as sockets
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import trio

from mcpd.api.http.exchange import (
    TEXT,
    HttpExchange,
    ServeRequest,
    ServeUpgraded,
    continue_line,
)
from mcpd.api.http.parser import Admission, BadRequest, Head, RequestParser
from mcpd.api.listeners import MAX_ESTABLISHED, Slot
from mcpd.io.outbox import Outbox, batch
from mcpd.io.reader import Reader
from mcpd.io.turns import run_in_turn
from mcpd.privacy.logs import FROM_OUTSIDE
from mcpd.process.memory import trim_heap_soon

log = logging.getLogger("mcpd.client")
_NOT_READING = "%s does not read its responses; closing its connection"

_batch = batch()

MAX_BUFFERED = 64 * 1024 * 1024
"""Bytes of incomplete bodies on all connections together."""
_FREE_SHARE = 256 * 1024
"""Bytes of them that each connection may have in any case, so that large bodies do not shut out others."""
_MUCH = 1024 * 1024
"""Bytes of a body after which free memory is returned to the system."""
HEAD_TIMEOUT = 5.0
"""Seconds within which the head of a request must arrive, from its first byte."""
BODY_TIMEOUT = 30.0
"""Seconds without data after which a request body is given up."""
REQUEST_TIMEOUT = 300.0
"""Seconds within which a request must be complete, however fast it arrives."""
KEEP_ALIVE_TIMEOUT = 120.0
"""Seconds after which an idle connection is closed."""
QUIET_INTERVAL = 15.0
"""Seconds without output after which `HttpExchange.on_quiet` is called."""
MAX_BACKLOG = 3 * 1024 * 1024
"""Bytes that may wait for a client that does not read. A larger response may wait if it is the only one."""
STALL_TIMEOUT = 30.0
_DRAIN_TIMEOUT = 1.0
_LINGER_TIMEOUT = 1.0
"""Seconds in which the rest of a rejected request is discarded; a reset would overtake the response."""

_PIECE = 1 << 13
"""Bytes that are parsed at once."""


class BodyBudget:
    """Counts the bytes of incomplete bodies on all connections."""

    used = 0


SpawnTask = Callable[[Callable[[], Awaitable[None]]], None]


class ConnectionHandler(Protocol):
    """Handles the requests of one connection. The methods must not block; only `admit` may raise."""

    def admit(self, head: Head) -> Admission:
        """Return what a request may do, or raise BadRequest to reject it before its body is read."""

    def route(self, head: Head) -> ServeRequest:
        """Return what serves requests with this head, which a client may repeat.

        It is called with one request after the other: with the next one when the last one is answered.
        """

    def closed(self, reason: str) -> None:
        """The connection has ended."""


class HttpServerConnection:
    """`run` serves the connection until it ends. Errors end at most this connection."""

    def __init__(
        self,
        connection: sockets.socket,
        handler: Callable[[SpawnTask], ConnectionHandler],
        name: str,
        slot: Slot,
        bodies: BodyBudget,
        connections: set[HttpServerConnection],
    ) -> None:
        """`connections`: all of the daemon; this one is in it while it runs."""
        self._connections = connections
        self._socket = connection
        self._fd = connection.fileno()
        self._name = name
        self._slot = slot
        self._bodies = bodies
        self._buffered = 0
        """Bytes that are counted in the budget."""
        self._outbox = Outbox(self._fd, MAX_BACKLOG, STALL_TIMEOUT)
        self._parser = RequestParser(self)
        self._handler = handler(self._spawn)
        self._routed: Head | None = None
        """The head that `_serve` is for."""
        self._serve: ServeRequest = _refuse
        self._nursery: trio.Nursery
        self._reader = Reader(self._fd, self._received, of_client=self._parser.is_complete)
        self._reading = trio.CancelScope()
        self._exchange: HttpExchange | None = None
        self._error: BadRequest | None = None
        """Sent after all earlier responses. Nothing more is read."""
        self._received_at = self._sent_at = trio.current_time()
        self._incomplete_since: float | None = None
        """When the first byte of the incomplete request arrived."""
        self._wake = trio.Event()
        self._closed = False
        self.is_last = False
        self._upgraded: ServeUpgraded | None = None
        """Serves the connection after an upgrade."""

    async def run(self) -> None:
        reason = "the client left"
        self._connections.add(self)
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._outbox.run)
                self._nursery.start_soon(self._watch_deadlines)
                self._nursery.start_soon(self._watch_backlog)
                try:
                    with self._slot.held_by(self):
                        await self._read()
                        if not self._outbox.broken:
                            await self._close_gracefully()
                finally:
                    # A response of a server may arrive at any time, and its call may start a task here.
                    self._hang_up(reason)
                self._nursery.cancel_scope.cancel(reason=reason)
        except* Exception:
            log.exception("%s: an error in mcpd itself; closing its connection", self._name)
        finally:
            self._connections.discard(self)
            self._outbox.close()  # the descriptor's number may soon be another client's
            self._release_body()
            # These refer back to the connection; without the cycle it is freed immediately.
            del self._parser, self._handler, self._serve, self._reader

    @property
    def idle_since(self) -> float | None:
        """See `Evictable`. A connection with unread input is not idle."""
        if self._exchange is not None or not self._parser.is_between or _has_unread_input(self._socket):
            return None
        return self._received_at

    @property
    def pid(self) -> int:
        """The process of the client; 0 if it is unknown."""
        return self._slot.pid

    def is_receiving(self, age: float) -> bool:
        """Return whether a request has been arriving for longer than `age`, and is not complete."""
        since = self._incomplete_since
        return since is not None and trio.current_time() - since >= age

    @property
    def idle_fd(self) -> int | None:
        """The descriptor of a connection on which nothing is in progress, which can go on in the next version
        of the daemon."""
        is_idle = self._exchange is None and self._error is None and self._parser.is_between
        if not is_idle or self.is_last or self._closed or self._outbox.backlog or self._upgraded is not None:
            return None
        return self._fd

    def evict(self, reason: str) -> None:
        log.debug("%s: closed: %s", self._name, reason)
        if self._exchange is None and self._error is None and not self._parser.is_between:
            self._reject(BadRequest(503, reason))
        self._hang_up(reason)
        self._nursery.cancel_scope.cancel(reason=reason)

    def route_again(self) -> None:
        """Ask the handler again what serves the next request, also if its head is that of the last one."""
        self._routed = None

    async def _read(self) -> None:
        try:
            with self._reading:
                await self._reader.run()
            if self._upgraded is not None:
                await self._outbox.wait_drained()
                await self._upgraded(trio.SocketStream(trio.socket.from_stdlib_socket(self._socket)))
        except OSError as error:
            log.debug("%s: %s", self._name, error)

    def _received(self, portion: bytes) -> Iterator[None] | None:
        if len(portion) > _PIECE and not self._parser.is_known(portion):
            return self._receive_in_pieces(portion)
        self._receive(portion)
        return None

    def _receive_in_pieces(self, portion: bytes) -> Iterator[None]:
        """A portion may be thousands of chunks or requests, so let others have their turn in between."""
        for start in range(0, len(portion), _PIECE):
            self._receive(portion[start : start + _PIECE])
            yield

    def _receive(self, portion: bytes) -> None:
        if self._error is not None or self.is_last:
            return
        with _batch as now:
            self._received_at = now
            try:
                self._parser.feed(portion)
            except BadRequest as error:
                if not self.is_last:
                    self._reject(error)
                return
            if not self._parser.is_between and self._incomplete_since is None:
                self._incomplete_since = now
                self._wake.set()
            if self._parser.buffered != self._buffered:
                self._count_buffered()

    def _count_buffered(self) -> None:
        """Count the incomplete body in the budget; give it up if there are too many on all connections."""
        old, self._buffered = self._buffered, self._parser.buffered
        self._bodies.used += self._buffered - old
        if self._buffered > max(old, _FREE_SHARE) and self._bodies.used > MAX_BUFFERED:
            text = f"incomplete requests of all clients may take {MAX_BUFFERED} bytes together; try again"
            self._reject(BadRequest(503, text, b"Retry-After: 1\r\n"))
        elif old - self._buffered > _MUCH:
            trim_heap_soon()

    def _release_body(self) -> None:
        self._parser.release()
        self._count_buffered()

    def take_head(self, head: Head, *, awaits_continue: bool) -> int:
        admission = self._handler.admit(head)
        if admission.is_authenticated and not self._slot.authenticate():
            raise BadRequest(503, f"{MAX_ESTABLISHED} connections are in use; close one")
        length = int(head.headers.get(b"content-length", b"1"))
        if awaits_continue and 0 < length <= admission.max_body and self._exchange is None:
            self._outbox.put(continue_line())
        return admission.max_body

    def take_request(self, head: Head, body: bytes) -> None:
        self._incomplete_since = None
        if self._closed or self._error is not None:
            return
        if self._exchange is not None:
            raise BadRequest(503, "send a request when the last one is answered")
        if self.is_last:
            return
        if head is not self._routed:
            self._routed, self._serve = head, self._handler.route(head)
        if not head.keep_alive:
            self.is_last = True
        self._sent_at = self._received_at
        self._exchange = exchange = HttpExchange(self, head)
        self._serve(body, exchange)

    def _reject(self, error: BadRequest) -> None:
        self._error = error
        self._release_body()
        error.__traceback__ = error.__context__ = None  # their frames hold the partial body
        if self._exchange is None:
            self._send_error()

    def _send_error(self) -> None:
        error = self._error
        assert error is not None
        self.is_last = True
        head = Head("GET", "", "", {}, frozenset(), True, False)
        HttpExchange(self, head).respond(error.status, error.message.encode() + b"\n", TEXT, error.headers)

    def put(self, data: bytes) -> None:
        self._outbox.put(data)

    async def _watch_backlog(self) -> None:
        """Close the connection if the client does not read."""
        await self._outbox.overflowed.wait()
        log.warning(_NOT_READING, self._name, extra=FROM_OUTSIDE)
        self.evict("the client does not read")

    def upgrade(self, serve: ServeUpgraded) -> None:
        if not self._slot.authenticate():  # the handler has authenticated the client
            self.evict("too many connections are in use")
            return
        self._upgraded = serve
        self.is_last = True
        self._reading.cancel(reason="upgraded")

    def ended(self, exchange: HttpExchange) -> None:
        self._exchange = None
        if self.is_last:
            self._reading.cancel(reason="this was the last response")
        elif self._error is not None:
            self._send_error()

    async def _close_gracefully(self) -> None:
        """Send what is left, close our direction, and discard input for a moment (RFC 9112, 9.6)."""
        with trio.move_on_after(_DRAIN_TIMEOUT):
            await self._outbox.wait_drained()
        if self._error is None and self._upgraded is None:
            return
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
        with _batch:
            if exchange is not None:
                exchange.hang_up(reason)
            self._handler.closed(reason)

    async def _watch_deadlines(self) -> None:
        """Watch all deadlines of the connection in one task, so that requests need no timers."""
        while True:
            deadline = self._check_deadlines(trio.current_time())
            with trio.move_on_at(deadline):
                await self._wake.wait()
            self._wake = trio.Event()

    def _check_deadlines(self, now: float) -> float:
        """Act on expired deadlines; return when to check again."""
        deadlines = [now + QUIET_INTERVAL]
        exchange = self._exchange
        if exchange is not None:
            quiet_at = self._sent_at + QUIET_INTERVAL
            if quiet_at <= now:
                self._sent_at, quiet_at = now, now + QUIET_INTERVAL
                if exchange.on_quiet is not None:
                    exchange.on_quiet()
            deadlines.append(quiet_at)
        elif self._incomplete_since is not None:
            late_at, what = self._request_deadline(self._incomplete_since)
            if late_at <= now and self._error is None:
                self._reject(BadRequest(408, what))
            deadlines.append(late_at)
        else:
            idle_at = self._received_at + KEEP_ALIVE_TIMEOUT
            if idle_at <= now:
                self._reading.cancel(reason="idle for too long")
                idle_at = now + QUIET_INTERVAL
            deadlines.append(idle_at)
        return max(min(deadlines), now + 0.01)

    def _request_deadline(self, since: float) -> tuple[float, str]:
        """Return when the incomplete request, whose first byte arrived at `since`, is late, and why."""
        if self._parser.is_in_head:
            return since + HEAD_TIMEOUT, f"the head of a request must arrive within {HEAD_TIMEOUT:g} s"
        return min(
            (self._received_at + BODY_TIMEOUT, f"no part of the body arrived for {BODY_TIMEOUT:g} s"),
            (since + REQUEST_TIMEOUT, f"a request must arrive within {REQUEST_TIMEOUT:g} s"),
        )

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(run_in_turn, work, None, self)


def _refuse(body: bytes, exchange: HttpExchange) -> None:
    """Serve a request for which there is no route yet."""
    raise AssertionError("no route")


def _has_unread_input(connection: sockets.socket) -> bool:
    try:
        return bool(connection.recv(1, sockets.MSG_PEEK))
    except OSError:
        return False
