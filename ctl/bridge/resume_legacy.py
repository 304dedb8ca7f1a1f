"""What clients of revisions 2024-11-05 to 2025-11-25 send once, and a restarted daemon must receive again."""

from __future__ import annotations

from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, members_or_empty

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
        """Note a successful request that changes the session."""
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
