"""What a client of revisions 2024-11-05 to 2025-11-25 asks of its own hop: handshake, ping, interests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Raw

from mcpd import __version__
from mcpd.gateway import call_tasks
from mcpd.gateway.client_context import Request, who_asks
from mcpd.model.errors import McpdError, Overloaded, Unsupported
from mcpd.protocol.legacy import VERSIONS
from mcpd.protocol.upstream_subscriptions import LEVELS
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message

if TYPE_CHECKING:
    from mcpd.gateway.session import Session

NEWEST = VERSIONS[0]
NOT_FOUND = -32002
"""What these revisions say of a resource that there is not."""
_INVALID_PARAMS = -32602
_MOST_ROOTS = 100
MOST_FOLLOWED = 1000
"""Resources that one client may follow: each change of them looks at all."""
_AGREED = 10.0
"""Seconds for a server to agree to tell of a resource; after that it is asked on, and may do so later."""


def _initialize(session: Session, request: Request) -> None:
    members = wire.members(request.params or b"{}")
    session.version = version = _agreed(members.get("protocolVersion"))
    session.peer = _peer(members.get("clientInfo"))
    declared = _mapping(members.get("capabilities"))
    session.asker = who_asks(version, declared, log_level=session.asker.log_level)

    def greet() -> None:
        body: dict[str, object] = {
            "protocolVersion": version,
            "capabilities": session.view.capabilities(version),
            "serverInfo": {"name": "mcpd", "title": session.view.title, "version": __version__},
        }
        instructions = session.view.instructions()
        if instructions:
            body["instructions"] = instructions
        session.answer(request, msgspec.json.encode(body))
        session.greeted = True

    call_tasks.once_known(session, request, greet)


def _agreed(asked: Raw | None) -> str:
    """The client's version where we know it, else our newest: the client decides whether it can go on."""
    try:
        version = "" if asked is None else msgspec.json.decode(asked, type=str)
    except msgspec.MsgspecError:
        version = ""
    return version if version in VERSIONS else NEWEST


def _mapping(raw: Raw | None) -> Mapping[str, object]:
    try:
        return wire.mapping(raw)
    except BadFrame:
        return {}


def _peer(raw: Raw | None) -> str:
    info = _mapping(raw)
    words = [str(info[name])[:80] for name in ("name", "version") if isinstance(info.get(name), str)]
    return " ".join(words)


def _ping(session: Session, request: Request) -> None:
    session.answer(request, b"{}")


def _set_level(session: Session, request: Request) -> None:
    members = wire.members(request.params or b"{}")
    try:
        level = msgspec.json.decode(members.get("level", Raw(b"null")), type=str)
    except msgspec.MsgspecError:
        level = ""
    if level not in LEVELS:
        session.fail(request, _INVALID_PARAMS, f"`level` must be one of {', '.join(LEVELS)}")
        return
    session.asker = msgspec.structs.replace(session.asker, log_level=level)
    session.gateway.level_changed(session)
    session.answer(request, b"{}")


def _subscribe(session: Session, request: Request) -> None:
    uri = _uri(request)
    server, own = session.view.resource(uri)
    server = session.gateway.instances.of(session, server)
    name, subscriptions = server.spec.name, session.gateway.subscriptions

    async def when_agreed() -> None:
        upstream = await session.gateway.core.wait_ready(server)
        await trio.lowlevel.checkpoint_if_cancelled()
        if not upstream.has("resources", "subscribe"):
            raise Unsupported(f"{name} does not tell when a resource changes", server=name)
        if subscriptions.of(session) >= MOST_FOLLOWED:
            words = f"{MOST_FOLLOWED} resources are the most that a client may follow; nothing was asked"
            raise Overloaded(words, server=name)
        followed_before = subscriptions.add(session, b"", uri, server, own)
        outcome = ""
        try:
            with trio.move_on_after(_AGREED):
                outcome = await server.interests.wait_subscribed(own)
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            if not followed_before:
                subscriptions.drop(session, b"", uri)
            raise
        if outcome:
            subscriptions.drop(session, b"", uri)
            raise Unsupported(f"{name}: {outcome}", server=name)
        session.answer(request, b"{}")

    call_tasks.later(session, request, when_agreed)


def _unsubscribe(session: Session, request: Request) -> None:
    session.gateway.subscriptions.drop(session, b"", _uri(request))
    session.answer(request, b"{}")


def _uri(request: Request) -> str:
    """Raises BadFrame."""
    members = wire.members(request.params or b"{}")
    try:
        return msgspec.json.decode(members.get("uri", Raw(b"null")), type=str)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"`uri`: {error}") from None


METHODS: Mapping[str, Callable[[Session, Request], None]] = {
    "initialize": _initialize,
    "ping": _ping,
    "logging/setLevel": _set_level,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
}
"""What is answered here, for a client of these revisions."""


def _ask_roots(session: Session) -> None:
    """Learn the client's roots: servers are told those of all who use them."""
    if not session.asker.can("roots"):
        return
    session.asks_roots += 1
    if session.asks_roots > 1:
        return  # an answer is on its way; after it, once more, however often they have changed

    def answered(message: Message | None) -> None:
        changed_since, session.asks_roots = session.asks_roots > 1, 0
        if message is None:
            return
        if message.result is not ABSENT:
            _take_roots(session, message.result)
        if changed_since:
            _ask_roots(session)

    session.outstanding.ask("roots/list", b"", None, answered)


def _take_roots(session: Session, result: Raw) -> None:
    try:
        given = wire.members(result).get("roots", Raw(b"[]"))
        session.roots = tuple(msgspec.json.decode(given, type=list[Raw]))[:_MOST_ROOTS]
    except (BadFrame, msgspec.MsgspecError):
        return
    session.gateway.roots_changed(session)


NOTIFICATIONS: Mapping[str, Callable[[Session], None]] = {
    "notifications/initialized": _ask_roots,
    "notifications/roots/list_changed": _ask_roots,
}


def not_found(key: bytes, error: McpdError) -> bytes:
    """The response for a resource that there is not."""
    return wire.error(key, wire.error_body(NOT_FOUND, error.message, error.data()))
