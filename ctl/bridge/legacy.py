"""What clients of revisions 2024-11-05 to 2025-11-25 say once, and a new daemon must hear again."""

from __future__ import annotations

from msgspec import Raw

from ctl.bridge import envelope
from ctl.bridge.envelope import ABSENT

INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
PING = "ping"
SET_LEVEL = "logging/setLevel"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"

MAX_SUBSCRIPTIONS = 10_000
"""More are not remembered: they end with the daemon that knows them."""
_REVISION_WITH_BATCHES = b'"2025-03-26"'
_LISTS = ("tools", "prompts", "resources")


class LegacySession:
    """Begun by an `initialize` that was answered with a result."""

    def __init__(self, params: bytes, result: bytes) -> None:
        self.params = params
        """The client's own, to be sent again as they are."""
        answer = envelope.members(result)
        offered = envelope.members(answer.get("capabilities", ABSENT))
        self._change_methods = [
            f"notifications/{name}/list_changed"
            for name in _LISTS
            if bytes(envelope.members(offered.get(name, ABSENT)).get("listChanged", ABSENT)) == b"true"
        ]
        """The changes that the client was told it would hear of."""
        self.allows_batches = bytes(answer.get("protocolVersion", ABSENT)) == _REVISION_WITH_BATCHES
        """Whether it may send several messages as an array: in one revision only."""
        self.initialized = False
        """The client has said so; only then it may be sent anything."""
        self._level = b""
        self._subscribed: dict[bytes, None] = {}
        """URIs as the client spelled them, in its order."""

    def record(self, method: str, params: bytes) -> None:
        """A request of the client's that changes the session was answered with a result."""
        members = envelope.members(params)
        if method == SET_LEVEL:
            self._level = bytes(members.get("level", ABSENT))
            return
        uri = bytes(members.get("uri", ABSENT))
        if method == UNSUBSCRIBE:
            self._subscribed.pop(uri, None)
        elif uri and len(self._subscribed) < MAX_SUBSCRIPTIONS:
            self._subscribed[uri] = None

    def restore_requests(self) -> list[tuple[str, bytes]]:
        """The requests, method and params, that bring a fresh connection to where this one was."""
        asked = [(SET_LEVEL, b'{"level":%b}' % self._level)] if self._level else []
        return asked + [(SUBSCRIBE, b'{"uri":%b}' % uri) for uri in self._subscribed]

    def change_notifications(self) -> list[bytes]:
        """What to tell the client after a gap: its lists may have changed."""
        return [envelope.notification(method) for method in self._change_methods] if self.initialized else []


def resource_updated(params: bytes) -> bytes:
    """What to tell the client once a new daemon has granted this subscription: it may have changed."""
    uri = envelope.members(params).get("uri", Raw(b"null"))
    return envelope.notification("notifications/resources/updated", {"uri": uri})
