"""JSON-RPC lines on one connection: the control API, and MCP to one server or to several."""

from __future__ import annotations

import logging
import select
import socket as sockets
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

import msgspec
import trio

from mcpd.clients import EVERYTHING
from mcpd.clients import Client as Present
from mcpd.doors.batch import BatchReply, messages_of, requests_in
from mcpd.doors.control import MAX_WAIT, METHODS, Method, decode_params
from mcpd.doors.openrpc import document
from mcpd.doors.seats import seats
from mcpd.gateway.calls import Call, read_call
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.relay import refused
from mcpd.gateway.reply import Client
from mcpd.gateway.session import Session, is_mcp
from mcpd.gateway.view import View
from mcpd.model import api, codec
from mcpd.model.errors import FellBehind, McpdError
from mcpd.model.tap import TapParams
from mcpd.support.actor import acting
from mcpd.support.memory import give_back
from mcpd.support.outbox import Outbox, batch
from mcpd.support.reader import READ_SMALL, Reader
from mcpd.wire import message as wire
from mcpd.wire.lines import LineSplitter, LineTooLong
from mcpd.wire.message import ABSENT, BadFrame, Message

log = logging.getLogger("mcpd.client")

P = TypeVar("P")

BACKLOG = 3 * 1024 * 1024
"""What may wait for a client that takes nothing; one larger frame may still be added to nothing."""
STALLED = 30.0
MAX_FRAME = 32 * 1024 * 1024
_GOODBYE = 1.0
_LOOK_AGAIN = 0.05
_PARSE_ERROR, _INVALID_REQUEST, _METHOD_NOT_FOUND = -32700, -32600, -32601


class Connection:
    """One client. `run` serves it until it leaves, and then cancels what it had under way."""

    def __init__(
        self, gateway: Gateway, connection: sockets.socket, pid: int, guest: Present | None = None
    ) -> None:
        """`guest`: who it is, where somebody else says who comes and goes, and who has to."""
        self._gateway = gateway
        self._core = gateway.core
        self._fd = connection.fileno()
        self._pid = pid
        self._guest = guest
        self._client: Present
        self._outbox = Outbox(self._fd, BACKLOG)
        self._send = self._outbox.put
        self._splitter = LineSplitter(MAX_FRAME)
        self._nursery: trio.Nursery
        self._running: dict[bytes, Callable[[str], None]] = {}
        """Request id → how to cancel it."""
        self._session: Session | None = None
        """The conversation, once it speaks MCP."""
        self._heard_at = trio.current_time()

    async def run(self) -> None:
        """The firewall: whatever a client does ends at most its own connection."""
        self._client = self._guest or self._core.clients.arrived(self._pid)
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._outbox.run)
                self._nursery.start_soon(self._watch_backlog)
                with nullcontext() if self._guest else seats.taken_by(self):
                    await self._read()
                    await self._finish()
                    with trio.move_on_after(_GOODBYE):
                        await self._outbox.wait_drained()
                self._nursery.cancel_scope.cancel(reason="the client left")
        except* Exception:
            log.exception("client %d: an error in mcpd itself; its connection is closed", self._pid)
        finally:
            if self._guest is None:
                self._core.clients.left(self._client)
            self._cancel_everything("the client left")
            self._outbox.close()  # the descriptor's number may soon be another client's

    @property
    def idle_since(self) -> float | None:
        """See `Sitter`. An attached client is at work as long as it stays."""
        return None if self._running or self._session is not None else self._heard_at

    def leave(self, reason: str) -> None:
        log.debug("client %d: closed: %s", self._pid, reason)
        self._nursery.cancel_scope.cancel(reason=reason)

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        """Until the client leaves, or sends what cannot be framed."""
        try:
            # In small portions: many requests in one go must not keep other clients from their turn.
            await Reader(self._fd, self._take, largest=READ_SMALL).run()
        except LineTooLong as error:
            body = wire.error_body(_INVALID_REQUEST, f"{error}; the connection is closed")
            self._send(wire.error(b"null", body))
            self._cancel_everything("the client sent what cannot be framed")
            give_back()
        except OSError as error:
            log.debug("client %d: %s", self._pid, error)

    async def _finish(self) -> None:
        """A client that has only stopped writing (`… | nc -U`) still waits for its answers."""
        # No event tells that the other direction was closed too; looked at for as long as a call takes.
        while self._is_at_work and not _hung_up(self._fd):  # noqa: ASYNC110
            await trio.sleep(_LOOK_AGAIN)

    @property
    def _is_at_work(self) -> bool:
        return bool(self._running) or (self._session is not None and self._session.is_at_work)

    def _take(self, portion: bytes) -> None:
        with batch() as now:
            self._heard_at = now
            for line in self._splitter.feed(portion):
                self._receive(line)

    def _receive(self, line: bytes) -> None:
        try:
            message = wire.parse(line)
        except BadFrame as error:
            if line.strip() and not self._received_batch(line):
                body = wire.error_body(_PARSE_ERROR, f"not a JSON-RPC message: {error}")
                self._send(wire.error(b"null", body))
            return
        method = message.method
        session = self._session
        if session is not None and method[:5] != "mcpd/":
            if method == "notifications/cancelled" and self._running:
                self._cancelled(message)  # what it named may be a request to us
            session.receive(message, self)
        elif not method:
            if message.id is ABSENT or (message.result is ABSENT and message.error is ABSENT):
                self._send(wire.error(message.key, wire.error_body(_INVALID_REQUEST, "no `method`")))
        elif message.id is ABSENT:
            if method == "notifications/cancelled":
                self._cancelled(message)
        elif message.key in self._running:
            words = "a request with this id is under way: its answer could not be told from this one's"
            self._send(wire.error(message.key, wire.error_body(_INVALID_REQUEST, words)))
        elif method == "mcpd/call":
            self._call(message)
        elif is_mcp(method):
            self._speak(self._gateway.view(), Client(door="socket", pid=self._pid)).receive(message, self)
        else:
            self._dispatch(message)

    def _received_batch(self, line: bytes) -> bool:
        """Whether it was an array of messages, of a client whose revision has such."""
        session = self._session
        if session is None or not session.takes_batches or not line.lstrip().startswith(b"["):
            return False
        try:
            messages = messages_of(line)
        except BadFrame:
            return False
        reply = BatchReply(requests_in(messages), self._send)
        for message in messages:
            session.receive(message, reply)
        return True

    def _dispatch(self, message: Message) -> None:
        with acting(self._client.who):
            self._do(message)

    def _do(self, message: Message) -> None:
        known = METHODS.get(message.method)
        try:
            if known is not None:
                params = self._params(message, known.params)
                if known.now is not None:
                    self._send(wire.result(message.key, codec.encode(known.now(self._core, params))))
                else:
                    self._start(message, lambda: self._later(message, known, params))
            elif message.method == "mcpd/events":
                wanted = self._params(message, api.EventsParams)
                self._start(message, lambda: self._events(message, wanted))
            elif message.method == "mcpd/logs":
                asked = self._params(message, api.LogsParams)
                self._start(message, lambda: self._logs(message, asked))
            elif message.method == "mcpd/tap":
                tapped = self._params(message, TapParams)
                self._start(message, lambda: self._tap(message, tapped))
            elif message.method == "mcpd/attach":
                attach = self._params(message, api.AttachParams)
                if attach.server is None or attach.wait <= 0:
                    self._attach(message, attach)  # at once: what comes right behind it is for the session
                else:
                    self._start(message, lambda: self._attach_when_ready(message, attach))
            elif message.method == "rpc.discover":
                self._send(wire.result(message.key, document()))
            else:
                words = (
                    f"no method {message.method[:100]!r}; `rpc.discover` describes all, and "
                    "`mcpd/attach` makes this connection speak MCP to one server"
                )
                self._send(wire.error(message.key, wire.error_body(_METHOD_NOT_FOUND, words)))
        except McpdError as error:
            self._send(refused(message.key, error))

    # ── the methods ─────────────────────────────────────────────────────────────────────────────

    def _call(self, message: Message) -> None:
        key = message.key
        try:
            request = read_call(message.params)
            self._client.used(request.server)
            token = request.progress_token

            def done(body: bytes | msgspec.Raw) -> None:
                self._running.pop(key, None)
                self._send(wire.result(key, body))

            def fail(error: McpdError) -> None:
                self._running.pop(key, None)
                self._send(refused(key, error))

            def progress(params: bytes) -> None:
                if token:
                    told = {**wire.members(params), "progressToken": msgspec.Raw(token)}
                    self._send(wire.notification("notifications/progress", msgspec.json.encode(told)))

            call = Call(
                request=request,
                done=done,
                fail=fail,
                progress=progress,
                later=lambda work: self._start(message, work),
            )
            if call.try_now(self._core):
                self._running[key] = call.cancel
                return
        except McpdError as error:
            self._send(refused(key, error))
            return

        async def prepare() -> None:
            await call.prepare_and_send(self._core)
            self._running[key] = call.cancel

        self._start(message, prepare)

    async def _later(self, message: Message, method: Method[object], params: object) -> None:
        assert method.later is not None
        answer = await method.later(self._core, params)
        body = bytes(answer) if isinstance(answer, msgspec.Raw) else codec.encode(answer)
        self._send(wire.result(message.key, body))

    async def _events(self, message: Message, params: api.EventsParams) -> None:
        with self._core.watch() as (snapshot, changes):
            for event in snapshot:
                self._tell(message, "mcpd/event", "event", event, event.server, params.servers)
            async for event in changes:
                self._tell(message, "mcpd/event", "event", event, event.server, params.servers)
        raise FellBehind("this client read its events too slowly; ask again for a new snapshot")

    def _tell(
        self,
        message: Message,
        method: str,
        member: str,
        item: object,
        server: str | None,
        wanted: tuple[str, ...],
    ) -> None:
        if server is None or not wanted or server in wanted:
            body = msgspec.json.encode({"request": msgspec.Raw(message.key), member: codec.unstructure(item)})
            self._send(wire.notification(method, body))

    async def _logs(self, message: Message, params: api.LogsParams) -> None:
        log = self._core.supervisor.get(params.server).log
        position = log.position
        tail = api.LogLines(lines=log.tail(params.lines))
        self._send(wire.result(message.key, codec.encode(tail)))
        while params.follow:
            await log.wait_beyond(position)
            lines, missed = log.beyond(position)
            position = log.position
            if missed:
                self._tell(message, "mcpd/log", "missed", missed, None, ())
            for line in lines:
                self._tell(message, "mcpd/log", "line", line, None, ())
            await self._outbox.wait_drained()  # what comes meanwhile waits in the log, which is bounded

    async def _tap(self, message: Message, params: TapParams) -> None:
        with self._core.tap(params) as tap:
            while True:
                self._tell(message, "mcpd/frame", "frame", await tap.next(), None, ())
                await self._outbox.wait_drained()

    async def _attach_when_ready(self, message: Message, params: api.AttachParams) -> None:
        server = self._gateway.view(params.server).single
        if server is not None:
            await self._core.ready(server, min(params.wait, MAX_WAIT))
        self._attach(message, params)

    def _attach(self, message: Message, params: api.AttachParams) -> None:
        profile = params.profile
        if profile is None and params.server is None and params.client is not None:
            profile = self._gateway.profile_for(params.client.cwd)
        view = self._gateway.view(params.server, profile)
        server = view.single
        who = params.client or api.AttachedClient()
        self._client.tells(who.name, who.pid)
        door = "socket" if params.client is None else "bridge"
        self._speak(view, Client(door=door, name=who.name, pid=who.pid or self._pid, cwd=who.cwd or ""))
        upstream = None if server is None else server.upstream
        answer = api.Attached(
            server=params.server,
            profile=profile,
            protocol_version=None if upstream is None else upstream.version,
        )
        self._send(wire.result(message.key, codec.encode(answer)))

    def _speak(self, view: View, client: Client) -> Session:
        """From now on this connection speaks MCP."""
        if self._session is not None:
            self._session.close("the client attached itself elsewhere")
        self._session = session = self._gateway.open(view, client, self._send, self._spawn)
        self._client.speaks_mcp(view.single.spec.name if view.single else EVERYTHING, session)
        return session

    def note(self, frame: bytes) -> None:
        """As `Reply`: all of an MCP conversation goes over this one line."""
        self._send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        self._send(frame)

    # ── under way ───────────────────────────────────────────────────────────────────────────────

    def _start(self, message: Message, work: Callable[[], Awaitable[None]]) -> None:
        scope = trio.CancelScope()
        key = message.key

        def cancel(reason: str) -> None:
            scope.cancel(reason=reason)

        async def run() -> None:
            with scope:
                try:
                    await work()
                except McpdError as error:
                    self._send(refused(key, error))
            if self._running.get(key) is cancel:
                del self._running[key]

        self._running[key] = cancel
        self._nursery.start_soon(run, name=message.method)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(work)

    def _params(self, message: Message, into: type[P]) -> P:
        raw = bytes(message.params)
        try:
            params = wire.value(raw) if raw else {}
        except BadFrame as error:
            params = str(error)
        return decode_params(message.method, params, into)

    def _cancelled(self, message: Message) -> None:
        try:
            key = bytes(wire.members(message.params).get("requestId", b""))
        except BadFrame:
            return
        cancel = self._running.pop(key, None)
        if cancel is not None:
            cancel("the client cancelled it")

    def _cancel_everything(self, reason: str) -> None:
        running, self._running = list(self._running.values()), {}
        with batch():
            for cancel in running:
                cancel(reason)
            if self._session is not None:
                self._session.close(reason)

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    async def _watch_backlog(self) -> None:
        """End a client that does not read: too much waits for it, or for too long."""
        with trio.CancelScope() as waiting:

            async def stalled() -> None:
                while True:
                    await self._outbox.wait_blocked()
                    left = STALLED - (trio.current_time() - self._outbox.moved_at)
                    if left <= 0:
                        break
                    with trio.move_on_after(left):
                        await self._outbox.wait_drained()
                waiting.cancel(reason="stalled")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stalled)
                await self._outbox.overflowed.wait()
                nursery.cancel_scope.cancel(reason="too much waits")
        if self._outbox.broken is None:  # otherwise it has simply left
            log.warning("client %d does not read its answers: its connection is closed", self._pid)
        self._nursery.cancel_scope.cancel(reason="the client does not read")


def _hung_up(fd: int) -> bool:
    """Whether the other side has closed the connection altogether, not only its own direction."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
