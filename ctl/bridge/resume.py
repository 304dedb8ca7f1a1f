"""What a restarted daemon must be told: the state of the editor's session, of either era.

A client of a revision up to 2025-11-25 sends `initialize`, its log level and its subscriptions once. One of
revision 2026-07-28 keeps subscriptions open. Requests that the daemon refuses are repeated for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from msgspec import Raw

from ctl.bridge import error_replies
from mcpd.model.text import shorten
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, Message, members_or_empty

RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 10.0
"""Seconds until a refused request is sent again; the delay doubles each time."""
MAX_RETRIES = 15
"""A server that takes longer than this to start is given up."""


class StateRestorer:
    """The bridge's own requests to the current daemon. `in` tests whether an id belongs to one of them."""

    def __init__(self, to_daemon: Callable[[bytes], None], log: Callable[[str], None]) -> None:
        self._to_daemon = to_daemon
        self._log = log
        self._in_flight: dict[bytes, tuple[str, bytes]] = {}
        """Id → method and params."""
        self._last_id = 0
        self._refused: list[tuple[str, bytes]] = []
        """What the old daemon had granted and the new one does not grant yet."""
        self._retries = 0
        self.retry_at = math.inf
        """When to call `retry_refused`, by the loop's clock."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._in_flight

    @property
    def is_exhausted(self) -> bool:
        return self._retries > MAX_RETRIES

    def reset(self) -> None:
        self._retries = 0

    def clear(self) -> None:
        """Drop everything after the connection to the daemon was lost."""
        self._in_flight.clear()
        self._refused.clear()
        self.retry_at = math.inf

    def send(self, method: str, params: bytes) -> None:
        self._last_id += 1
        key = b'"mcpctl-bridge-%d"' % self._last_id
        self._in_flight[key] = method, params
        self._to_daemon(wire.request(key, method, params))

    def on_response(self, key: bytes, response: Message, now: float) -> bytes | None:
        """Handle the daemon's response; return the line that the editor must receive, if any."""
        method, params = self._in_flight.pop(key)
        if response.error is ABSENT:
            return resource_updated(params) if method == SUBSCRIBE else None
        if method != INITIALIZE and self._retries < MAX_RETRIES:
            self._refused.append((method, params))  # its servers may not be connected yet
            self.schedule_retry(now)
        else:
            reason = error_replies.parse_error(response.error).message
            self._log(f"the restarted mcpd refuses {method} {shorten(params, 100)}: {reason}")
        return None

    def schedule_retry(self, now: float) -> None:
        delay = min(RETRY_DELAY * 2 ** min(self._retries, MAX_RETRIES), MAX_RETRY_DELAY)
        self.retry_at = min(self.retry_at, now + delay)

    def retry_refused(self, wanted: list[tuple[str, bytes]]) -> None:
        """Send the refused requests again, except those that the editor no longer wants."""
        self._retries += 1
        refused, self._refused = self._refused, []
        for request in refused:
            if request in wanted:
                self.send(*request)


INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
PING = "ping"
SET_LEVEL = "logging/setLevel"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"

MAX_SUBSCRIPTIONS = 10_000
"""Subscriptions that are restored; any more end with the daemon that granted them."""
_REVISION_WITH_BATCHES = b'"2025-03-26"'
_LISTS = ("tools", "prompts", "resources")


class LegacySession:
    """The state of a client since its `initialize` succeeded."""

    def __init__(self, params: bytes, result: bytes) -> None:
        self.params = params
        """The client's own, sent again unchanged."""
        answer = members_or_empty(result)
        offered = members_or_empty(answer.get("capabilities", ABSENT))
        self._change_methods = [
            f"notifications/{name}/list_changed"
            for name in _LISTS
            if bytes(members_or_empty(offered.get(name, ABSENT)).get("listChanged", ABSENT)) == b"true"
        ]
        """The notifications that the client was promised."""
        self.allows_batches = bytes(answer.get("protocolVersion", ABSENT)) == _REVISION_WITH_BATCHES
        """Whether the client may send several messages as an array, which one revision allows."""
        self.initialized = False
        """The client sent `notifications/initialized`; it must not receive anything before."""
        self._level = b""
        self._subscribed: dict[bytes, None] = {}
        """URIs as the client spelled them, in order."""

    def record(self, method: str, params: bytes) -> None:
        members = members_or_empty(params)
        if method == SET_LEVEL:
            self._level = bytes(members.get("level", ABSENT))
            return
        uri = bytes(members.get("uri", ABSENT))
        if method == UNSUBSCRIBE:
            self._subscribed.pop(uri, None)
        elif uri and len(self._subscribed) < MAX_SUBSCRIPTIONS:
            self._subscribed[uri] = None

    def restore_requests(self) -> list[tuple[str, bytes]]:
        """Return the requests, method and params, that restore the session after `initialize`."""
        requests = [(SET_LEVEL, b'{"level":%b}' % self._level)] if self._level else []
        return requests + [(SUBSCRIBE, b'{"uri":%b}' % uri) for uri in self._subscribed]

    def change_notifications(self) -> list[bytes]:
        """Return the lines to send to the client after a gap, because its lists may have changed."""
        return [wire.notification(method) for method in self._change_methods] if self.initialized else []


def resource_updated(params: bytes) -> bytes:
    """Return the line to send after a subscription was restored, because the resource may have changed."""
    uri = members_or_empty(params).get("uri", b"null")
    return wire.notification("notifications/resources/updated", b'{"uri":%b}' % bytes(uri))


DISCOVER = "server/discover"
LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
RESERVED = b"io.modelcontextprotocol/"
"""The prefix of the `_meta` keys that this revision requires in every request."""

_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_UPDATED = "notifications/resources/updated"
_MODERN_LISTS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
_Notifications = dict[tuple[str, bytes], None]
"""Notifications that will come: the method, and the resource's URI as JSON if there is one."""


class EditorSubscription:
    """A subscription that the client believes to be open. Create it when the daemon acknowledges one."""

    def __init__(self, acknowledged: Raw) -> None:
        self._promised = self._active = _acknowledged_notifications(acknowledged)

    @property
    def is_complete(self) -> bool:
        """Return whether the current daemon sends everything that the client was promised."""
        return self._promised.keys() <= self._active.keys()

    def on_disconnected(self) -> None:
        self._active = {}

    def resume(self, key: bytes, acknowledged: Raw) -> list[bytes]:
        """Return the lines that tell the client what may have changed before this new acknowledgement.

        A daemon that has just started does not know the resources of its servers yet, and may grant less.
        """
        before, self._active = self._active, _acknowledged_notifications(acknowledged)
        tag: dict[str, object] = {"_meta": {_SUBSCRIPTION: Raw(key)}}
        return [
            wire.notification(method, msgspec.json.encode({"uri": Raw(uri), **tag} if uri else tag))
            for method, uri in self._active
            if (method, uri) in self._promised and (method, uri) not in before
        ]


def subscription_id(params: Raw) -> bytes:
    """Return the id of the subscription that a notification belongs to; empty if there is none."""
    meta = members_or_empty(params).get("_meta", ABSENT)
    return bytes(members_or_empty(meta).get(_SUBSCRIPTION, ABSENT))


def _acknowledged_notifications(acknowledged: Raw) -> _Notifications:
    granted = members_or_empty(members_or_empty(acknowledged).get("notifications", ABSENT))
    notifications: _Notifications = {
        (method, b""): None
        for name, method in _MODERN_LISTS.items()
        if bytes(granted.get(name, ABSENT)) == b"true"
    }
    try:
        uris = wire.split_batch(bytes(granted.get("resourceSubscriptions", b"[]")))
    except BadFrame:
        uris = []
    return notifications | {(_UPDATED, uri): None for uri in uris}
