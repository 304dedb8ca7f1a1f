"""Revision 2026-07-28: no session; every request says its version, and changes come on a subscription."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import msgspec
import trio

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
from mcpd.eras.mirror import Mirror
from mcpd.model.errors import LinkLost, McpdError, UpstreamRefused
from mcpd.transports.base import Channel, Dialect
from mcpd.transports.exchange import Awaited
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.meta import RESERVED

VERSIONS = ("2026-07-28",)
"""Newest first."""

HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
EVIDENCE = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
"""Errors that only a modern server gives."""

_LISTEN_AGAIN_AFTER = 5.0
_NONE: Mapping[str, object] = {}


def request_meta(version: str, capabilities: Mapping[str, object]) -> bytes:
    """What `_meta` of every request must carry, as JSON members."""
    meta = {
        f"{RESERVED}protocolVersion": version,
        f"{RESERVED}clientInfo": {"name": CLIENT_NAME, "version": __version__},
        f"{RESERVED}clientCapabilities": capabilities,
    }
    return msgspec.json.encode(meta)[1:-1]


def dialect(
    version: str, mirror: Mirror | None = None, capabilities: Mapping[str, object] = _NONE
) -> Dialect:
    """How messages are dressed in `version`; `mirror` is the one that has seen the tools, and
    `capabilities` what we can do for the server."""
    return Dialect(
        meta=request_meta(version, capabilities),
        headers=(mirror or Mirror(version)).headers,
        hanging_up_cancels=True,
    )


async def discover(link: Channel, version: str = VERSIONS[0]) -> Mapping[str, object]:
    """Ask `server/discover` and return its result. Raises UpstreamRefused, LinkLost, ProtocolViolation.

    Being cancelled tells the server nothing: a legacy one would not know what is cancelled.
    """
    link.speak(dialect(version))
    answer = await ask(link, "server/discover", {}, cancellable=False)
    return open_result(link.name, "server/discover", answer)


def adopt(link: Channel, hooks: Hooks, version: str, discovered: Mapping[str, object]) -> Upstream:
    """The upstream that a DiscoverResult describes, spoken to in `version`."""
    mirror = Mirror(version)
    link.speak(dialect(version, mirror, hooks.capabilities))
    inbound = _Inbound(link, hooks)
    link.inbound = inbound
    given = discovered.get("_meta")
    meta = given if isinstance(given, Mapping) else {}
    upstream = Upstream(
        link=link,
        era="modern",
        version=version,
        info=server_info(meta.get(f"{RESERVED}serverInfo"), discovered.get("instructions")),
        capabilities=capabilities_of(discovered),
        ping_method="server/discover",
    )
    if link.has_headers:
        upstream.admit = mirror.admit
    wanted = {f"{feature}ListChanged": True for feature in FEATURES if upstream.has(feature, "listChanged")}
    if wanted:
        inbound.acknowledged = upstream.hearing
        upstream.follow = _Follower(link, inbound, hooks, wanted).run
    return upstream


@attrs.define(eq=False)
class _Inbound:
    """What a modern server may send: notifications only. Requests break the protocol and get no answer."""

    link: Channel
    hooks: Hooks
    subscription: bytes = b""
    """Id of our open subscription; change notifications of any other are not ours."""
    acknowledged: trio.Event = attrs.field(factory=trio.Event)
    """Set when the server has begun to tell of changes, or never will."""
    missed: Callable[[], None] | None = None
    """Called when it begins again: something may have changed since it last told."""

    def on_request(self, message: Message) -> None:
        self.hooks.log(f"[mcpd] ignored: a request ({message.method[:60]}), which this revision forbids")

    def on_notification(self, message: Message) -> None:
        if message.method == "notifications/message" or self._is_ours(message):
            if message.method == "notifications/subscriptions/acknowledged":
                if self.acknowledged.is_set() and self.missed is not None:
                    self.missed()
                self.acknowledged.set()
            tell(self.hooks, message)

    def _is_ours(self, message: Message) -> bool:
        try:
            meta = wire.members(wire.members(message.params).get("_meta", b"{}"))
        except BadFrame:
            return False
        return (
            bool(self.subscription) and bytes(meta.get(f"{RESERVED}subscriptionId", b"")) == self.subscription
        )


@attrs.define(eq=False)
class _Follower:
    """Keeps one `subscriptions/listen` open for as long as the link lives."""

    link: Channel
    inbound: _Inbound
    hooks: Hooks
    wanted: Mapping[str, bool]

    async def run(self) -> None:
        """Returns when the server says it has no such method; a broken link is not ours to report."""
        self.inbound.missed = self._missed
        try:
            await self._run()
        finally:
            self.inbound.acknowledged.set()

    async def _run(self) -> None:
        params = msgspec.json.encode({"notifications": self.wanted})
        while True:
            exchange = Awaited(what="the subscription to its changes", standing=True)
            try:
                self.link.submit(exchange, "subscriptions/listen", params)
                self.inbound.subscription = exchange.key
                message = await exchange.answer()
            except LinkLost as error:
                if self.link.ended is not None:
                    return
                self.hooks.log(f"[mcpd] lost the subscription to its changes, asks again: {error}")
                message = None
            except McpdError as error:
                self.hooks.log(f"[mcpd] cannot follow its changes: {error}")
                return
            finally:
                self.link.cancel(exchange, "nobody follows any more")
            if message is not None and message.error is not ABSENT:
                self.hooks.log("[mcpd] refuses subscriptions/listen; its lists are fetched once")
                return
            await trio.sleep(_LISTEN_AGAIN_AFTER)
            self._missed()  # and once more when the server has acknowledged, if it does

    def _missed(self) -> None:
        for feature in FEATURES:
            if f"{feature}ListChanged" in self.wanted:
                self.hooks.changed(feature)


def supported(source: object) -> tuple[str, ...]:
    """The version strings of `supportedVersions` or of an error's `data.supported`."""
    return tuple(item for item in source if isinstance(item, str)) if isinstance(source, list) else ()


def supported_by(error: UpstreamRefused) -> tuple[str, ...]:
    data = error.upstream_data
    return supported(data.get("supported")) if isinstance(data, Mapping) else ()
