"""What a client of revision 2026-07-28 keeps open across requests: its subscriptions."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, BadFrame, members_or_empty

DISCOVER = "server/discover"
LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
RESERVED = b"io.modelcontextprotocol/"
"""The prefix of the `_meta` keys that this revision requires in every request."""

_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_UPDATED = "notifications/resources/updated"
_LISTS = {
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
        (method, b""): None for name, method in _LISTS.items() if bytes(granted.get(name, ABSENT)) == b"true"
    }
    try:
        uris = wire.split_batch(bytes(granted.get("resourceSubscriptions", b"[]")))
    except BadFrame:
        uris = []
    return notifications | {(_UPDATED, uri): None for uri in uris}
