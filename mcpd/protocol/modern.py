"""Revision 2026-07-28: no session; every request says its version, and changes come on a subscription."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import attrs
import msgspec
import trio

from mcpd import __version__
from mcpd.model.errors import UpstreamRefused
from mcpd.protocol.listen_stream import Subscription
from mcpd.protocol.parameter_headers import Mirror
from mcpd.protocol.upstream_session import (
    CLIENT_NAME,
    Hooks,
    Upstream,
    capabilities_of,
    open_result,
    refusal,
    server_info,
    tell,
)
from mcpd.transports.base import Channel, Dialect, Remedy
from mcpd.transports.outgoing_request import Awaited, Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message
from mcpd.wire.request_meta import RESERVED

VERSIONS = ("2026-07-28",)
"""Newest first."""

HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION = -32020, -32021, -32022
EVIDENCE = frozenset({HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION})
"""Errors that only a modern server gives."""

TASKS = f"{RESERVED}tasks"
"""The extension by which a tool call may become a task."""
_NONE: Mapping[str, object] = {}


def request_meta(version: str, capabilities: Mapping[str, object], log_level: str | None = None) -> bytes:
    """What `_meta` of every request must carry, as JSON members."""
    meta: dict[str, object] = {
        f"{RESERVED}protocolVersion": version,
        f"{RESERVED}clientInfo": {"name": CLIENT_NAME, "version": __version__},
        f"{RESERVED}clientCapabilities": capabilities,
    }
    if log_level is not None:
        meta[f"{RESERVED}logLevel"] = log_level
    return msgspec.json.encode(meta)[1:-1]


def dialect(
    version: str,
    mirror: Mirror | None = None,
    capabilities: Mapping[str, object] = _NONE,
    log_level: str | None = None,
    refresh: Callable[[str], Awaitable[None]] | None = None,
) -> Dialect:
    """How messages are dressed in `version`; `mirror` is the one that has seen the tools,
    `capabilities` what we can do for the server, `refresh` fetches a list anew."""

    def remedy(method: str, message: Message) -> Remedy | None:
        """A call whose headers did not match the tool's newest definition was refused unseen: the
        specification says to learn that and to try once more."""
        if refresh is None or method != "tools/call":
            return None
        mismatch = refusal("", message).upstream_code == HEADER_MISMATCH
        return partial(refresh, "tools") if mismatch else None

    return Dialect(
        remedy=remedy,
        meta=request_meta(version, capabilities, log_level),
        headers=(mirror or Mirror(version)).headers,
        hanging_up_cancels=True,
    )


class _Probe(Awaited, kw_only=True):
    """The first request; its answer may come when nobody waits for it any more."""

    too_late: Callable[[], None] | None = None

    def answered(self, message: Message) -> None:
        super().answered(message)
        if self.too_late is not None and _is_modern(message):
            self.too_late()


async def discover(
    link: Channel, version: str = VERSIONS[0], too_late: Callable[[], None] | None = None
) -> Mapping[str, object]:
    """Ask `server/discover` and return its result. Raises UpstreamRefused, LinkLost, ProtocolViolation.

    Being cancelled tells the server nothing: a legacy one would not know what is cancelled. `too_late`
    is then called should a modern server answer all the same, for as long as the link lives.
    """
    link.speak(dialect(version))
    probe = _Probe(standing=True, cancellable=False)
    link.submit(probe, "server/discover", b"{}")
    try:
        message = await probe.answer()
    except trio.Cancelled:
        probe.too_late = too_late
        raise
    if message.error is not ABSENT:
        raise refusal(link.name, message)
    return open_result(link.name, "server/discover", message.result)


def _is_modern(message: Message) -> bool:
    try:
        body = wire.value(message.result)
    except BadFrame:
        return False
    versions = supported(body.get("supportedVersions")) if isinstance(body, dict) else ()
    return any(version in VERSIONS for version in versions)


def adopt(link: Channel, hooks: Hooks, version: str, discovered: Mapping[str, object]) -> Upstream:
    """The upstream that a DiscoverResult describes, spoken to in `version`."""
    mirror = Mirror(version)
    link.speak(dialect(version, mirror, hooks.capabilities, refresh=hooks.refresh))
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
    takes_level = upstream.has("logging")

    def dress(capabilities: Mapping[str, object], log_level: str | None) -> bytes:
        return request_meta(version, capabilities, log_level if takes_level else None)

    async def tend_log_level() -> None:
        while True:
            changed = hooks.interests.changed
            level = hooks.interests.log_level
            link.speak(dialect(version, mirror, hooks.capabilities, level, hooks.refresh))
            await changed.wait()

    async def follow() -> None:
        async with trio.open_nursery() as nursery:
            if takes_level:
                nursery.start_soon(tend_log_level)
            await subscription.run()
            nursery.cancel_scope.cancel(reason="the link has ended")

    subscription = Subscription(upstream, hooks)
    link.inbound = _Inbound(hooks, subscription)
    upstream.dress = dress
    extensions = discovered_extensions(upstream.capabilities)
    upstream.alone = dress({"extensions": {TASKS: {}}} if TASKS in extensions else {}, None)
    upstream.follow = follow
    return upstream


@attrs.define(eq=False)
class _Inbound:
    """What a modern server may send: notifications only. Requests break the protocol and get no answer."""

    hooks: Hooks
    subscription: Subscription

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None:
        self.hooks.log(f"[mcpd] ignored: a request ({message.method[:60]}), which this revision forbids")

    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None:
        if message.method == "notifications/message":
            tell(self.hooks, message, exchange)
        else:
            self.subscription.receive(message, exchange)


def discovered_extensions(capabilities: Mapping[str, object]) -> Mapping[str, object]:
    declared = capabilities.get("extensions")
    return declared if isinstance(declared, Mapping) else {}


def supported(source: object) -> tuple[str, ...]:
    """The version strings of `supportedVersions` or of an error's `data.supported`."""
    return tuple(item for item in source if isinstance(item, str)) if isinstance(source, list) else ()


def supported_by(error: UpstreamRefused) -> tuple[str, ...]:
    data = error.upstream_data
    return supported(data.get("supported")) if isinstance(data, Mapping) else ()
