"""How the client says what servers may ask and tell it: in the MCP revisions in which it says so once."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.client.handlers import Handlers
from mcpd.client.link import Link

_REVISION = "2025-11-25"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"


async def open_session(link: Link, handlers: Handlers, identity: Mapping[str, str]) -> None:
    """Also speak MCP on this connection, so that servers can ask and notify the handlers. Raises
    ClientError."""
    if "profile" in identity:
        await link.request("mcpd/attach", {"profile": identity["profile"]})
    client = {"name": identity.get("client", ""), "version": ""}  # without a name, that of the program
    declared = handlers.capabilities()
    hello = {"protocolVersion": _REVISION, "capabilities": declared, "clientInfo": client}
    await link.request("initialize", hello)
    await link.notify("notifications/initialized")
    if handlers.log is not None:
        await link.request("logging/setLevel", {"level": handlers.log_level})
