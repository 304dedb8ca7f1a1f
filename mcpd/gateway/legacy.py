"""What a client of revisions 2024-11-05 to 2025-11-25 asks of its own hop: handshake, ping."""

from __future__ import annotations

import msgspec

from mcpd import __version__
from mcpd.eras.legacy import VERSIONS
from mcpd.gateway.offer import capabilities, refuse
from mcpd.supervision.server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, Message


def _ping(message: Message, _: ManagedServer) -> bytes:
    return wire.result(message.key, b"{}")


def _initialize(message: Message, server: ManagedServer) -> bytes:
    upstream = server.upstream
    body: dict[str, object] = {
        "protocolVersion": _agreed(message),
        "capabilities": capabilities(server),
        "serverInfo": {"name": "mcpd", "title": f"{server.spec.name} through mcpd", "version": __version__},
    }
    if upstream is not None and upstream.info.instructions:
        body["instructions"] = upstream.info.instructions
    return wire.result(message.key, msgspec.json.encode(body))


def _agreed(message: Message) -> str:
    """The client's version where we know it, else our newest: the client decides whether it can go on."""
    try:
        asked = bytes(wire.members(message.params).get("protocolVersion", b'""')).decode().strip('"')
    except (BadFrame, UnicodeDecodeError):
        asked = ""
    return asked if asked in VERSIONS else VERSIONS[0]


ANSWERS = {
    "ping": _ping,
    "initialize": _initialize,
    "logging/setLevel": refuse,
    "resources/subscribe": refuse,
    "resources/unsubscribe": refuse,
}
"""Method → the response line for a request that is this hop's own."""
