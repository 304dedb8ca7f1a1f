"""What a client of revision 2026-07-28 says with every request, and what it asks of its own hop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import msgspec
from msgspec import Raw

from mcpd import __version__
from mcpd.gateway import call_tasks
from mcpd.gateway.client_context import Asker, Request, who_asks
from mcpd.model.errors import McpdError, UnsupportedRevision
from mcpd.protocol.modern import VERSIONS
from mcpd.protocol.negotiate import PROTOCOL_VERSIONS
from mcpd.protocol.upstream_subscriptions import LEVELS
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame
from mcpd.wire.request_meta import RESERVED_PREFIX, may_have_meta

if TYPE_CHECKING:
    from mcpd.gateway.session import Session
    from mcpd.supervision.managed_server import ManagedServer

_VERSION = f"{RESERVED_PREFIX}protocolVersion"
_CAPABILITIES = f"{RESERVED_PREFIX}clientCapabilities"
_LEVEL = f"{RESERVED_PREFIX}logLevel"
_SUBSCRIPTION = f"{RESERVED_PREFIX}subscriptionId"
_LISTS = ("tools", "prompts", "resources")
_MOST_WATCHED = 1000
_REMEMBERED = 4096
"""Bytes of a `_meta` that is remembered: hundreds are, and clients may put anything into theirs."""
_CACHEABLE: Mapping[str, object] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def open_meta(request: Request) -> None:
    """Take from a request what its `_meta` says to its next hop: the progress token and, in this revision,
    who asks. Where it says nothing else, the params go on without it.

    Raises BadFrame for what is malformed, UnsupportedRevision.
    """
    members = wire.members(request.params)
    raw = members.get("_meta")
    if raw is None:
        return
    meta = bytes(raw)
    request.token, asker, says_more = _read(meta) if len(meta) <= _REMEMBERED else _read.__wrapped__(meta)
    if asker is not None:
        request.asker = asker
    if says_more:
        return
    params, head = request.params, b'{"_meta":' + raw
    if params.startswith(head + b","):
        params = b"{" + params[len(head) + 1 :]
    else:
        del members["_meta"]
        params = msgspec.json.encode(members)
    request.params = params
    request.plain = not may_have_meta(params)


@functools.lru_cache(maxsize=512)
def _read(raw: bytes) -> tuple[bytes, Asker | None, bool]:
    """Token, asker, and whether anything is said to the server. Remembered: clients repeat themselves."""
    meta = wire.members(raw)
    token = bytes(meta.get("progressToken", b""))
    says_more = any(name != "progressToken" and not name.startswith(RESERVED_PREFIX) for name in meta)
    if _VERSION not in meta:
        return token, None, says_more
    version = _string(meta, _VERSION)
    if version not in VERSIONS:
        raise UnsupportedRevision(version, VERSIONS)
    level = _string(meta, _LEVEL) if _LEVEL in meta else ""
    return token, _asker(version, bytes(meta.get(_CAPABILITIES, b"null")), level), says_more


def _asker(version: str, declared: bytes, level: str) -> Asker:
    """One for all that say the same, whatever their tokens. Raises BadFrame."""
    known = _known_asker if len(declared) <= _REMEMBERED else _known_asker.__wrapped__
    return known(version, declared, level)


@functools.lru_cache(maxsize=256)
def _known_asker(version: str, declared: bytes, level: str) -> Asker:
    capabilities = wire.value(declared)
    if not isinstance(capabilities, dict):
        raise BadFrame(f"`_meta` must say {_CAPABILITIES}, an object")
    if level and level not in LEVELS:
        raise BadFrame(f"{_LEVEL} must be one of {', '.join(LEVELS)}")
    return who_asks(version, capabilities, modern=True, log_level=level)


def _string(members: Mapping[str, Raw], name: str) -> str:
    try:
        return msgspec.json.decode(members[name], type=str)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"{name}: {error}") from None


def _discover(session: Session, request: Request) -> None:
    call_tasks.once_known(session, request, lambda: _tell_all(session, request))


def _tell_all(session: Session, request: Request) -> None:
    body: dict[str, object] = {
        **_CACHEABLE,
        "supportedVersions": PROTOCOL_VERSIONS,
        "capabilities": session.view.capabilities(request.asker.version),
        "_meta": {
            f"{RESERVED_PREFIX}serverInfo": {
                "name": "mcpd",
                "title": session.view.title,
                "version": __version__,
            }
        },
    }
    instructions = session.view.instructions()
    if instructions:
        body["instructions"] = instructions
    session.answer(request, msgspec.json.encode(body))


# ── changes, as long as the client listens ──────────────────────────────────────────────────────────


@attrs.frozen(eq=False)
class Listen:
    """One subscription: everything told on it carries the id of the request that opened it."""

    request: Request
    lists: frozenset[str]

    def tell(self, method: str, params: Mapping[str, object] | None = None) -> None:
        body = {**(params or {}), "_meta": {_SUBSCRIPTION: self.request.key_value}}
        self.request.reply.note(wire.notification(method, msgspec.json.encode(body)))

    def end(self) -> None:
        """The subscription is over, in order (the daemon stops)."""
        result = {"resultType": "complete", "_meta": {_SUBSCRIPTION: self.request.key_value}}
        self.request.reply.finish(wire.result(self.request.key, msgspec.json.encode(result)))


def _listen(session: Session, request: Request) -> None:
    """Acknowledged first, with what will be told; what nobody can tell is left out."""
    wanted = wire.value(wire.members(request.params).get("notifications", Raw(b"null")))
    if not isinstance(wanted, dict):
        raise BadFrame("`notifications` must be an object")
    offered = session.view.capabilities(request.asker.version)
    lists = [name for name in _LISTS if wanted.get(f"{name}ListChanged") is True and name in offered]
    listen = Listen(request, frozenset(lists))
    asked = wanted.get("resourceSubscriptions")
    watched = _watched(session, asked if isinstance(asked, list) else [])
    honoured: dict[str, object] = {f"{name}ListChanged": True for name in lists}
    if watched:
        honoured["resourceSubscriptions"] = [uri for uri, _, _ in watched]
    session.listens[request.key] = listen
    listen.tell("notifications/subscriptions/acknowledged", {"notifications": honoured})
    for uri, server, own in watched:
        session.gateway.subscriptions.add(session, request.key, uri, server, own)


def _watched(session: Session, uris: Sequence[object]) -> list[tuple[str, ManagedServer, str]]:
    found = []
    for uri in uris[:_MOST_WATCHED]:
        if not isinstance(uri, str):
            raise BadFrame("`resourceSubscriptions` must be a list of URIs")
        try:
            server, own = session.view.resource(uri)
        except McpdError:
            continue
        server = session.gateway.instances.of(session, server)
        if server.upstream is None or server.upstream.has("resources", "subscribe"):
            found.append((uri, server, own))
    return found


METHODS: Mapping[str, Callable[[Session, Request], None]] = {
    "server/discover": _discover,
    "subscriptions/listen": _listen,
}
"""What is answered here, for a client of this revision."""
