"""Revisions 2024-11-05 to 2025-11-25: a handshake, then a session in which both sides may ask."""

from __future__ import annotations

import attrs

from mcpd import __version__
from mcpd.eras.base import (
    CLIENT_NAME,
    FEATURES,
    Hooks,
    Upstream,
    ask,
    capabilities_of,
    open_result,
    server_info,
    tell,
)
from mcpd.model.errors import NoCommonVersion, shorten
from mcpd.transports.base import Channel, Dialect
from mcpd.wire.message import Message

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first."""
BATCHES_IN = "2025-03-26"
"""The one revision whose messages may come in arrays."""

_METHOD_NOT_FOUND = -32601


def dialect(version: str = "") -> Dialect:
    """How messages are dressed: before the handshake, and after it has agreed on `version`."""
    headers = {"MCP-Protocol-Version": version} if version else {}
    return Dialect(
        headers=lambda method, frame: headers,
        session_header="Mcp-Session-Id",
        opening=not version,
        resumable=True,
    )


@attrs.define(eq=False)
class _Inbound:
    """What a legacy server may begin. It is never left waiting: pings are answered, and what nobody
    takes on is refused."""

    link: Channel
    hooks: Hooks

    def on_request(self, message: Message) -> None:
        if message.method == "ping":
            self.link.respond(message, b"{}")
        elif self.hooks.asked is None or not self.hooks.asked(self.link, message):
            self.link.refuse(message, _METHOD_NOT_FOUND, f"mcpd does not offer {shorten(message.method, 60)}")

    def on_notification(self, message: Message) -> None:
        tell(self.hooks, message)


async def initialize(link: Channel, hooks: Hooks, version: str = VERSIONS[0]) -> Upstream:
    """Do the handshake. Raises UpstreamRefused, NoCommonVersion, ProtocolViolation, LinkLost.

    Requests of the server are answered from before the handshake on: some ask for roots at once,
    and would wait for ever.
    """
    link.speak(dialect())
    link.inbound = _Inbound(link, hooks)
    params = {
        "protocolVersion": version,
        "capabilities": hooks.capabilities,
        "clientInfo": {"name": CLIENT_NAME, "version": __version__},
    }
    answer = await ask(link, "initialize", params, cancellable=False)
    body = open_result(link.name, "initialize", answer)
    agreed = body.get("protocolVersion")
    if agreed not in VERSIONS:
        raise NoCommonVersion(
            f"{link.name}: speaks protocol {shorten(str(agreed), 40)}; known are {', '.join(VERSIONS)}",
            server=link.name,
        )
    link.batches = agreed == BATCHES_IN
    link.speak(dialect(str(agreed)))
    link.notify("notifications/initialized")
    await link.flushed()  # a request that overtakes it is refused by some
    upstream = Upstream(
        link=link,
        era="legacy",
        version=str(agreed),
        info=server_info(body.get("serverInfo"), body.get("instructions")),
        capabilities=capabilities_of(body),
        ping_method="ping",
    )
    if (
        any(upstream.has(feature, "listChanged") for feature in FEATURES)
        or upstream.has("logging")
        or upstream.has("resources", "subscribe")
        or hooks.capabilities  # then it may ask, and some do so outside of the call that it is about
    ):
        upstream.follow = _Follower(link, hooks, upstream).run
    return upstream


@attrs.define(eq=False)
class _Follower:
    """Listens to what the server says unasked, and lists anew what it may have said to nobody."""

    link: Channel
    hooks: Hooks
    upstream: Upstream

    async def run(self) -> None:
        try:
            await self.link.listen(self._missed, self.upstream.hearing.set)
        finally:
            self.upstream.hearing.set()

    def _missed(self) -> None:
        for feature in FEATURES:
            if self.upstream.has(feature, "listChanged"):
                self.hooks.changed(feature)
