"""Clients of revision 2026-07-28: `_meta`, `server/discover`, `subscriptions/listen`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.client_context import (
    ClientContext,
    ClientRequest,
    client_name,
    make_client_context,
    read_capabilities,
)
from mcpd.gateway.session import ClientSession
from mcpd.gateway.subscriptions import MAX_SUBSCRIPTIONS, MAX_URI, SUBSCRIBE_TIMEOUT
from mcpd.gateway.views import server_info
from mcpd.model.errors import McpdError, Overloaded, UnsupportedRevision
from mcpd.protocol.modern import VERSIONS
from mcpd.protocol.negotiate import PROTOCOL_VERSIONS
from mcpd.protocol.upstream_session import LEVELS
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import RESERVED_PREFIX, BadFrame, may_have_meta

_VERSION = f"{RESERVED_PREFIX}protocolVersion"
_CAPABILITIES = f"{RESERVED_PREFIX}clientCapabilities"
_CLIENT_INFO = f"{RESERVED_PREFIX}clientInfo"
_LEVEL = f"{RESERVED_PREFIX}logLevel"
_SUBSCRIPTION = f"{RESERVED_PREFIX}subscriptionId"
_LISTS = ("tools", "prompts", "resources")
_MAX_LISTENS = 16
"""Open `subscriptions/listen` requests of one client: each gets every notification."""
_MAX_BEGINNING = 64 * 1024
"""Bytes of the params in which `_meta` is looked for. Searching megabytes takes 1.5 ms for each."""
_MAX_CACHED_META = 1024
"""Larger `_meta` objects are not cached, so that the caches stay below 10 MB whatever clients send."""
_Resource = tuple[str, ManagedServer, str]
"""A resource to subscribe to: the client's URI, its server, and the server's own URI."""
_NOT_CACHEABLE: Mapping[str, object] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


class _ClientParams(msgspec.Struct, gc=False):
    meta: Raw = msgspec.field(name="_meta", default=Raw(b""))


_decode_meta = msgspec.json.Decoder(_ClientParams).decode


def apply_request_meta(request: ClientRequest) -> None:
    """Read from `_meta` what is meant for mcpd: the progress token and, in this revision, the client's
    context. If nothing else is in it, `_meta` is removed from the params.

    Raises BadFrame if it is malformed, UnsupportedRevision.
    """
    params = request.params
    try:
        meta = bytes(_decode_meta(params).meta)
    except wire.DECODE_ERRORS as error:
        raise BadFrame(str(error)) from None
    if meta in (b"", b"null"):
        return
    request.progress_token, context, says_more = (
        _parse_meta(meta) if len(meta) <= _MAX_CACHED_META else _parse_meta.__wrapped__(meta)
    )
    if context is not None:
        request.context = context
    if says_more:
        return
    member = b'"_meta":%b,' % meta
    at = params.find(member, 0, _MAX_BEGINNING)
    if at > 0 and params.find(b'"arguments"', 0, at) < 0:  # it is a member of the params themselves
        view = memoryview(params)
        params = b"".join((view[:at], view[at + len(member) :]))
    else:
        members = wire.members(params)
        del members["_meta"]
        params = wire.join_members(members)
    request.params = params
    # A second `_meta` would have to be dropped. Nobody writes one behind megabytes of arguments.
    request.has_no_meta = not may_have_meta(params[:_MAX_BEGINNING])


@functools.lru_cache(maxsize=128)
def _parse_meta(raw: bytes) -> tuple[bytes, ClientContext | None, bool]:
    """Return token, context, and whether `_meta` holds more. Cached, because clients repeat themselves."""
    meta = wire.members(raw)
    token = bytes(meta.get("progressToken", b"")).removeprefix(b"null")
    says_more = any(name != "progressToken" and not name.startswith(RESERVED_PREFIX) for name in meta)
    if _VERSION not in meta:
        return token, None, says_more
    version = wire.string(meta, _VERSION)
    if version not in VERSIONS:
        raise UnsupportedRevision(version, VERSIONS)
    level = wire.string(meta, _LEVEL) if _LEVEL in meta else ""
    name = client_name(meta.get(_CLIENT_INFO))
    declared = bytes(meta.get(_CAPABILITIES, b"null"))
    known = _cached_context if len(declared) <= _MAX_CACHED_META else _cached_context.__wrapped__
    return token, known(version, declared, level, name), says_more


@functools.lru_cache(maxsize=64)
def _cached_context(version: str, declared: bytes, level: str, name: str) -> ClientContext:
    """Return one shared context for equal declarations. Raises BadFrame."""
    capabilities = read_capabilities(declared)
    if capabilities is None:
        raise BadFrame(f"`_meta` must contain {_CAPABILITIES}, an object")
    if level and level not in LEVELS:
        raise BadFrame(f"{_LEVEL} must be one of {', '.join(LEVELS)}")
    return make_client_context(version, capabilities, modern=True, log_level=level, client_name=name)


def _discover(session: ClientSession, request: ClientRequest) -> None:
    session.when_catalog_known(request, lambda: _send_discover_result(session, request))


def _send_discover_result(session: ClientSession, request: ClientRequest) -> None:
    body: dict[str, object] = {
        **_NOT_CACHEABLE,
        "supportedVersions": PROTOCOL_VERSIONS,
        "capabilities": session.view.capabilities(request.context.version),
        "_meta": {f"{RESERVED_PREFIX}serverInfo": server_info(session.view)},
    }
    instructions = session.view.instructions()
    if instructions:
        body["instructions"] = instructions
    session.respond(request, msgspec.json.encode(body))


class ClientListenStream(msgspec.Struct, frozen=True, eq=False):
    """One open `subscriptions/listen` request. Every notification on it carries the request's id."""

    request: ClientRequest
    features: frozenset[str]

    def notify(self, method: str, params: Mapping[str, object] | None = None) -> None:
        body = {**(params or {}), "_meta": {_SUBSCRIPTION: self.request.raw_key}}
        self.request.responder.send(wire.notification(method, msgspec.json.encode(body)))

    def end(self) -> None:
        """End the subscription with a result (the daemon stops)."""
        result = {"resultType": "complete", "_meta": {_SUBSCRIPTION: self.request.raw_key}}
        self.request.responder.finish(wire.result(self.request.key, msgspec.json.encode(result)))


def _listen(session: ClientSession, request: ClientRequest) -> None:
    """Acknowledge first, listing what will be reported; what no server can report is left out.

    A server that does not declare subscriptions is asked before they are acknowledged.
    """
    wanted = wire.value(wire.members(request.params).get("notifications", Raw(b"null")))
    if not isinstance(wanted, dict):
        raise BadFrame("`notifications` must be an object")
    if len(session.listen_streams) >= _MAX_LISTENS:
        raise Overloaded(f"a client can have at most {_MAX_LISTENS} open subscriptions/listen requests")
    offered = session.view.capabilities(request.context.version)
    lists = [name for name in _LISTS if wanted.get(f"{name}ListChanged") is True and name in offered]
    stream = ClientListenStream(request, frozenset(lists))
    uris = wanted.get("resourceSubscriptions")
    resources = _resolve_resources(session, request.context, uris if isinstance(uris, list) else [])
    subscriptions = session.gateway.subscriptions

    def acknowledge(confirmed: Sequence[_Resource]) -> None:
        accepted: dict[str, object] = {f"{name}ListChanged": True for name in lists}
        if confirmed:
            accepted["resourceSubscriptions"] = [uri for uri, _, _ in confirmed]
        session.listen_streams[request.key] = stream
        stream.notify("notifications/subscriptions/acknowledged", {"notifications": accepted})

    if all(_declares_subscriptions(server) for _, server, _ in resources):
        acknowledge(resources)
    else:
        session.spawn_request(request, lambda: _ask_servers(session, request, resources, acknowledge))
    subscriptions.add_all(session, request.key, resources)


async def _ask_servers(
    session: ClientSession,
    request: ClientRequest,
    resources: Sequence[_Resource],
    acknowledge: Callable[[Sequence[_Resource]], None],
) -> None:
    """Acknowledge once the servers that do not declare subscriptions have answered, or after a while."""
    subscriptions = session.gateway.subscriptions
    asked = [(server, own) for _, server, own in resources if not _declares_subscriptions(server)]
    try:
        with trio.move_on_after(SUBSCRIBE_TIMEOUT):
            for server, own in asked:
                await server.interests.wait_subscribed(own)
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        subscriptions.on_stream_closed(session, request.key)
        raise
    refused = {uri for uri, server, own in resources if server.interests.subscribe_result(own)}
    subscriptions.drop_all(session, request.key, refused)
    acknowledge([resource for resource in resources if resource[0] not in refused])


def _declares_subscriptions(server: ManagedServer) -> bool:
    return server.upstream is None or server.upstream.has("resources", "subscribe")


def _resolve_resources(
    session: ClientSession, context: ClientContext, uris: Sequence[object]
) -> list[_Resource]:
    """Return the resources that can be subscribed to. Those beyond a limit are left out, too."""
    found = []
    room = MAX_SUBSCRIPTIONS - session.gateway.subscriptions.count(session)
    for uri in uris[: max(0, room)]:
        if not isinstance(uri, str):
            raise BadFrame("`resourceSubscriptions` must be a list of URIs")
        if len(uri) > MAX_URI:
            continue
        try:
            server, own = session.view.resource(uri)
            session.check_resource(context, server, own)
        except McpdError:
            continue
        server = session.gateway.dedicated_servers.server_for(session, server)
        if server.upstream is None or server.upstream.may_take_subscriptions:
            found.append((uri, server, own))
    return found


METHODS: Mapping[str, Callable[[ClientSession, ClientRequest], None]] = {
    "server/discover": _discover,
    "subscriptions/listen": _listen,
}
"""The methods that mcpd answers itself for clients of this revision."""
