"""What a client of revision 2026-07-28 asks of its own hop: discovery."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mcpd import __version__
from mcpd.eras.negotiate import PROTOCOL_VERSIONS
from mcpd.gateway.offer import capabilities, refuse
from mcpd.supervision.server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import Message
from mcpd.wire.meta import RESERVED

_COMPLETE: Mapping[str, object] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What every result of a list carries in this revision."""


def complete(request: Message) -> Mapping[str, object]:
    """Those members, for a client that asks in this revision; older ones do not expect them."""
    return _COMPLETE if b'"%bprotocolVersion"' % RESERVED.encode() in bytes(request.params) else {}


def _discover(message: Message, server: ManagedServer) -> bytes:
    upstream = server.upstream
    body: dict[str, object] = {
        **_COMPLETE,
        "supportedVersions": PROTOCOL_VERSIONS,
        "capabilities": capabilities(server),
        "_meta": {
            f"{RESERVED}serverInfo": {
                "name": "mcpd",
                "title": f"{server.spec.name} through mcpd",
                "version": __version__,
            }
        },
    }
    if upstream is not None and upstream.info.instructions:
        body["instructions"] = upstream.info.instructions
    return wire.result(message.key, msgspec.json.encode(body))


ANSWERS = {"server/discover": _discover, "subscriptions/listen": refuse}
"""Method → the response line for a request that is this hop's own."""
