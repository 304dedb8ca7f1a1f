"""The `subscriptions/listen` stream of a modern server: one stays open, for all that is wanted at the time.

The contents of a stream cannot be changed. To change them, another one is opened, and the old one is closed
only after the new one is acknowledged, so that nothing is missed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import trio

from mcpd.model.errors import HttpRefused, LinkLost, McpdError
from mcpd.protocol.upstream_session import (
    FEATURES,
    Hooks,
    Upstream,
    handle_notification,
    report_possible_update,
    to_upstream_error,
)
from mcpd.transports.outgoing_request import Exchange
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, RESERVED_PREFIX, BadFrame, Message

FIRST_RETRY_DELAY, MAX_RETRY_DELAY = 5.0, 60.0
"""Seconds before a stream that has ended is reopened; doubled, with ±50 % jitter, until one is stable."""
QUICK_RETRY_DELAY = 0.3
"""The same for a stream that was stable: servers end streams regularly, such as with the token."""
STABLE_AFTER = 10.0
"""Seconds for which a stream must be open."""
_ACKNOWLEDGE_TIMEOUT = 10.0
"""After this time a server that neither acknowledges nor refuses is taken to have accepted."""
_TEMPORARY = (408, 429)


class _ListenRequest(Exchange, kw_only=True):
    """One `subscriptions/listen` request: what it covers, and its progress."""

    server: str
    features: frozenset[str]
    resources: frozenset[str]
    """Once acknowledged: those that the server accepted."""
    after_gap: bool
    """Whether no stream was open before, so that changes may have been missed."""
    opened_at: float = msgspec.field(default_factory=trio.current_time)
    acknowledged: trio.Event = msgspec.field(default_factory=trio.Event)
    ended: trio.Event = msgspec.field(default_factory=trio.Event)
    error: McpdError | None = None
    """Why it ended; None if the server ended it with a result."""

    def answered(self, message: Message) -> None:
        if message.error is not ABSENT:
            self.error = to_upstream_error(self.server, message)
        self.ended.set()

    def failed(self, error: McpdError) -> None:
        self.error = error
        self.ended.set()

    @property
    def is_refused(self) -> bool:
        """Whether repeating the request would be refused again."""
        if isinstance(self.error, HttpRefused):
            return self.error.status < 500 and self.error.status not in _TEMPORARY
        return self.error is not None and not isinstance(self.error, LinkLost)


class UpstreamListenStream:
    """While `run` runs, fulfils the subscriptions in `Hooks.interests` and calls `Hooks.on_list_changed`."""

    def __init__(self, upstream: Upstream, hooks: Hooks) -> None:
        self._upstream = upstream
        self._link = upstream.link
        self._hooks = hooks
        self._features = frozenset(name for name in FEATURES if upstream.has(name, "listChanged"))
        self._can_subscribe = upstream.has("resources", "subscribe")
        self._open: dict[bytes, _ListenRequest] = {}
        """By id, which the server repeats in each notification. Two, while one replaces the other."""
        self._current: _ListenRequest | None = None
        """The stream that covers everything wanted."""
        self._retry_delay = FIRST_RETRY_DELAY

    def receive(self, message: Message, exchange: Exchange | None) -> None:
        """Handle a notification, if it belongs to an open stream."""
        params = wire.members_or_empty(message.params)
        if message.method == "notifications/cancelled":
            request = self._open.get(bytes(params.get("requestId", b"")))
            if request is not None:
                request.cancellable = False  # the server has cancelled it
                self._close(request)
                request.ended.set()
            else:
                self._link.fail_cancelled(message.params)
            return
        meta = wire.members_or_empty(params.get("_meta", b"{}"))
        request = self._open.get(bytes(meta.get(f"{RESERVED_PREFIX}subscriptionId", b"")))
        if request is None:
            return
        if message.method == "notifications/subscriptions/acknowledged":
            if not request.acknowledged.is_set():
                request.acknowledged.set()
                self._on_acknowledged(request, *_acknowledged(message))
        else:
            handle_notification(self._hooks, message, exchange)

    def _on_acknowledged(
        self, request: _ListenRequest, features: frozenset[str], uris: frozenset[str]
    ) -> None:
        interests = self._hooks.interests
        for uri in sorted(request.resources):
            if uri not in uris:
                interests.reject(uri, "it did not accept the subscription to this resource")
            elif interests.confirm(uri) and request.after_gap:
                report_possible_update(self._hooks, uri)
        request.resources &= uris
        self._upstream.announces_changes.difference_update(FEATURES)
        self._upstream.announces_changes.update(features & request.features)
        if request.after_gap:
            self._report_missed(request.features)
        self._upstream.notifications_ready.set()

    def _report_missed(self, features: Iterable[str]) -> None:
        if self._upstream.notifications_ready.is_set():  # otherwise no list has been fetched yet
            for feature in sorted(features):
                self._hooks.on_list_changed(feature)

    async def run(self) -> None:
        """Run until cancelled, or until the connection ends."""
        try:
            await self._run()
        finally:
            self._upstream.notifications_ready.set()
            for request in tuple(self._open.values()):
                self._close(request)

    async def _run(self) -> None:
        while self._link.end_error is None:
            changed, uris = self._hooks.interests.changed, self._wanted_resources()
            if not self._features and not uris:
                if self._current is not None:
                    self._close(self._current)
                self._current = None
                self._upstream.notifications_ready.set()
                await changed.wait()
                continue
            if (self._current is None or self._current.resources != uris) and not await self._replace(uris):
                continue
            current = self._current
            assert current is not None
            await _wait_first(changed, current.ended)
            if current.ended.is_set() and self._link.end_error is None:
                await self._on_lost(current)

    async def _replace(self, uris: frozenset[str]) -> bool:
        """Open a stream for these resources; the current one stays open until it is acknowledged. Returns
        False if the wanted resources must be determined again."""
        new, current = await self._open_request(uris), self._current
        if new.is_refused:
            self._close(new)
            self._on_refused(uris, str(new.error))
            return False
        if current is not None and current.ended.is_set():
            self._report_missed(self._features)  # no stream was open in between
            for uri in sorted(current.resources & new.resources):
                report_possible_update(self._hooks, uri)
        elif current is not None and new.ended.is_set():  # try again later; the other stream stays open
            await self._back_off()
            return False
        elif current is not None:
            self._close(current)
        self._current = new
        return True

    def _on_refused(self, uris: frozenset[str], reason: str) -> None:
        current = self._current
        added = uris if current is None else uris - current.resources
        if added:  # the server may object to one of these
            for uri in added:
                self._hooks.interests.reject(uri, f"it rejects the subscription: {reason}".rstrip(": "))
        elif current is None:
            self._hooks.on_log(f"[mcpd] rejects subscriptions/listen ({reason}); lists are fetched once")
            self._features = frozenset()
        else:  # the open stream covers all of this and more
            current.resources = uris

    async def _on_lost(self, current: _ListenRequest) -> None:
        """The stream ended: reopen it after a pause. The lists are fetched when the next one is open, and
        meanwhile, too, if that may take long."""
        was_stable = trio.current_time() - current.opened_at >= STABLE_AFTER
        if was_stable:
            self._retry_delay = QUICK_RETRY_DELAY
        if current.error is not None:
            self._hooks.on_log(f"[mcpd] lost its listen stream, opening another: {current.error}")
        self._close(current)
        self._current = None
        self._upstream.announces_changes.difference_update(FEATURES)
        self._upstream.notifications_ready.set()  # nobody needs to wait for it any longer
        await self._back_off()
        if not was_stable:
            self._report_missed(self._features)

    async def _back_off(self) -> None:
        """Sleep with jitter, and longer the next time."""
        pause = self._retry_delay
        self._retry_delay = min(max(2 * pause, FIRST_RETRY_DELAY), MAX_RETRY_DELAY)
        await trio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret depends on it

    def _wanted_resources(self) -> frozenset[str]:
        """Return the wanted resources, except for those that the server refused."""
        interests = self._hooks.interests
        wanted = interests.resources
        if not self._can_subscribe:
            for uri in wanted:
                interests.reject(uri, "it does not support resource subscriptions")
            return frozenset()
        return frozenset(uri for uri in wanted if not interests.subscribe_result(uri))

    async def _open_request(self, uris: frozenset[str]) -> _ListenRequest:
        """Open a stream and wait until it is acknowledged or has ended, or for the timeout."""
        request = _ListenRequest(
            server=self._link.name,
            label="the subscription to its changes",
            long_lived=True,
            features=self._features,
            resources=uris,
            after_gap=self._current is None,
        )
        wanted: dict[str, object] = {f"{feature}ListChanged": True for feature in sorted(self._features)}
        if uris:
            wanted["resourceSubscriptions"] = sorted(uris)
        try:
            self._link.submit(request, "subscriptions/listen", msgspec.json.encode({"notifications": wanted}))
        except McpdError as error:
            request.failed(error)
            return request
        self._open[request.key] = request
        with trio.move_on_after(_ACKNOWLEDGE_TIMEOUT):
            await _wait_first(request.acknowledged, request.ended)
        if not request.acknowledged.is_set() and not request.ended.is_set():
            request.acknowledged.set()
            self._on_acknowledged(request, self._features, uris)
        return request

    def _close(self, request: _ListenRequest) -> None:
        if self._open.pop(request.key, None) is not None:
            self._link.cancel(request, "replaced by another subscription, or no longer needed")


def _acknowledged(message: Message) -> tuple[frozenset[str], frozenset[str]]:
    try:
        accepted = wire.mapping(wire.members_or_empty(message.params).get("notifications"))
    except BadFrame:
        accepted = {}
    uris = accepted.get("resourceSubscriptions")
    return (
        frozenset(feature for feature in FEATURES if accepted.get(f"{feature}ListChanged") is True),
        frozenset(uri for uri in uris if isinstance(uri, str)) if isinstance(uris, list) else frozenset(),
    )


async def _wait_first(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait_for(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel(reason="one of them is set")

        for event in events:
            nursery.start_soon(wait_for, event)
