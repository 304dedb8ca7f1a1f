"""One request of the editor's, until it is answered; and which requests may be asked twice."""

from __future__ import annotations

from ctl.bridge import legacy, modern

HANDSHAKE_METHODS = frozenset((legacy.INITIALIZE, modern.DISCOVER))
STATEFUL_METHODS = frozenset(
    (legacy.INITIALIZE, legacy.SET_LEVEL, legacy.SUBSCRIBE, legacy.UNSUBSCRIBE, modern.LISTEN)
)
"""Requests whose answers change what a new daemon has to be told."""
RETRYABLE_METHODS = STATEFUL_METHODS | {
    modern.DISCOVER,
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
"""Asking these twice does nothing twice. Nothing else is ever sent again once it may have arrived."""


class EditorRequest:
    __slots__ = ("line", "method", "retried", "sent", "subscription")

    def __init__(self, method: str, line: bytes, sent: bool) -> None:
        self.method = method
        self.line = line
        """Kept while it may have to be sent (again); else empty."""
        self.sent = sent
        self.retried = False
        """It has been sent twice: what kills two daemons is not tried on a third."""
        self.subscription: modern.EditorSubscription | None = None
        """A subscription, which the editor believes to be open from here on."""


UNTRACKED = {
    method: EditorRequest(method, b"", True)
    for method in ("tools/call", "prompts/get", "completion/complete")
}
"""Requests of which nothing has to be kept but that they are under way: one object for all of a method."""
