"""Revisions 2024-11-05 to 2025-11-25: a handshake, then a session in which both sides may send requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import chain

import msgspec
import trio

from mcpd import __version__
from mcpd.model.errors import McpdError, NoCommonVersion, Overloaded
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import (
    CLIENT_NAME,
    FEATURES,
    Hooks,
    Upstream,
    decode_result,
    handle_notification,
    object_or_empty,
    parse_server_info,
    report_possible_update,
    send_request,
)
from mcpd.transports.base import Channel, Dialect
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire.message import Message

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first."""
_DRAFT = "2024-10-07"
"""The SDKs accept this revision, which was published as 2024-11-05."""
BATCH_VERSION = "2025-03-26"
"""The only revision with JSON-RPC batches."""

_METHOD_NOT_FOUND = -32601
_REQUEST_TIMEOUT = 30.0
"""Seconds for a server to confirm a subscription or a log level."""
_MAX_ATTEMPTS = 30
_MAX_CONCURRENT = 8
"""Subscriptions that are changed at a time: thousands of requests must not delay those of the clients."""
_LISTEN_WAIT = 1.0


def dialect(version: str = "") -> Dialect:
    """Return the dialect before the handshake, or for the negotiated `version`."""
    headers = {"MCP-Protocol-Version": version} if version else {}
    return Dialect(
        headers=lambda method, frame: headers,
        session_header="Mcp-Session-Id",
        opens_session=not version,
        resumable=True,
    )


class _LegacyInbound(msgspec.Struct, eq=False):
    """Handles messages from a legacy server. Every request gets a response: pings are answered, and requests
    that nobody handles are refused."""

    link: Channel
    hooks: Hooks

    def on_request(self, message: Message, exchange: Exchange | None = None) -> None:
        if message.method == "ping":
            self.link.respond(message, b"{}")
        elif self.hooks.on_request is None or not self.hooks.on_request(self.link, message, exchange):
            self.link.refuse(message, _METHOD_NOT_FOUND, f"mcpd does not offer {shorten(message.method, 60)}")

    def on_notification(self, message: Message, exchange: Exchange | None = None) -> None:
        handle_notification(self.hooks, message, exchange)


async def initialize(link: Channel, hooks: Hooks, version: str = VERSIONS[0]) -> Upstream:
    """Do the handshake. Raises UpstreamRefused, NoCommonVersion, ProtocolViolation, LinkLost.

    Requests from the server are answered even before the handshake ends: some servers ask for roots
    immediately, and would otherwise wait forever.
    """
    link.set_dialect(dialect())
    link.inbound = _LegacyInbound(link, hooks)
    params = {
        "protocolVersion": version,
        "capabilities": hooks.capabilities,
        "clientInfo": {"name": CLIENT_NAME, "version": __version__},
    }
    answer = await send_request(link, "initialize", params, cancellable=False)
    body = decode_result(link.name, "initialize", answer)
    negotiated = body.get("protocolVersion")
    if negotiated == _DRAFT:
        negotiated = VERSIONS[-1]
    if negotiated not in VERSIONS:
        spoken = f"speaks version {shorten(str(negotiated), 40)}"
        if negotiated is None:
            spoken = "names no version in its answer to initialize"
        raise NoCommonVersion(f"{link.name}: {spoken}; mcpd supports {', '.join(VERSIONS)}", server=link.name)
    link.set_dialect(dialect(str(negotiated)))
    link.notify("notifications/initialized")
    await link.wait_flushed()  # some servers refuse a request that overtakes this notification
    upstream = make_upstream(link, hooks, str(negotiated), body)
    if "roots" in hooks.capabilities:
        upstream.expect_roots_request()
    return upstream


def make_upstream(link: Channel, hooks: Hooks, version: str, body: Mapping[str, object]) -> Upstream:
    """Return the upstream that the result of a handshake describes, which has agreed on `version`."""
    link.allows_batches = version == BATCH_VERSION
    link.inbound = _LegacyInbound(link, hooks)
    link.set_dialect(dialect(version))
    upstream = Upstream(
        link=link,
        era="legacy",
        version=version,
        info=parse_server_info(body.get("serverInfo"), body.get("instructions")),
        own_info=object_or_empty(body.get("serverInfo")),
        capabilities=object_or_empty(body.get("capabilities")),
    )
    task_calls: object = upstream.capabilities
    for name in ("tasks", "requests", "tools", "call"):
        task_calls = task_calls.get(name) if isinstance(task_calls, Mapping) else None
    upstream.accepts_task_param = isinstance(task_calls, Mapping)
    if "roots" in hooks.capabilities:
        upstream.notify_roots_changed = partial(link.notify, "notifications/roots/list_changed")
    upstream.announces_changes.update(feature for feature in FEATURES if upstream.has(feature, "listChanged"))
    subscriptions = _LegacySubscriptions(link, hooks, upstream)
    upstream.run_subscriptions = subscriptions.run
    subscriptions.may_notify = bool(
        upstream.announces_changes
        or upstream.has("logging")
        or upstream.has("resources", "subscribe")
        or hooks.capabilities  # then it may send requests, and some do so outside of the call they belong to
    )
    return upstream


class _LegacySubscriptions(msgspec.Struct, eq=False):
    """Listens for notifications, reports what may have been missed, and keeps the server's subscriptions and
    log level in line with `Hooks.interests`."""

    link: Channel
    hooks: Hooks
    upstream: Upstream
    subscribed: set[str] = msgspec.field(default_factory=set)
    """Resources whose subscription the server has confirmed."""
    sent_level: str | None = None
    """The log level last sent."""
    may_notify: bool = True
    """Whether it may send notifications or requests outside of calls."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            nursery.start_soon(self._sync_interests)

    async def _listen(self) -> None:
        try:
            if self.may_notify:
                await self.link.listen(self._report_missed, self.upstream.notifications_ready.set)
        finally:
            self.upstream.notifications_ready.set()

    def _report_missed(self) -> None:
        for feature in self.upstream.announces_changes:
            self.hooks.on_list_changed(feature)
        for uri in sorted(self.subscribed):
            report_possible_update(self.hooks, uri)

    async def _sync_interests(self) -> None:
        """Send every change of the interests to the server. Refused subscriptions are not retried."""
        interests = self.hooks.interests
        with trio.move_on_after(_LISTEN_WAIT):  # notifications sent before we listen are lost
            await self.upstream.notifications_ready.wait()
        while self.link.end_error is None:
            changed, wanted = interests.changed, interests.resources
            async with trio.open_nursery() as nursery:
                if self.upstream.has("logging") and interests.log_level not in (None, self.sent_level):
                    nursery.start_soon(self._set_level, interests.log_level)
                ended, added = self.subscribed - wanted, wanted - self.subscribed
                changes = chain(
                    ((self._unsubscribe, uri) for uri in ended),
                    ((self._subscribe, uri) for uri in added if not interests.subscribe_result(uri)),
                )
                # A client can leave with a thousand subscriptions, and a task for each would take 6 MB.
                for _ in range(min(_MAX_CONCURRENT, len(ended) + len(added))):
                    nursery.start_soon(self._send_changes, changes)
            await changed.wait()

    async def _send_changes(self, changes: Iterator[tuple[Callable[[str], Awaitable[None]], str]]) -> None:
        """Take changes until none is left. Several tasks may share the iterator."""
        for send, uri in changes:
            await send(uri)

    async def _subscribe(self, uri: str) -> None:
        failure = await self._request("resources/subscribe", {"uri": uri})
        if failure:
            self.hooks.interests.reject(uri, failure)
            return
        self.subscribed.add(uri)
        if self.hooks.interests.confirm(uri):
            report_possible_update(self.hooks, uri)

    async def _unsubscribe(self, uri: str) -> None:
        self.subscribed.discard(uri)
        await self._request("resources/unsubscribe", {"uri": uri})

    async def _set_level(self, level: str) -> None:
        self.sent_level = level
        failure = await self._request("logging/setLevel", {"level": level})
        if failure:
            self.hooks.on_log(f"[mcpd] rejects log level {level}: {failure}")

    async def _request(self, method: str, params: Mapping[str, object]) -> str:
        """Send a request; return why it failed, or an empty string."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                await send_request(self.link, method, params, timeout=_REQUEST_TIMEOUT)
            except Overloaded:
                await trio.sleep(1.0)
            except McpdError as error:
                return error.message
            else:
                return ""
        return "it is overloaded"
