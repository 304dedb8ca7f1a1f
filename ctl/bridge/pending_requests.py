"""The editor's requests until they are answered: in which order, by when, and how many bytes of them wait."""

from __future__ import annotations

import math

from ctl.bridge.requests import HANDSHAKE_METHODS, RETRYABLE_METHODS, EditorRequest

HANDSHAKE_TIMEOUT = 8.0
"""Seconds that `initialize` and `server/discover` wait for a daemon; editors give up after ten, or thirty."""
DAEMON_RESPONSE_TIMEOUT = 4.0
"""How much longer they wait for its answer: it may itself wait ten seconds for a server."""
DAEMON_WAIT_TIMEOUT = 15.0
"""How long any other request waits for a daemon to come; it is answered with an error then."""
MAX_OPEN = 4096
"""Requests under way. The daemon refuses sooner; this bounds what waits while there is none."""
MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""Bytes of requests that wait for a daemon."""


class PendingEditorRequests:
    """A request waits until it is sent, and is open until `forget`."""

    def __init__(self) -> None:
        self.open: dict[bytes, EditorRequest] = {}
        """By the bytes of their id, in the order they came."""
        self.deadlines: dict[bytes, float] = {}
        """When an error is sent in place of an answer, for those of them that have such a moment."""
        self._unsent_bytes = 0
        """Bytes of those that wait."""

    @property
    def has_unsent(self) -> bool:
        """Whether the editor waits for one of them to be sent."""
        return any(not request.sent and request.subscription is None for request in self.open.values())

    @property
    def has_open(self) -> bool:
        """Whether answers are still to come, subscriptions apart."""
        return any(request.subscription is None for request in self.open.values())

    def has_method(self, method: str) -> bool:
        return any(request.method == method for request in self.open.values())

    def next_deadline(self) -> float:
        return min(self.deadlines.values(), default=math.inf)

    def overdue(self, now: float) -> list[bytes]:
        return [key for key, due in self.deadlines.items() if due <= now]

    def add(self, key: bytes, method: str, line: bytes, now: float, *, sent: bool) -> bool:
        """A new one; False, and nothing is kept, where that would be too many."""
        if len(self.open) >= MAX_OPEN or (not sent and self._unsent_bytes + len(line) > MAX_UNSENT_BYTES):
            return False
        keep = not sent or method in RETRYABLE_METHODS
        self.open[key] = EditorRequest(method, line if keep else b"", sent)
        if method in HANDSHAKE_METHODS:
            self.deadlines[key] = now + HANDSHAKE_TIMEOUT + (DAEMON_RESPONSE_TIMEOUT if sent else 0.0)
        elif not sent:
            self.deadlines[key] = now + DAEMON_WAIT_TIMEOUT
        if not sent:
            self._unsent_bytes += len(line)
        return True

    def remove(self, key: bytes) -> EditorRequest:
        """It is over."""
        request = self.open.pop(key)
        self.deadlines.pop(key, None)
        if not request.sent:
            self._unsent_bytes -= len(request.line)
        return request

    def requeue(self, key: bytes, line: bytes, now: float) -> None:
        """It was sent, and has to be once more, as `line`; within `PATIENCE`, unless it is a subscription."""
        request = self.open[key]
        request.line = line
        self.mark_unsent(request)
        if request.subscription is None:
            self.deadlines.setdefault(key, now + DAEMON_WAIT_TIMEOUT)

    def mark_unsent(self, request: EditorRequest) -> None:
        """It waits to be sent once more, for as long as that takes."""
        request.sent = False
        self._unsent_bytes += len(request.line)

    def take_unsent(self) -> list[bytes]:
        """All that waits, to be sent now."""
        lines = []
        for key, request in self.open.items():
            if not request.sent:
                request.sent = True
                if request.method in HANDSHAKE_METHODS:
                    self.deadlines[key] += DAEMON_RESPONSE_TIMEOUT
                else:
                    self.deadlines.pop(key, None)
                lines.append(request.line)
                if request.method not in RETRYABLE_METHODS:
                    request.line = b""
        self._unsent_bytes = 0
        return lines

    def limit_deadlines(self, by: float) -> None:
        """Whoever has a moment to give up at gives up at `by` at the latest."""
        for key, due in self.deadlines.items():
            self.deadlines[key] = min(due, by)
