"""What a client of revision 2026-07-28 keeps open across requests: its subscriptions."""

from __future__ import annotations

from msgspec import Raw

from ctl.bridge import envelope
from ctl.bridge.envelope import ABSENT

DISCOVER = "server/discover"
LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
RESERVED = b"io.modelcontextprotocol/"
"""How the keys of `_meta` begin that this revision demands of every request."""

_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_UPDATED = "notifications/resources/updated"
_LISTS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
_Notifications = dict[tuple[str, bytes], None]
"""Notifications that will come: the method, and the resource's URI as JSON where there is one."""


class EditorSubscription:
    """A subscription that the client believes to be open. Made when it was acknowledged."""

    def __init__(self, acknowledged: Raw) -> None:
        self._promised = self._active = _acknowledged_notifications(acknowledged)

    @property
    def is_complete(self) -> bool:
        """Whether the client will hear of all that it was promised."""
        return self._promised.keys() <= self._active.keys()

    def on_disconnected(self) -> None:
        """Nobody honours it now."""
        self._active = {}

    def resume(self, key: bytes, acknowledged: Raw) -> list[bytes]:
        """Acknowledged once more: what to tell the client, since it may have changed meanwhile.

        A daemon that has just started does not know its servers' resources yet, and may honour less.
        """
        before, self._active = self._active, _acknowledged_notifications(acknowledged)
        tag: dict[str, object] = {"_meta": {_SUBSCRIPTION: Raw(key)}}
        return [
            envelope.notification(method, {"uri": Raw(uri), **tag} if uri else tag)
            for method, uri in self._active
            if (method, uri) in self._promised and (method, uri) not in before
        ]


def subscription_id(params: Raw) -> bytes:
    """The id of the subscription that a notification belongs to; empty for none."""
    meta = envelope.members(params).get("_meta", ABSENT)
    return bytes(envelope.members(meta).get(_SUBSCRIPTION, ABSENT))


def _acknowledged_notifications(acknowledged: Raw) -> _Notifications:
    honoured = envelope.members(envelope.members(acknowledged).get("notifications", ABSENT))
    heard: _Notifications = {
        (method, b""): None
        for member, method in _LISTS.items()
        if bytes(honoured.get(member, ABSENT)) == b"true"
    }
    for uri in envelope.elements(honoured.get("resourceSubscriptions", ABSENT)):
        heard[_UPDATED, uri] = None
    return heard
