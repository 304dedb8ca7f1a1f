"""Streamable HTTP for revisions 2025-03-26 to 2025-11-25: sessions identified by `Mcp-Session-Id`."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import attrs
import trio
from msgspec import Raw

from mcpd.api.http.exchange import HttpExchange
from mcpd.api.http.parser import Head
from mcpd.api.mcp.frames import (
    EVENT_HEADERS,
    EVENT_STREAM,
    NULL_REPLY,
    BatchReply,
    accepts_event_stream,
    count_requests,
    end_with_error,
    is_request,
    respond_error,
)
from mcpd.api.mcp.kept_sessions import IDLE_TIMEOUT, MAX_SESSIONS, KeptSession, SessionFile, hashed
from mcpd.api.mcp.restore_legacy import handshake_params, replay_handshake, resubscribe
from mcpd.api.mcp.scope import EndpointScope
from mcpd.api.mcp.streams import (
    KeptBytes,
    ResumableStream,
    SessionStreams,
    request_of,
    request_of_earlier_daemon,
)
from mcpd.calls.client_context import ClientIdentity
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.model.errors import LinkLost
from mcpd.privacy.logs import FROM_OUTSIDE
from mcpd.protocol.legacy import VERSIONS
from mcpd.state.clients import ClientConnection
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, Message

log = logging.getLogger("mcpd.http")

SESSION_HEADER = b"mcp-session-id"
_SESSION_HEADER_SENT = b"Mcp-Session-Id"
RELEASE_AFTER = 240.0
"""Seconds after which its dedicated servers end: its client has probably left without a word."""
_WATCH_INTERVAL = 60.0
MAX_LISTEN_STREAMS = 16
"""Open GET streams per session."""
_PRIMED_FROM = "2025-11-25"
_NOT_A_MESSAGE = "not a request, notification or response"
VERSION_HEADERS = frozenset(version.encode() for version in VERSIONS)


def is_initialize(message: Message) -> bool:
    """Return whether the message is an `initialize` request."""
    return message.method == "initialize" and message.id is not ABSENT


@attrs.frozen
class Principal:
    """The authenticated client of a connection."""

    name: str
    """The identity verified by the guard. Sessions can only be used by the same identity."""
    client: ClientIdentity
    connection: ClientConnection
    """The client's entry in the client registry."""


class LegacyHttpSession:
    """The session of one client, over any number of connections."""

    def __init__(self, key: str, scope: EndpointScope, principal: Principal, kept: KeptBytes) -> None:
        self.key = key
        self.scope = scope
        self.principal = principal.name
        """The identity that created the session; the session id alone does not grant access."""
        self.session: ClientSession
        self.streams = SessionStreams(send_priming_event=False, of_all=kept)
        self.pending: set[LegacyReply] = set()
        """Replies that have not sent anything yet."""
        self.params = b""
        """See `handshake_params`."""
        self.resubscribing: dict[str, None] = {}
        """What it was subscribed to before the daemon was restarted, and is not yet again."""
        self.used_at = trio.current_time()

    @property
    def is_connected(self) -> bool:
        """Whether the client waits for a response or reads a stream now."""
        return bool(self.pending or self.streams.attached_count)

    @property
    def is_idle(self) -> bool:
        return not (self.is_connected or self.session.is_busy)

    def send(self, frame: bytes) -> None:
        self.streams.send_unrelated(frame)

    def close(self, reason: str) -> None:
        calls = self.session.calls
        self.session.close(reason)
        for reply in list(self.pending):
            reply.abort(reason, may_have_run=reply.key in calls)
        self.streams.close()


class LegacyReply:
    """Replies with JSON, or with a resumable event stream if there are earlier messages or it takes long, and
    the client accepts one.

    A client that disconnects does not cancel its request.
    """

    def __init__(self, exchange: HttpExchange, http: LegacyHttpSession, key: bytes = b"") -> None:
        """`key`: the id of the request; empty for a batch."""
        self.key = key
        self._exchange = exchange
        self._http = http
        self._stream: ResumableStream | None = None
        self._disconnected = False
        http.pending.add(self)
        exchange.on_hang_up = self._on_hang_up
        exchange.on_quiet = self._on_quiet

    def send(self, frame: bytes) -> None:
        if not accepts_event_stream(self._exchange.head):
            self._http.send(frame)
        elif not self._disconnected:
            self._start_stream().send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        if self._stream is not None:
            self._stream.send(frame)
            self._stream.end()
        elif not self._disconnected:
            self._http.pending.discard(self)
            self._exchange.respond(200, frame)

    def drop(self) -> None:
        """End an event stream without a response, since HTTP requires some answer."""
        if self._stream is not None:
            self._stream.end()
        elif not self._disconnected:
            self._http.pending.discard(self)
            self._exchange.stream(EVENT_STREAM, EVENT_HEADERS)
            self._exchange.end()

    def abort(self, reason: str, *, may_have_run: bool) -> None:
        """Reply with an error because the session has ended, or continues in the next daemon.

        Some libraries give up after an error of HTTP.
        """
        self._http.pending.discard(self)
        self._disconnected = True
        text = f"the session was closed: {reason}"
        self._exchange.respond(200, _lost(self.key, text, may_have_run=may_have_run))

    def _start_stream(self) -> ResumableStream:
        if self._stream is None:
            self._http.pending.discard(self)
            self._stream = self._http.streams.new(self.key)
            self._stream.attach(self._exchange)
        return self._stream

    def _on_quiet(self) -> None:
        if accepts_event_stream(self._exchange.head):
            self._start_stream()

    def _on_hang_up(self, _: str) -> None:
        """The client disconnected before the stream started, so it cannot resume."""
        self._http.pending.discard(self)
        self._disconnected = True


class _InitializeReply(LegacyReply):
    """The reply to `initialize`, which registers the session and sends its id."""

    def __init__(
        self, exchange: HttpExchange, http: LegacyHttpSession, message: Message, sessions: LegacyHttpSessions
    ) -> None:
        super().__init__(exchange, http, bytes(message.id))
        self._params = message.params
        self._sessions = sessions
        exchange.on_quiet = None

    def send(self, frame: bytes) -> None:
        self._http.send(frame)

    def finish(self, frame: bytes, code: int = 0) -> None:
        http = self._http
        http.pending.discard(self)
        if self._disconnected or code or not http.session.version:
            http.session.close("the handshake failed")
            self._exchange.respond(200, frame)
            return
        http.params = handshake_params(self._params, http.session)
        self._sessions.register(http)
        self._exchange.respond(200, frame, headers=b"%b: %b\r\n" % (_SESSION_HEADER_SENT, http.key.encode()))


class LegacyHttpSessions:
    """All legacy sessions, by session id."""

    def __init__(self, gateway: Gateway, file: SessionFile, owner: str = "") -> None:
        """`owner`: see `Replica`."""
        self._gateway = gateway
        self._file = file
        self._owner = owner
        self._sessions: dict[str, LegacyHttpSession] = {}
        self._unsaved: set[LegacyHttpSession] = set()
        """Those that have changed."""
        self._kept = KeptBytes()
        self._watching = self._saving = False
        self.is_stopping = False

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, message: Message, exchange: HttpExchange, view: View, scope: EndpointScope, principal: Principal
    ) -> None:
        http = self._new(self._owner + secrets.token_urlsafe(24), view, scope, principal)
        http.session.receive(message, _InitializeReply(exchange, http, message, self))

    def _new(self, key: str, view: View, scope: EndpointScope, principal: Principal) -> LegacyHttpSession:
        http = LegacyHttpSession(key, scope, principal, self._kept)
        # Tasks run in the gateway, because a session outlives its connections.
        http.session = self._gateway.open_session(
            view, scope.identify(principal.client), http.send, self._gateway.spawn
        )
        http.session.has_connection = lambda: http.is_connected
        principal.connection.session = http.session
        return http

    def register(self, http: LegacyHttpSession) -> None:
        """Add a session whose handshake is complete."""
        http.streams.primes = http.session.version >= _PRIMED_FROM
        if len(self._sessions) >= MAX_SESSIONS:
            text = "there are more than %d HTTP sessions: ending one"
            log.warning(text, MAX_SESSIONS, extra=FROM_OUTSIDE)
            self._end(self._most_dispensable(), f"there are more than {MAX_SESSIONS} sessions; send DELETE")
        self._sessions[http.key] = http
        http.session.on_settled = partial(self._on_settled, http)
        self._save(http)
        if not self._watching:
            self._watching = True
            self._gateway.spawn(self._watch)

    # ── sessions that outlive the daemon ────────────────────────────────────────────────────────────

    def _on_settled(self, http: LegacyHttpSession, uri: str) -> None:
        http.resubscribing.pop(uri, None)
        self._save(http)

    def _save(self, http: LegacyHttpSession) -> None:
        self._unsaved.add(http)
        self._file.save_soon()
        if not self._saving:
            self._saving = True
            self._gateway.spawn(partial(self._file.run, self._update_file))

    def _update_file(self) -> None:
        if self.is_stopping:
            return
        now, kept = time.time() - trio.current_time(), self._file.sessions
        unsaved, self._unsaved = self._unsaved, set()
        for http in unsaved:
            session, key = http.session, hashed(http.key)
            if http.key not in self._sessions or not http.params:
                continue
            uris = {*self._gateway.subscriptions.uris(session), *http.resubscribing}
            kept[key] = KeptSession(
                key=key,
                scope=repr(http.scope),
                principal=http.principal,
                params=Raw(http.params),
                log_level=session.context.log_level,
                subscribed=sorted(uris),
                used_at=now + http.used_at,
            )

    def _restore(
        self, key: str, view: View | None, scope: EndpointScope, principal: Principal
    ) -> LegacyHttpSession | None:
        """Continue a session of an earlier daemon."""
        kept = self._file.sessions.get(hashed(key))
        if kept is None or view is None or (kept.scope, kept.principal) != (repr(scope), principal.name):
            return None
        http = self._new(key, view, scope, principal)
        if not replay_handshake(http.session, kept):
            http.close("it cannot be restored")
            return None
        http.params = bytes(kept.params)
        http.resubscribing = dict.fromkeys(kept.subscribed)
        self.register(http)
        self._gateway.spawn(partial(resubscribe, http.session, http.resubscribing))
        return http

    def _most_dispensable(self) -> LegacyHttpSession:
        """Return the session to end: one that is idle, for the longest time."""
        return max(self._sessions.values(), key=lambda http: (http.is_idle, -http.used_at))

    def find(
        self, key: str, view: View | None, scope: EndpointScope, principal: Principal
    ) -> LegacyHttpSession | None:
        """Return the session `key` if it belongs to this principal, path and server."""
        http = self._sessions.get(key)
        if http is None:
            return None if self.is_stopping else self._restore(key, view, scope, principal)
        if http.scope != scope or http.principal != principal.name:
            return None
        if view is None or not same_view(view, http.session.view):
            self._end(http, "the server was removed")
            return None
        http.used_at = trio.current_time()
        return http

    def close(self, reason: str) -> None:
        """The daemon stops, and the next one continues the sessions."""
        self._unsaved.update(self._sessions.values())
        self._update_file()
        self.is_stopping = True
        sessions, self._sessions = self._sessions, {}
        for http in sessions.values():
            http.close(reason)

    def save_now(self) -> None:
        """Save the sessions that `close` has suspended, without waiting."""
        with suppress(OSError):
            self._file.save_now()

    def _end(self, http: LegacyHttpSession, reason: str) -> None:
        self._sessions.pop(http.key, None)
        self._file.sessions.pop(hashed(http.key), None)
        http.close(reason)
        self._save(http)

    async def _watch(self) -> None:
        """End idle sessions, and their dedicated servers before. Runs as long as there are sessions."""
        while self._sessions:
            await trio.sleep(_WATCH_INTERVAL)
            now = trio.current_time()
            for http in list(self._sessions.values()):
                if not http.is_idle:
                    http.used_at = now
                elif now - http.used_at >= IDLE_TIMEOUT:
                    self._end(http, "idle for too long")
                elif now - http.used_at >= RELEASE_AFTER:
                    self._gateway.dedicated_servers.on_session_closed(http.session)
        self._watching = False

    def delete(self, http: LegacyHttpSession, exchange: HttpExchange) -> None:
        self._end(http, "the client ended its session")
        exchange.respond(204)


def listen(http: LegacyHttpSession, head: Head, exchange: HttpExchange) -> None:
    """Handle GET: open a stream for unrelated messages, or resume a stream after `Last-Event-ID`."""
    last, found = head.get(b"last-event-id"), None
    if last is not None:
        found = http.streams.find(last)
        request = request_of_earlier_daemon(last)
        if request:
            stream = http.streams.new(request)
            stream.attach(exchange)
            text = "mcpd was restarted while this request was in progress"
            stream.send(_lost(request, text, may_have_run=True))
            stream.end()
            return
        if found is None and request is None:
            respond_error(exchange, 400, "unknown `Last-Event-ID`: the stream cannot be resumed")
            return
    if found is not None:
        stream, number = found
        stream.attach(exchange, number)
    else:
        if http.streams.attached_count >= MAX_LISTEN_STREAMS:
            respond_error(exchange, 429, f"a session may have at most {MAX_LISTEN_STREAMS} open streams")
            return
        stream = http.streams.new(standalone=True)
        stream.attach(exchange)
    if stream.standalone:
        http.streams.deliver_pending(stream)


def refuse_unknown_session(head: Head, exchange: HttpExchange) -> None:
    """Handle GET or DELETE in a session that has ended, here or with another replica.

    Who resumes the stream of a request gets an error for this request: after 404, SDKs let the call wait.
    """
    key = request_of(head.get(b"last-event-id") or "")
    if key and head.method == "GET" and accepts_event_stream(head):
        exchange.stream(EVENT_STREAM, EVENT_HEADERS)
        end_with_error(exchange, LinkLost("the session has ended; the call may have run"), key)
    else:
        respond_error(exchange, 404, "unknown or expired session: send initialize again")


def receive(http: LegacyHttpSession, message: Message, exchange: HttpExchange) -> None:
    """Handle POST in a session."""
    if is_request(message):
        http.session.receive(message, LegacyReply(exchange, http, bytes(message.id)))
    elif message.method or message.id is not ABSENT:
        exchange.respond(202)
        http.session.receive(message, NULL_REPLY)
    else:
        respond_error(exchange, 400, _NOT_A_MESSAGE)


def receive_batch(http: LegacyHttpSession, messages: Sequence[Message], exchange: HttpExchange) -> None:
    """Handle POST of a batch in a session."""
    session = http.session
    if not all(message.method or message.id is not ABSENT for message in messages):
        respond_error(exchange, 400, _NOT_A_MESSAGE)
        return
    if not session.accepts_batches:
        text = f"revision {session.version} has no batches: send one message per POST"
        respond_error(exchange, 400, text)
        return
    if any(map(is_initialize, messages)):
        respond_error(exchange, 400, "a batch must not contain initialize")
        return
    requests = count_requests(messages)
    if not requests:
        exchange.respond(202)
    reply = BatchReply(requests, LegacyReply(exchange, http)) if requests else NULL_REPLY
    for message in messages:
        session.receive(message, reply)


def _lost(key: bytes, reason: str, *, may_have_run: bool) -> bytes:
    error = LinkLost(reason, may_have_run=may_have_run)
    return wire.error(key, wire.error_body(error.rpc, error.message, error.data()))


def same_view(one: View, other: View) -> bool:
    """Return whether both show the same servers. One that was removed and added again is different."""
    return one is other or (one.scope is other.scope and one.single is other.single)
