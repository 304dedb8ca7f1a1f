"""A client connection with one JSON-RPC message per line: the control API, and MCP."""

from __future__ import annotations

import logging
import math
import socket as sockets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from itertools import chain

import msgspec
import trio

from mcpd.api.control.requests import ControlRequests
from mcpd.api.listeners import Slot
from mcpd.api.mcp.frames import BatchReply, count_requests, parse_batch
from mcpd.calls.call import Call
from mcpd.calls.client_context import ClientIdentity
from mcpd.calls.limits import MAX_INCOMPLETE
from mcpd.gateway.aggregate import AggregateServer
from mcpd.gateway.gateway import METHODS, Gateway
from mcpd.gateway.handover import SessionState, can_go_on, describe_session, go_on, handle_waiting
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.io.outbox import Outbox, batch
from mcpd.io.reader import READ_SMALL, REST, Reader, has_hung_up
from mcpd.io.turns import run_in_turn
from mcpd.model import codec
from mcpd.model.errors import McpdError, Overloaded, UnknownProfile
from mcpd.model.message_limit import MAX_MESSAGE
from mcpd.privacy.logs import FROM_OUTSIDE
from mcpd.process.memory import trim_heap_soon
from mcpd.state.clients import ClientConnection
from mcpd.wire import message as wire
from mcpd.wire.framing import LineSplitter
from mcpd.wire.message import ABSENT, DECODE_ERRORS, INVALID_REQUEST, MAX_ID, BadFrame, Message

log = logging.getLogger("mcpd.client")
_NOT_READING = "client %d does not read its responses; closing its connection"

MAX_BACKLOG = 3 * 1024 * 1024
"""Bytes that may wait for a client that does not read. A larger message may wait if it is the only one."""
STALL_TIMEOUT = 30.0
_MUCH = 256 * 1024
"""Bytes of an incomplete message from which on it is counted."""
_LARGE = 1024 * 1024
"""Bytes of a message whose memory is returned to the system afterwards."""
MAX_STARTING = 4
"""Tasks that a client starts faster than they get their turn, before mcpd stops reading from it."""
_DRAIN_TIMEOUT = 1.0
_POLL_INTERVAL = 0.05


class ClientState(msgspec.Struct, kw_only=True):
    """A client whose connection goes on in the next version of the daemon."""

    fd: int
    pid: int
    received: bytes
    """The line that it has not finished."""
    unsent: bytes
    name: str
    reported_pid: int | None
    since: float
    profile: str | None
    """What it has selected for the control API."""
    session: SessionState | None
    upgrading: list[bytes]
    """The ids of its requests for this upgrade."""


class Arrival(msgspec.Struct, frozen=True):
    """A client of the version before this one."""

    state: ClientState
    gone_on: trio.Event
    """Set once everything is as that version has left it."""
    all_gone_on: trio.Event
    """The same for all clients."""


class RemotePerson(msgspec.Struct, frozen=True):
    """Somebody on another machine, with an access token."""

    identity: ClientIdentity
    view: AggregateServer
    """What that person's profile selects."""
    expires: float
    """Unix time at which the token expires."""


class SocketConnection:
    """One client. `run` serves it until it disconnects, then cancels its requests."""

    def __init__(
        self,
        gateway: Gateway,
        connection: sockets.socket,
        pid: int,
        slot: Slot | None,
        client: ClientConnection | None = None,
        arrival: Arrival | None = None,
        person: RemotePerson | None = None,
    ) -> None:
        """`client`: its entry in the registry if the caller registers it. `slot` None: it is not evicted.
        `arrival`: what the version before this one has left. `person`: whose access token it has; None: the
        person who runs mcpd."""
        self._person = person
        self._slot = slot
        self._gateway = gateway
        self._operations = gateway.core
        self._connection = connection
        self._fd = connection.fileno()
        self._pid = pid
        self._external_client = client
        self._client: ClientConnection
        self._outbox = Outbox(self._fd, MAX_BACKLOG, STALL_TIMEOUT)
        self._send = self._outbox.put
        self._splitter = LineSplitter(MAX_MESSAGE, longest=math.inf, limit_structure=True)
        # Small reads, so that a burst of requests does not delay other clients.
        self._reader = Reader(self._fd, self._received, largest=READ_SMALL, of_client=lambda: True)
        self._is_incomplete = False
        """Whether a long message that has arrived only in part is counted."""
        self._starting = 0
        """Tasks that wait for their turn."""
        self._nursery: trio.Nursery
        self._requests: ControlRequests
        self._session: ClientSession | None = None
        """Set once the client speaks MCP."""
        self._arrival = arrival
        self._received_at = trio.current_time()
        self.has_read_all = trio.Event()
        """Set once every line of the client has been handled."""

    async def run(self) -> None:
        """Serve the client. No error escapes: it ends at most this connection."""
        self._client = self._external_client or self._operations.clients.add(self._pid)
        self._requests = ControlRequests(
            self._gateway, self, self._client, self._pid, self._start, self._open_session
        )
        if self._external_client is None:  # otherwise it is a client of HTTP, and not registered here
            self._client.control = self._requests.calls.client
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    if self._person is not None:
                        self._act_for(self._person)
                    await self._serve()
                finally:
                    # A response of a server may arrive at any time, and its call may start a task here.
                    self._cancel_all("the client left")
                self._nursery.cancel_scope.cancel(reason="the client left")
        except* Exception:
            log.exception("client %d: an error in mcpd itself; closing its connection", self._pid)
        finally:
            self.has_read_all.set()
            if self._external_client is None:
                self._operations.clients.remove(self._client)
            self._outbox.close()  # the descriptor's number may soon be another client's
            if self._is_incomplete:
                self._count_incomplete(0)
                trim_heap_soon()
            if self._session is not None:  # it may have held subscriptions and calls by the thousand
                trim_heap_soon()
            # These refer back to the connection; without the cycle it is freed immediately.
            self._session = None
            del self._requests, self._client, self._reader

    async def _serve(self) -> None:
        self._nursery.start_soon(self._outbox.run)
        self._nursery.start_soon(self._watch_backlog)
        with nullcontext() if self._slot is None else self._slot.held_by(self):
            try:
                if self._arrival is not None:
                    await self._go_on(self._arrival)
                await self._reader.run()
            except (OSError, McpdError) as error:  # McpdError: its server or profile is gone
                log.debug("client %d: %s", self._pid, error)
            self.has_read_all.set()
            await self._finish_requests()
            with trio.move_on_after(_DRAIN_TIMEOUT):
                await self._outbox.wait_drained()

    def calls(self) -> list[Call]:
        """Return the calls in progress."""
        session = self._session
        return [*self._requests.calls.calls.values(), *(session.calls.values() if session else ())]

    def describe(self) -> ClientState | None:
        """Return what the next version of the daemon needs to go on; None if the connection ends with this
        one."""
        if self._external_client is not None or self._outbox.broken or self._splitter.is_dropping:
            return None
        client, session, selection = self._client, self._session, self._requests.calls.client.selection
        return ClientState(
            fd=self._fd,
            pid=self._pid,
            received=self._splitter.rest(),
            unsent=self._outbox.rest(),
            name=client.reported_name,
            reported_pid=client.pid,
            since=client.since,
            profile=None if selection is None else selection.profile.name,
            session=None if session is None else describe_session(self._gateway, session),
            upgrading=self._requests.waiting_for_upgrade(),
        )

    def refuse_to_go_on(self, error: McpdError) -> None:
        """Answer what the next version cannot go on with."""
        self._requests.refuse_to_go_on(error)
        for call in self.calls():
            if not can_go_on(call):
                self._gateway.calls.fail(call, error)

    async def _go_on(self, arrival: Arrival) -> None:
        try:
            await self._restore(arrival.state)
        finally:
            arrival.gone_on.set()
            self._arrival = None
        await arrival.all_gone_on.wait()
        if self._session is not None and arrival.state.session is not None:
            handle_waiting(self._session, arrival.state.session, self)

    async def _restore(self, state: ClientState) -> None:
        self._client.set_identity(state.name, state.reported_pid)
        self._client.since = state.since
        if state.unsent:
            self._send(state.unsent)
        with suppress(UnknownProfile):
            if state.profile is not None:
                self._requests.calls.select(self._gateway.profile_view(state.profile))
        if (of_session := state.session) is not None:
            view = self._gateway.view(of_session.server, of_session.profile)
            session = self._open_session(view, of_session.client)
            await go_on(self._gateway, session, of_session, self)
        if state.received:
            self._received(state.received)
        for key in state.upgrading:
            self._send(wire.result(key, codec.encode(self._operations.describe_upgrade())))

    def stop_reading(self) -> None:
        """Take no more from the client, because the daemon stops. Lines that it has sent are still handled;
        its next write fails, so that it knows that nothing of it arrived."""
        with suppress(OSError):  # it has disconnected
            self._connection.shutdown(sockets.SHUT_RD)

    @property
    def idle_since(self) -> float | None:
        """See `Evictable`. A client that speaks MCP is never idle."""
        return None if self._requests.is_busy or self._session is not None else self._received_at

    def evict(self, reason: str) -> None:
        log.debug("client %d: closed: %s", self._pid, reason)
        if self._requests.is_busy:
            body = wire.error_body(Overloaded.rpc, f"the connection was closed: {reason}")
            self._send(wire.error(b"null", body))
        self._nursery.cancel_scope.cancel(reason=reason)

    async def _finish_requests(self) -> None:
        """Wait for running requests: a client that only stopped writing (`… | nc -U`) still reads."""
        # There is no event for the other direction being closed, so poll.
        while self._is_busy and not has_hung_up(self._fd):  # noqa: ASYNC110
            await trio.sleep(_POLL_INTERVAL)

    @property
    def _is_busy(self) -> bool:
        return self._requests.is_busy or (self._session is not None and self._session.is_busy)

    def _received(self, portion: bytes) -> Iterable[object] | None:
        with batch() as now:
            self._received_at = now
            lines = self._splitter.feed(portion)
            if self._is_incomplete or self._splitter.size > _MUCH:
                self._count_incomplete(self._splitter.size)
            if self._splitter.dropped:
                self._refuse_dropped()
            if lines and len(lines[0]) > _LARGE:  # the others are parts of this portion
                trim_heap_soon()
                return chain(self._handle_large(lines[0]), map(self._handle_line, lines[1:]))
            if len(lines) > 1:
                return map(self._handle_line, lines)
            for line in lines:
                self._handle_line(line)
        return None

    def _count_incomplete(self, size: int) -> None:
        """Count an incomplete message of so many bytes."""
        self._is_incomplete = size > 0
        self._gateway.incomplete_lines.count(size, self._drop_incomplete)

    def _drop_incomplete(self) -> None:
        limit = f"more than {MAX_INCOMPLETE} bytes together with the incomplete messages of others"
        self._splitter.drop_open_line(limit)
        self._count_incomplete(0)

    def _refuse_dropped(self) -> None:
        """Respond to requests that are too long or have too much structure."""
        trim_heap_soon()
        for message in self._splitter.dropped:
            body = wire.error_body(INVALID_REQUEST, f"a message with {message.reason} is not accepted")
            self._send(wire.error(message.request_id(), body))
        self._splitter.dropped.clear()

    def _refuse(self, error: BadFrame) -> None:
        body = wire.error_body(error.code, f"not a JSON-RPC message: {error}")
        self._send(wire.error(b"null", body))

    def _handle_line(self, line: bytes, message: Message | None = None) -> None:
        if message is None:
            try:
                is_plain = line.isascii() and len(line) <= MAX_ID
                message = wire.decode_envelope(line) if is_plain else wire.parse(line)
            except DECODE_ERRORS:
                self._handle_unusual(line)
                return
        session = self._session
        if session is not None and message.method[:5] != "mcpd/":
            if message.method == "notifications/cancelled" and self._requests.is_busy:
                self._requests.handle_cancelled(message)  # the id may be that of a control request
            session.receive(message, self)
        else:
            self._handle_control(message)

    def _handle_large(self, line: bytes) -> Iterator[object]:
        """Let others have their turn between looking at the message and handling it."""
        yield REST
        try:
            message = wire.parse(line)
        except BadFrame:
            yield REST
            self._handle_unusual(line)
        else:
            yield REST
            self._handle_line(line, message)

    def _handle_unusual(self, line: bytes) -> None:
        """Handle what is not one message, or needs a repair."""
        try:
            message = wire.parse(line)
        except BadFrame as error:
            if line.strip() and not self._handle_batch(line):
                self._refuse(error)
        else:
            self._handle_line(line, message)

    def _handle_control(self, message: Message) -> None:
        """Handle a message of the control API. A method of MCP switches the connection to it."""
        method = message.method
        if not method:
            if message.id is ABSENT or (message.result is ABSENT and message.error is ABSENT):
                self._send(wire.error(message.key, wire.error_body(INVALID_REQUEST, "no `method`")))
        elif message.id is ABSENT:
            if method == "notifications/cancelled":
                self._requests.handle_cancelled(message)
        elif self._requests.is_running(message.key):
            text = "a request with this id is still in progress"
            self._send(wire.error(message.key, wire.error_body(INVALID_REQUEST, text)))
        elif method == "mcpd/call":  # before `is_mcp`, because it is the most frequent
            self._requests.receive(message)
        elif METHODS.is_known(method):
            self._open_session(
                self._gateway.view(), ClientIdentity(via="socket", pid=self._pid, peer_pid=self._pid)
            ).receive(message, self)
        else:
            self._requests.receive(message)

    def _handle_batch(self, line: bytes) -> bool:
        """Handle a batch if the session's revision has batches; return whether it was one."""
        session = self._session
        if session is None or not session.accepts_batches or not line.lstrip().startswith(b"["):
            return False
        try:
            messages = parse_batch(line)
        except BadFrame as error:
            self._send(wire.error(b"null", wire.error_body(error.code, str(error))))
            return True
        reply = BatchReply(count_requests(messages), self)
        for message in messages:
            session.receive(message, reply)
        return True

    def _open_session(self, view: View, client: ClientIdentity) -> ClientSession:
        """Switch this connection to MCP."""
        if self._session is not None:
            self._session.close("the client attached to another server")
        session = self._gateway.open_session(view, client, self._send, self._spawn)
        self._session = self._client.session = session
        self._requests.calls.answer_in(session)
        return session

    def _act_for(self, person: RemotePerson) -> None:
        """Use the servers and permissions of a person, as an MCP session of that person does."""
        view, calls = person.view, self._requests.calls
        self._session = self._gateway.open_session(view, person.identity, self._send, self._spawn)
        calls.client.person = self._session
        calls.select(view if view.profile.name else None)

    def send(self, frame: bytes) -> None:
        """See `Responder` and `ControlResponder`. All messages of the session use this connection."""
        self._send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        self._send(frame)

    def drop(self) -> None:
        """No-op: a cancelled request gets no response on this transport."""

    async def wait_drained(self) -> None:
        await self._outbox.wait_drained()

    def _start(self, work: Callable[[], Awaitable[None]], name: str | None = None) -> None:
        """Start a task of this client. While too many wait for their turn, read nothing more from it."""
        self._starting += 1
        if self._starting > MAX_STARTING:
            self._reader.pause()
        # Other control requests take longer, and take turns as if they were those of one client.
        of = self if name in (None, "call") else None
        self._nursery.start_soon(run_in_turn, work, self._started, of, name=name)

    def _started(self) -> None:
        self._starting -= 1
        if self._starting <= MAX_STARTING:
            self._reader.resume()

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._start(work)

    def _cancel_all(self, reason: str) -> None:
        with batch():
            self._requests.cancel_all(reason)
            if self._session is not None:
                self._session.close(reason)

    async def _watch_backlog(self) -> None:
        """Close the connection if the client does not read."""
        await self._outbox.overflowed.wait()
        log.warning(_NOT_READING, self._pid, extra=FROM_OUTSIDE)
        self._nursery.cancel_scope.cancel(reason="the client does not read")
