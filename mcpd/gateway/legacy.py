"""Clients of revisions 2024-11-05 to 2025-11-25: handshake, subscriptions, roots, requests to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest, client_name, make_client_context, read_capabilities
from mcpd.gateway.session import ClientSession
from mcpd.gateway.subscriptions import MAX_SUBSCRIPTIONS, MAX_URI, SUBSCRIBE_TIMEOUT
from mcpd.gateway.views import server_info
from mcpd.model.errors import Overloaded, Unsupported
from mcpd.protocol.legacy import VERSIONS
from mcpd.protocol.upstream_session import LEVELS
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message, TooLarge

_INVALID_PARAMS = -32602
_MAX_ROOTS = 100
_MAX_ROOTS_BYTES = 256 * 1024
"""Limits for the roots of one client, which are kept; further roots are ignored."""


def _initialize(session: ClientSession, request: ClientRequest) -> None:
    members = wire.members(request.params or b"{}")
    session.version = version = wire.string_or(members, "protocolVersion")
    if version not in VERSIONS:  # the client decides whether it can speak our newest
        session.version = version = VERSIONS[0]
    session.peer = client_name(members.get("clientInfo"))
    declared = _read_capabilities(members.get("capabilities", Raw(b"{}")))
    session.context = make_client_context(version, declared, log_level=session.context.log_level)
    if session.context.prefers_legacy:
        session.view = session.view.for_legacy_clients()

    def respond() -> None:
        body: dict[str, object] = {
            "protocolVersion": version,
            "capabilities": session.view.capabilities(version),
            "serverInfo": server_info(session.view),
        }
        instructions = session.view.instructions()
        if instructions:
            body["instructions"] = instructions
        session.respond(request, msgspec.json.encode(body))
        session.is_initialized = True
        session.prepare_decisions()
        companions = session.gateway.calls.connections.companions
        companions.open_for(session, session.context, session.view.servers())

    session.when_catalog_known(request, respond)


def _read_capabilities(raw: Raw) -> Mapping[str, object]:
    """Return the declared capabilities; none if they are malformed. Raises TooLarge."""
    try:
        return read_capabilities(raw) or {}
    except TooLarge:
        raise
    except BadFrame:
        return {}


def _ping(session: ClientSession, request: ClientRequest) -> None:
    session.respond(request, b"{}")


def _set_level(session: ClientSession, request: ClientRequest) -> None:
    members = wire.members(request.params or b"{}")
    level = wire.string_or(members, "level")
    if level not in LEVELS:
        session.respond_error(request, _INVALID_PARAMS, f"`level` must be one of {', '.join(LEVELS)}")
        return
    session.context = msgspec.structs.replace(session.context, log_level=level)
    session.gateway.on_log_level_changed(session)
    session.on_settled("")
    session.respond(request, b"{}")


def _subscribe(session: ClientSession, request: ClientRequest) -> None:
    uri = wire.string(wire.members(request.params or b"{}"), "uri")
    if len(uri) > MAX_URI:
        text = f"`uri` is {len(uri)} characters long, and a client can subscribe to at most {MAX_URI}"
        raise BadFrame(text)
    server, own = session.view.resource(uri)
    session.check_resource(request.context, server, own)
    server = session.gateway.dedicated_servers.server_for(session, server)
    name, subscriptions = server.spec.name, session.gateway.subscriptions
    companions = session.gateway.calls.connections.companions

    async def when_agreed() -> None:
        used = await companions.wait_connected(session, session.context, server)
        await trio.lowlevel.checkpoint_if_cancelled()
        upstream = used.upstream
        if upstream is None:
            raise session.gateway.core.not_ready_error(used)
        if not upstream.may_take_subscriptions:
            raise Unsupported(f"{name} does not support resource subscriptions", server=name)
        if subscriptions.count(session) >= MAX_SUBSCRIPTIONS:
            text = f"a client can subscribe to at most {MAX_SUBSCRIPTIONS} resources; not subscribed"
            raise Overloaded(text, server=name)
        followed_before = subscriptions.add(session, b"", uri, used, own)
        outcome = ""
        try:
            with trio.move_on_after(SUBSCRIBE_TIMEOUT):
                outcome = await used.interests.wait_subscribed(own)
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            if not followed_before:
                subscriptions.drop(session, b"", uri)
            raise
        if outcome:
            subscriptions.drop(session, b"", uri)
            raise Unsupported(f"{name}: {outcome}", server=name)
        session.on_settled(uri)
        session.respond(request, b"{}")

    session.spawn_request(request, when_agreed)


def _unsubscribe(session: ClientSession, request: ClientRequest) -> None:
    uri = wire.string(wire.members(request.params or b"{}"), "uri")
    session.gateway.subscriptions.drop(session, b"", uri)
    session.on_settled(uri)
    session.respond(request, b"{}")


METHODS: Mapping[str, Callable[[ClientSession, ClientRequest], None]] = {
    "initialize": _initialize,
    "ping": _ping,
    "logging/setLevel": _set_level,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
}
"""The methods that mcpd answers itself for these clients."""


def _request_roots(session: ClientSession) -> None:
    """Fetch the client's roots: servers get the roots of all clients that use them."""
    if not session.context.supports("roots"):
        return
    session.roots_requests += 1
    if session.roots_requests > 1:
        return  # a response is under way; ask once more after it, however often the roots have changed

    def answered(message: Message | None) -> None:
        changed_since, session.roots_requests = session.roots_requests > 1, 0
        if message is None:
            return
        if message.result is not ABSENT:
            _store_roots(session, message.result)
        if changed_since:
            _request_roots(session)

    session.client_requests.send_request("roots/list", b"", None, answered)


def _store_roots(session: ClientSession, result: Raw) -> None:
    try:
        declared, _ = wire.first_items(wire.members(result).get("roots", Raw(b"[]")), _MAX_ROOTS)
    except BadFrame:
        return
    if sum(map(len, declared)) > _MAX_ROOTS_BYTES:
        declared = []
    session.roots = tuple(Raw(bytes(root)) for root in declared)
    session.gateway.on_roots_changed(session)


NOTIFICATIONS: Mapping[str, Callable[[ClientSession], None]] = {
    "notifications/initialized": _request_roots,
    "notifications/roots/list_changed": _request_roots,
}
