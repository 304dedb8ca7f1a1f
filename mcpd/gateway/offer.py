"""What an attached client is told of its server: what reaches it through a connection that others share.

One session serves every client. What would change it for the others (a subscription, a log level) is
not offered, nor what the server would send unasked: those messages are for the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.supervision.server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import Message

_PASSED_ON = ("tools", "resources", "prompts", "completions")
_METHOD_NOT_FOUND = -32601


def capabilities(server: ManagedServer) -> dict[str, object]:
    """The server's capabilities that a client can rely on; without those of notifications."""
    declared: Mapping[str, object] = server.upstream.capabilities if server.upstream is not None else {}
    return {name: {} for name in _PASSED_ON if isinstance(declared.get(name), Mapping)}


def refuse(message: Message, server: ManagedServer) -> bytes:
    """The response line for a request that is not passed on, since the other clients would notice."""
    words = (
        f"{server.spec.name}: {message.method} is not offered: this server's connection is shared, "
        "and other clients would notice"
    )
    return wire.error(message.key, wire.error_body(_METHOD_NOT_FOUND, words))
