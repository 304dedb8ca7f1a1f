"""Continues the session of a client that a kept session describes: repeats what the client has said in it."""

from __future__ import annotations

import time
from hashlib import sha256

import msgspec
import trio
from msgspec import Raw

from mcpd.api.mcp.frames import NULL_REPLY, NullReply
from mcpd.api.mcp.kept_sessions import KeptSession
from mcpd.calls.client_context import Responder
from mcpd.gateway.lists import FEATURES
from mcpd.gateway.requests import ClientRequests
from mcpd.gateway.session import ClientSession
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_MAX_PARAMS = 64 << 10
"""Bytes of `initialize`. A session with more is not kept."""
_FIRST_DELAY, _LAST_DELAY, _MAX_DELAYS = 0.05, 10.0, 20
"""Seconds until a subscription is tried again that its server refuses: it may not be connected yet."""


def handshake_params(params: Raw, session: ClientSession) -> bytes:
    """Return the params of a client's `initialize` that lead to the same session again; empty if it is too
    large to be kept."""
    members = wire.members_or_empty(params) | {"protocolVersion": msgspec.json.encode(session.version)}
    kept = {
        name: Raw(members[name])
        for name in ("protocolVersion", "capabilities", "clientInfo")
        if name in members
    }
    encoded = msgspec.json.encode(kept).replace(b"\r", b" ").replace(b"\n", b" ")
    return encoded if len(encoded) <= _MAX_PARAMS else b""


class _Resubscribed(NullReply):
    """Tells the client that the resource may have changed while nobody looked."""

    def __init__(self, session: ClientSession, uri: str) -> None:
        self._session = session
        self._uri = uri

    def finish(self, frame: bytes, code: int = 0) -> None:
        if not code:
            self._session.notify_resource_updated(b"", self._uri)


def replay_handshake(session: ClientSession, kept: KeptSession) -> bool:
    """Bring a new session to the state of a kept one, except for its subscriptions. Returns whether that
    succeeded."""
    # A late answer to a question of the earlier daemon must not be taken for that to one of ours.
    session.client_requests = ClientRequests(session.send, first=time.time_ns() // 1_000_000)
    try:
        _repeat(session, "initialize", bytes(kept.params))
    except BadFrame:
        return False
    session.receive(wire.parse(wire.notification("notifications/initialized")), NULL_REPLY)
    if kept.log_level:
        _repeat(session, "logging/setLevel", msgspec.json.encode({"level": kept.log_level}))
    return bool(session.version)


async def resubscribe(session: ClientSession, uris: dict[str, None]) -> None:
    """Subscribe to resources again until none of `uris` is left, or it has failed for minutes. The session
    removes those that are subscribed to, or that the client no longer wants.

    The lists may have changed as well, so the client is notified of that first.
    """
    delay, has_told = 0.0, False
    for _ in range(_MAX_DELAYS):
        await trio.sleep(delay)
        delay = min(max(2 * delay, _FIRST_DELAY), _LAST_DELAY)
        if session.is_closed or (has_told and not uris):
            return
        if not session.is_initialized:  # its server is not connected yet
            continue
        if not has_told:
            has_told = True
            for feature in FEATURES:
                session.notify_list_changed(feature)
        for uri in list(uris):
            await trio.lowlevel.checkpoint()  # there may be a thousand
            params = msgspec.json.encode({"uri": uri})
            _repeat(session, "resources/subscribe", params, _Resubscribed(session, uri))


def _repeat(session: ClientSession, method: str, params: bytes, reply: Responder = NULL_REPLY) -> None:
    key = msgspec.json.encode(f"mcpd {method} {sha256(params).hexdigest()[:16]}")
    session.receive(wire.parse(wire.request(key, method, params)), reply)
