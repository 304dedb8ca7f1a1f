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
_LISTS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}


def subscription(params: Raw) -> bytes:
    """The id of the subscription that a notification belongs to; empty for none."""
    meta = envelope.members(params).get("_meta", ABSENT)
    return bytes(envelope.members(meta).get(_SUBSCRIPTION, ABSENT))


def missed(key: bytes, acknowledged: Raw) -> list[bytes]:
    """What to tell the client after a gap: all that the subscription covers may have changed.

    `acknowledged` are the params of the acknowledgement: nobody hears of more than that.
    """
    honoured = envelope.members(envelope.members(acknowledged).get("notifications", ABSENT))
    tag = {_SUBSCRIPTION: Raw(key)}
    told = [
        envelope.notification(method, {"_meta": tag})
        for member, method in _LISTS.items()
        if bytes(honoured.get(member, ABSENT)) == b"true"
    ]
    try:
        uris = envelope.batch(bytes(honoured.get("resourceSubscriptions", Raw(b"[]"))))
    except envelope.Malformed:
        uris = []
    return told + [
        envelope.notification("notifications/resources/updated", {"uri": Raw(uri), "_meta": tag})
        for uri in uris
    ]
