"""One address for MCP clients of every revision: to which era a request belongs, and what HTTP asks of it."""

from __future__ import annotations

import attrs

from mcpd.api.http_server.connection import Spawn
from mcpd.api.http_server.http_exchange import Exchange
from mcpd.api.http_server.parser import Head
from mcpd.api.mcp_endpoint import legacy, modern
from mcpd.api.mcp_endpoint.frames import PARSE_ERROR, refuse, refuse_as
from mcpd.api.mcp_endpoint.legacy import Who
from mcpd.gateway.gateway import Gateway
from mcpd.gateway.session import Session
from mcpd.gateway.virtual_server import View
from mcpd.model.errors import McpdError
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

_MOST_VIEWS = 8
_ALLOW = b"Allow: GET, POST, DELETE\r\n"
_ONLY_POST = b"Allow: POST\r\n"


@attrs.frozen
class Place:
    """What a path shows: one server, or a profile's servers as one."""

    server: str | None = None
    profile: str | None = None


@attrs.define(eq=False)
class Endpoint:
    """One for the daemon, whatever the way in."""

    gateway: Gateway
    sessions: legacy.Sessions

    def view(self, place: Place) -> View:
        """Raises UnknownServer, UnknownProfile."""
        return self.gateway.view(place.server, place.profile)


class Visitor:
    """One connection at the endpoint. What modern clients do on it is one conversation for each view."""

    def __init__(self, endpoint: Endpoint, who: Who, spawn: Spawn) -> None:
        self._endpoint = endpoint
        self._who = who
        self._spawn = spawn
        self._sessions: dict[Place, Session] = {}

    def handle(self, place: Place, head: Head, body: bytes, exchange: Exchange) -> None:
        method = head.method
        if method == "POST":
            self._post(place, head, body, exchange)
        elif method in ("GET", "DELETE"):
            self._legacy_only(place, head, exchange)
        else:
            refuse(exchange, 405, "POST a message here", headers=_ALLOW)

    def left(self, reason: str) -> None:
        for session in self._sessions.values():
            session.close(reason)
        self._sessions.clear()

    # ── POST ────────────────────────────────────────────────────────────────────────────────────

    def _post(self, place: Place, head: Head, body: bytes, exchange: Exchange) -> None:
        if not _is_acceptable(head, exchange):
            return
        try:
            view = self._endpoint.view(place)
        except McpdError as error:
            refuse_as(exchange, error, b"null")
            return
        version = head.headers.get(b"mcp-protocol-version")
        is_batch = body.lstrip(b" \t\r\n")[:1] == b"["
        try:
            if is_batch:
                messages = [wire.parse(each) for each in wire.split_batch(body)]
            else:
                message = wire.parse(body)
                messages = [message]
                if modern.is_modern(version) or _is_modern_request(message):
                    self._modern(place, view, head, message, exchange)
                    return
        except BadFrame as error:
            refuse(exchange, 400, f"not a JSON-RPC message: {error}", code=PARSE_ERROR)
            return
        self._legacy(place, view, head, messages, exchange, batch=is_batch)

    def _modern(self, place: Place, view: View, head: Head, message: Message, exchange: Exchange) -> None:
        if message.id is ABSENT and message.method:
            exchange.respond(202)  # over HTTP this revision has none that would mean anything
        elif not message.method:
            refuse(exchange, 400, "in this revision clients send requests", key=message.key)
        else:
            modern.answer(head, message, exchange, self._session(place, view))

    def _session(self, place: Place, view: View) -> Session:
        session = self._sessions.get(place)
        if session is not None:
            if legacy.same_view(view, session.view):
                return session
            session.close("its server is no longer there")
        elif len(self._sessions) >= _MOST_VIEWS:
            self.left("another of its many views was needed")
        session = self._endpoint.gateway.open(view, self._who.client, _tell_nobody, self._spawn)
        self._sessions[place] = session
        self._who.speaks(session)
        return session

    def _legacy(
        self,
        place: Place,
        view: View,
        head: Head,
        messages: list[Message],
        exchange: Exchange,
        *,
        batch: bool,
    ) -> None:
        sessions = self._endpoint.sessions
        version = head.headers.get(b"mcp-protocol-version")
        where = str(place)
        if not batch and legacy.opens(messages[0]):
            sessions.open(messages[0], exchange, view, where, self._who)
            return
        key = b"null" if batch else messages[0].key or b"null"
        named = legacy.SESSION in head.headers
        http = sessions.find(head, view, where, self._who.principal) if named else None
        if version is not None and not legacy.knows(version):
            if http is None and not batch and messages[0].method and messages[0].id is not ABSENT:
                # Said by no session of ours, so it is for the modern rules to refuse.
                self._modern(place, view, head, messages[0], exchange)
                return
            words = f"MCP-Protocol-Version {version.decode('latin-1')[:40]!r} is not spoken here"
            refuse(exchange, 400, words, key=key)
        elif not named:
            words = "the session's header is missing: begin with a handshake, or say the revision in `_meta`"
            refuse(exchange, 400, words, key=key)
        elif http is None:
            refuse(exchange, 404, "there is no such session (any more): begin with a new handshake", key=key)
        elif any(not message.method and message.id is ABSENT for message in messages):
            refuse(exchange, 400, "neither a request, nor a notification, nor a response", key=key)
        else:
            legacy.receive(http, messages, exchange, batch=batch)

    # ── GET and DELETE ──────────────────────────────────────────────────────────────────────────

    def _legacy_only(self, place: Place, head: Head, exchange: Exchange) -> None:
        if legacy.SESSION not in head.headers:
            refuse(exchange, 405, "POST a message here", headers=_ONLY_POST)
            return
        try:
            view: View | None = self._endpoint.view(place)
        except McpdError:
            view = None
        sessions = self._endpoint.sessions
        http = sessions.find(head, view, str(place), self._who.principal)
        if http is None:
            refuse(exchange, 404, "there is no such session (any more): begin with a new handshake")
        elif head.method == "DELETE":
            sessions.delete(http, exchange)
        elif not legacy.wants_events(head):
            refuse(exchange, 406, "Accept must list text/event-stream")
        else:
            legacy.listen(http, head, exchange)


def _is_acceptable(head: Head, exchange: Exchange) -> bool:
    """Whether the body is said to be JSON, and both kinds of answer are taken."""
    kind = head.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind != b"application/json":
        refuse(exchange, 415, "Content-Type must be application/json")
        return False
    accept = head.headers.get(b"accept", b"*/*").lower()
    if b"*/*" not in accept and not (b"application/json" in accept and b"text/event-stream" in accept):
        refuse(exchange, 406, "Accept must list application/json and text/event-stream")
        return False
    return True


def _is_modern_request(message: Message) -> bool:
    return bool(message.method) and message.id is not ABSENT and modern.says_modern(message)


def _tell_nobody(_: bytes) -> None:
    """A modern client hears what belongs to no request on its subscription, which is one."""
