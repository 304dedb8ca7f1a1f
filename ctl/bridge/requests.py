"""One request of the editor's, until it is answered; and which requests may be asked twice."""

from __future__ import annotations

from ctl.bridge import legacy, modern

HANDSHAKES = frozenset((legacy.INITIALIZE, modern.DISCOVER))
LEARNT_FROM = frozenset(
    (legacy.INITIALIZE, legacy.SET_LEVEL, legacy.SUBSCRIBE, legacy.UNSUBSCRIBE, modern.LISTEN)
)
"""Requests whose answers change what a new daemon has to be told."""
REPEATABLE = LEARNT_FROM | {
    modern.DISCOVER,
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
"""Asking these twice does nothing twice. Nothing else is ever sent again once it may have arrived."""


class Request:
    __slots__ = ("again", "line", "listen", "method", "sent")

    def __init__(self, method: str, line: bytes, sent: bool) -> None:
        self.method = method
        self.line = line
        """Kept while it may have to be sent (again); else empty."""
        self.sent = sent
        self.again = False
        """It has been sent twice: what kills two daemons is not tried on a third."""
        self.listen: modern.Listen | None = None
        """A subscription, which the editor believes to be open from here on."""


PASSED = {
    method: Request(method, b"", True) for method in ("tools/call", "prompts/get", "completion/complete")
}
"""Requests of which nothing has to be kept but that they are under way: one object for all of a method."""
