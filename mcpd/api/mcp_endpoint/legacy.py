"""Clients of revisions 2025-03-26 to 2025-11-25: a session from `initialize` on, named by a header."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

import attrs
import trio

from mcpd.api.http_server.http_exchange import Exchange
from mcpd.api.http_server.parser import Head
from mcpd.api.json_rpc_batch import MOST, requests_in
from mcpd.api.mcp_endpoint.frames import EVENT_HEADERS, EVENTS, refuse
from mcpd.api.mcp_endpoint.resumable_streams import Stream, Streams
from mcpd.client_registry import ALL_SERVERS
from mcpd.client_registry import ClientConnection as Account
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.responder import Client
from mcpd.gateway.session import Session
from mcpd.gateway.virtual_server import View
from mcpd.protocol.legacy import VERSIONS
from mcpd.wire.message import ABSENT, Message

log = logging.getLogger("mcpd.http")

SESSION = b"mcp-session-id"
_TOLD = b"Mcp-Session-Id"
MAX_SESSIONS = 256
IDLE = 4 * 3600.0
"""Seconds without a request or an open stream after which a session is over; its client starts a new one."""
MOST_LISTENING = 16
"""Streams that one session may hold open for what belongs to no request."""
_PRIMED_FROM = "2025-11-25"
_HEADERS = frozenset(version.encode() for version in VERSIONS)


def opens(message: Message) -> bool:
    """Whether a session begins with this."""
    return message.method == "initialize" and message.id is not ABSENT


def knows(version: bytes) -> bool:
    return version in _HEADERS


@attrs.frozen
class Who:
    """At the other end of a connection."""

    principal: str
    """As whom the guard let it in; what one has begun, another cannot go on with."""
    client: Client
    account: Account
    """Where it is kept what the connection is used for."""

    def speaks(self, session: Session) -> None:
        """A conversation has begun."""
        single = session.view.single
        self.account.set_session(single.spec.name if single else ALL_SERVERS, session)


class HttpSession:
    """One client, over any number of connections."""

    def __init__(self, key: str, place: str, principal: str) -> None:
        self.key = key
        self.place = place
        self.principal = principal
        """Who came in with it; a session's name alone lets nobody in."""
        self.session: Session
        self.streams = Streams(primes=False)
        self.replies: set[LegacyReply] = set()
        """Of the requests whose connections wait, with nothing said yet."""
        self.heard_at = trio.current_time()

    @property
    def is_idle(self) -> bool:
        return not (self.replies or self.streams.attached or self.session.is_at_work)

    def tell(self, frame: bytes) -> None:
        self.streams.tell(frame)

    def close(self, reason: str) -> None:
        self.session.close(reason)
        for reply in list(self.replies):
            reply.give_up(reason)
        self.streams.close()


class LegacyReply:
    """Answers in JSON, unless something has to be said before, or the answer takes its time.

    Then it is a stream that the client can come back to. A client that hangs up has not cancelled.
    """

    def __init__(self, exchange: Exchange, http: HttpSession) -> None:
        self._exchange = exchange
        self._http = http
        self._stream: Stream | None = None
        self._lost = False
        http.replies.add(self)
        exchange.on_hang_up = self._hung_up
        exchange.on_quiet = self._quiet

    def note(self, frame: bytes) -> None:
        if not self._lost:
            self._begin().send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        if self._stream is not None:
            self._stream.send(frame)
            self._stream.end()
        elif not self._lost:
            self._http.replies.discard(self)
            self._exchange.respond(200, frame)

    def drop(self) -> None:
        """A stream of events without a response: the only way in which HTTP has nothing said."""
        if self._stream is not None:
            self._stream.end()
        elif not self._lost:
            self._http.replies.discard(self)
            self._exchange.stream(EVENTS, EVENT_HEADERS)
            self._exchange.end()

    def give_up(self, reason: str) -> None:
        """The session ends before there is an answer."""
        self._http.replies.discard(self)
        self._lost = True
        refuse(self._exchange, 404, f"the session has ended: {reason}")

    def _begin(self) -> Stream:
        if self._stream is None:
            self._http.replies.discard(self)
            self._stream = self._http.streams.new()
            self._stream.attach(self._exchange)
        return self._stream

    def _quiet(self) -> None:
        self._begin()

    def _hung_up(self, _: str) -> None:
        """Before the stream began: the client has nothing to come back with."""
        self._http.replies.discard(self)
        self._lost = True


class _Opening(LegacyReply):
    """The reply to the handshake: it is what gives the session its name."""

    def __init__(self, exchange: Exchange, http: HttpSession, sessions: Sessions) -> None:
        super().__init__(exchange, http)
        self._sessions = sessions
        exchange.on_quiet = None

    def note(self, frame: bytes) -> None:
        self._http.tell(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        http = self._http
        http.replies.discard(self)
        if self._lost or code or not http.session.version:
            http.session.close("the handshake failed")
            self._exchange.respond(200, frame)
            return
        http.streams.primes = http.session.version >= _PRIMED_FROM
        self._sessions.keep(http)
        self._exchange.respond(200, frame, headers=b"%b: %b\r\n" % (_TOLD, http.key.encode()))


class _Batch(LegacyReply):
    """One response for several requests: an array, unless something had to be said before."""

    def __init__(self, exchange: Exchange, http: HttpSession, requests: int) -> None:
        super().__init__(exchange, http)
        self._left = requests
        self._answers: list[bytes] = []

    def finish(self, frame: bytes, code: int = 0) -> None:
        self._answers.append(frame.rstrip(b"\n"))
        self._settle()

    def drop(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """One of them is done with."""
        self._left -= 1
        if self._stream is not None:
            for answer in self._answers:
                self._stream.send(answer)
            self._answers.clear()
            if not self._left:
                self._stream.end()
        elif not self._left and self._answers:
            super().finish(b"[" + b",".join(self._answers) + b"]")
        elif not self._left:
            super().drop()


class Sessions:
    """Of all legacy clients, by their names."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._all: dict[str, HttpSession] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._all)

    def open(self, message: Message, exchange: Exchange, view: View, place: str, visitor: Who) -> None:
        http = HttpSession(secrets.token_urlsafe(24), place, visitor.principal)
        # What it spawns is the gateway's: a session is longer than any connection.
        http.session = self._gateway.open(view, visitor.client, http.tell, self._gateway.spawn)
        visitor.speaks(http.session)
        http.session.receive(message, _Opening(exchange, http, self))

    def keep(self, http: HttpSession) -> None:
        if len(self._all) >= MAX_SESSIONS:
            idle = [each for each in self._all.values() if each.is_idle]
            oldest = min(idle or self._all.values(), key=lambda each: each.heard_at)
            log.warning("more than %d sessions over HTTP: the one idle longest is ended", MAX_SESSIONS)
            self._end(oldest, "its place was needed")
        self._all[http.key] = http
        if not self._watching:
            self._watching = True
            self._gateway.spawn(self._watch)

    def find(self, head: Head, view: View | None, place: str, principal: str) -> HttpSession | None:
        """The live session that a request names; not another's, nor one whose server is another by now."""
        http = self._all.get((head.get(SESSION) or "").strip())
        if http is None or http.place != place or http.principal != principal:
            return None
        if view is None or not same_view(view, http.session.view):
            self._end(http, "its server is no longer there")
            return None
        http.heard_at = trio.current_time()
        return http

    def close(self, reason: str) -> None:
        """The daemon stops."""
        for http in list(self._all.values()):
            self._end(http, reason)

    def _end(self, http: HttpSession, reason: str) -> None:
        self._all.pop(http.key, None)
        http.close(reason)

    async def _watch(self) -> None:
        """End sessions that nobody uses. Here as long as there are any."""
        while self._all:
            idle = [http.heard_at for http in self._all.values()]
            await trio.sleep_until(max(min(idle) + IDLE, trio.current_time() + IDLE / 100))
            for http in list(self._all.values()):
                if http.is_idle and trio.current_time() - http.heard_at >= IDLE:
                    self._end(http, "idle for too long")
        self._watching = False

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def delete(self, http: HttpSession, exchange: Exchange) -> None:
        self._end(http, "the client ended its session")
        exchange.respond(204)


def listen(http: HttpSession, head: Head, exchange: Exchange) -> None:
    """GET: a stream for what belongs to no request, or going on with one that broke off."""
    last = head.get(b"last-event-id")
    if last is not None:
        found = http.streams.find(last)
        if found is None:
            refuse(exchange, 400, "that event is no longer known; the request it belonged to is lost")
            return
        stream, number = found
        stream.attach(exchange, number)
    else:
        if http.streams.attached >= MOST_LISTENING:
            refuse(exchange, 429, f"a session may hold {MOST_LISTENING} streams open")
            return
        stream = http.streams.new(standalone=True)
        stream.attach(exchange)
    if stream.standalone:
        http.streams.listen(stream)


def receive(http: HttpSession, messages: Sequence[Message], exchange: Exchange, *, batch: bool) -> None:
    """What was posted in a session: one message, or a batch."""
    session = http.session
    if batch:
        if not session.takes_batches:
            refuse(exchange, 400, f"revision {session.version} has no batches: post one message at a time")
            return
        if not messages or len(messages) > MOST or any(map(opens, messages)):
            refuse(exchange, 400, f"a batch has 1 to {MOST} messages, and a handshake is none of them")
            return
    requests = requests_in(messages)
    if not requests:
        exchange.respond(202)
        for message in messages:
            session.receive(message, _NOBODY)
        return
    reply = _Batch(exchange, http, requests) if batch else LegacyReply(exchange, http)
    for message in messages:
        session.receive(message, reply)


class _Nobody:
    """Notifications and responses are not answered."""

    def note(self, frame: bytes) -> None: ...
    def finish(self, frame: bytes, code: int = 0) -> None: ...
    def drop(self) -> None: ...


_NOBODY = _Nobody()


def same_view(one: View, other: View) -> bool:
    """Whether both show the same: a server that was removed and added again is another, as is a profile."""
    return one is other or (one.single is not None and one.single is other.single)


def wants_events(head: Head) -> bool:
    accept = head.headers.get(b"accept", b"*/*")
    return EVENTS in accept or b"*/*" in accept or b"text/*" in accept
