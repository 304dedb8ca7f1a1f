"""Revisions 2024-11-05 to 2025-11-25: a handshake, then a session in which both sides may ask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs
import trio

from mcpd import __version__
from mcpd.model.errors import McpdError, NoCommonVersion, Overloaded
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import (
    CLIENT_NAME,
    FEATURES,
    Hooks,
    Upstream,
    ask,
    capabilities_of,
    may_have_changed,
    open_result,
    server_info,
    tell,
)
from mcpd.transports.base import Channel, Dialect
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire.message import Message

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first."""
BATCHES_IN = "2025-03-26"
"""The one revision whose messages may come in arrays."""

_METHOD_NOT_FOUND = -32601
_PATIENCE = 30.0
"""Seconds for a server to agree to what clients want to hear."""
_ATTEMPTS = 30
_AT_ONCE = 8
"""Of these requests: clients' own must not have to wait for their turn behind thousands."""
_EAR = 1.0


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

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None:
        if message.method == "ping":
            self.link.respond(message, b"{}")
        elif self.hooks.asked is None or not self.hooks.asked(self.link, message, exchange):
            self.link.refuse(message, _METHOD_NOT_FOUND, f"mcpd does not offer {shorten(message.method, 60)}")

    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None:
        tell(self.hooks, message, exchange)


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
    upstream.takes_tasks = _takes_tasks(upstream.capabilities)
    if "roots" in hooks.capabilities:
        upstream.roots_changed = partial(link.notify, "notifications/roots/list_changed")
    upstream.tells.update(feature for feature in FEATURES if upstream.has(feature, "listChanged"))
    follower = _Follower(link, hooks, upstream)
    upstream.follow = follower.run
    follower.speaks = bool(
        upstream.tells
        or upstream.has("logging")
        or upstream.has("resources", "subscribe")
        or hooks.capabilities  # then it may ask, and some do so outside of the call that it is about
    )
    return upstream


def _takes_tasks(capabilities: Mapping[str, object]) -> bool:
    declared: object = capabilities
    for name in ("tasks", "requests", "tools", "call"):
        declared = declared.get(name) if isinstance(declared, Mapping) else None
    return isinstance(declared, Mapping)


@attrs.define(eq=False)
class _Follower:
    """Listens to what the server says unasked, lists anew what it may have said to nobody, and keeps
    the server to what clients want to hear."""

    link: Channel
    hooks: Hooks
    upstream: Upstream
    followed: set[str] = attrs.field(factory=set)
    """What it was asked to tell of, and agreed."""
    level: str | None = None
    """What it was last told of it."""
    turns: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(_AT_ONCE))
    speaks: bool = True
    """Whether it may say anything unasked."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            nursery.start_soon(self._fulfil)

    async def _listen(self) -> None:
        try:
            if self.speaks:
                await self.link.listen(self._missed, self.upstream.hearing.set)
        finally:
            self.upstream.hearing.set()

    def _missed(self) -> None:
        for feature in self.upstream.tells:
            self.hooks.changed(feature)
        for uri in sorted(self.followed):
            may_have_changed(self.hooks, uri)

    async def _fulfil(self) -> None:
        """Tell the server of every change of the interests; what it refuses is not asked again."""
        interests, can_tell = self.hooks.interests, self.upstream.has("resources", "subscribe")
        with trio.move_on_after(_EAR):  # what it tells before we listen is told to nobody
            await self.upstream.hearing.wait()
        while self.link.ended is None:
            changed, wanted = interests.changed, interests.resources
            async with trio.open_nursery() as nursery:
                if self.upstream.has("logging") and interests.log_level not in (None, self.level):
                    nursery.start_soon(self._set_level, interests.log_level)
                for uri in self.followed - wanted:
                    nursery.start_soon(self._unsubscribe, uri)
                for uri in wanted - self.followed:
                    if not can_tell:
                        interests.refused(uri, "it does not tell of changes of its resources")
                    elif not interests.outcome(uri):
                        nursery.start_soon(self._subscribe, uri)
            await changed.wait()

    async def _subscribe(self, uri: str) -> None:
        why = await self._tell("resources/subscribe", {"uri": uri})
        if why:
            self.hooks.interests.refused(uri, why)
            return
        self.followed.add(uri)
        if self.hooks.interests.agreed(uri):
            may_have_changed(self.hooks, uri)

    async def _unsubscribe(self, uri: str) -> None:
        self.followed.discard(uri)
        await self._tell("resources/unsubscribe", {"uri": uri})

    async def _set_level(self, level: str) -> None:
        self.level = level
        why = await self._tell("logging/setLevel", {"level": level})
        if why:
            self.hooks.log(f"[mcpd] does not take log level {level}: {why}")

    async def _tell(self, method: str, params: Mapping[str, object]) -> str:
        """Why it does not do so; empty when it does."""
        for _ in range(_ATTEMPTS):
            try:
                async with self.turns:
                    await ask(self.link, method, params, timeout=_PATIENCE)
            except Overloaded:
                await trio.sleep(1.0)
            except McpdError as error:
                return error.message
            else:
                return ""
        return "it is overloaded"
