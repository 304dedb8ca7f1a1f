"""Requests of the daemon's to the editor (roots, sampling, elicitation), across the daemon's restarts."""

from __future__ import annotations

from msgspec import Raw

from ctl.bridge import envelope
from ctl.bridge.envelope import ABSENT

MAX_OPEN = 1000
"""That an editor may leave unanswered."""
CANCELLED = "notifications/cancelled"


class ServerRequestRelay:
    """The editor gets ids of ours, none of them twice: a late answer to a daemon that has gone must not
    meet a question of the next one's.
    """

    def __init__(self) -> None:
        self._open: dict[bytes, bytes] = {}
        """Our id → the daemon's."""
        self._last_id = 0

    def forward(self, method: str, theirs: bytes, params: bytes) -> bytes | None:
        """The line for the editor; None when it has left too many unanswered."""
        if len(self._open) >= MAX_OPEN:
            return None
        self._last_id += 1
        ours = b"%d" % self._last_id
        self._open[ours] = theirs
        return envelope.request(ours, method, params)

    def translate_response(self, line: bytes, key: bytes) -> bytes | None:
        """The line for the daemon; None when the daemon that asked has gone, or nobody did."""
        theirs = self._open.pop(key.strip(b'"'), None)
        if theirs is None:
            return None
        message = envelope.message(line)
        if message.result is not ABSENT:
            return envelope.result(theirs, bytes(message.result))
        if message.error is not ABSENT:
            return envelope.raw_error(theirs, bytes(message.error))
        words = "the client's answer has neither result nor error"
        return envelope.error(theirs, envelope.INTERNAL_ERROR, words)

    def translate_cancellation(self, theirs: bytes, members: dict[str, Raw]) -> bytes | None:
        """The daemon takes one back: the line for the editor; None when it is no open question's id."""
        for ours, asked_as in self._open.items():
            if asked_as == theirs:
                del self._open[ours]
                return envelope.notification(CANCELLED, {**members, "requestId": Raw(ours)})
        return None

    def cancel_all(self, reason: str) -> list[bytes]:
        """The daemon has gone: lines for the editor that take all of them back."""
        questions, self._open = self._open, {}
        return [
            envelope.notification(CANCELLED, {"requestId": Raw(ours), "reason": reason}) for ours in questions
        ]
