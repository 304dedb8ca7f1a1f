"""The daemon's requests to the editor (roots, sampling, elicitation), across restarts of the daemon."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ctl.bridge import error_replies
from mcpd.wire import message as wire
from mcpd.wire.message import ABSENT, Message

MAX_OPEN = 1000
"""Requests that an editor may leave unanswered."""
CANCELLED = "notifications/cancelled"


class ServerRequestRelay:
    """Gives each request an id of its own, so that a late response never reaches the next daemon."""

    def __init__(self) -> None:
        self._open: dict[bytes, bytes] = {}
        """The bridge's id → the daemon's id."""
        self._last_id = 0

    def forward(self, request: Message) -> bytes | None:
        """Return the line for the editor; None if the editor has left too many requests unanswered."""
        if len(self._open) >= MAX_OPEN:
            return None
        self._last_id += 1
        ours = b"%d" % self._last_id
        self._open[ours] = request.key
        return wire.request(ours, request.method, bytes(request.params))

    def translate_response(self, response: Message) -> bytes | None:
        """Return the line for the daemon; None if no request of the current daemon has this id."""
        theirs = self._open.pop(response.key.strip(b'"'), None)
        if theirs is None:
            return None
        if response.result is not ABSENT:
            return wire.result(theirs, response.result)
        if response.error is not ABSENT:
            return wire.error(theirs, response.error)
        message = "the client's response has neither a result nor an error"
        return error_replies.error(theirs, wire.INTERNAL_ERROR, message)

    def translate_cancellation(self, theirs: bytes, params: dict[str, Raw]) -> bytes | None:
        """Return the line that cancels the daemon's request at the editor; None if it is not open."""
        for ours, daemon_id in self._open.items():
            if daemon_id == theirs:
                del self._open[ours]
                return cancellation(ours, params)
        return None

    def cancel_all(self, reason: str) -> list[bytes]:
        """Return the lines that cancel all open requests at the editor, after the daemon has gone."""
        requests, self._open = self._open, {}
        return [cancellation(ours, {"reason": reason}) for ours in requests]


def cancellation(key: bytes, params: dict[str, Raw] | dict[str, str]) -> bytes:
    """Return the line that cancels the request with this id."""
    return wire.notification(CANCELLED, msgspec.json.encode({**params, "requestId": Raw(key)}))
