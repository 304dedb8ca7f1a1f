"""The editor's requests until they are answered: in which order, by when, and how many bytes of them wait."""

from __future__ import annotations

import math

from ctl.bridge.requests import HANDSHAKES, REPEATABLE, Request

HANDSHAKE_WITHIN = 8.0
"""Seconds that `initialize` and `server/discover` wait for a daemon; editors give up after ten, or thirty."""
DAEMON_WITHIN = 4.0
"""How much longer they wait for its answer: it may itself wait ten seconds for a server."""
PATIENCE = 15.0
"""How long any other request waits for a daemon to come; it is answered with an error then."""
MAX_OPEN = 4096
"""Requests under way. The daemon refuses sooner; this bounds what waits while there is none."""
MAX_WAITING = 8 * 1024 * 1024
"""Bytes of requests that wait for a daemon."""


class Pending:
    """A request waits until it is sent, and is open until `forget`."""

    def __init__(self) -> None:
        self.open: dict[bytes, Request] = {}
        """By the bytes of their id, in the order they came."""
        self.due: dict[bytes, float] = {}
        """When an error is sent in place of an answer, for those of them that have such a moment."""
        self._waiting = 0
        """Bytes of those that wait."""

    @property
    def waits(self) -> bool:
        """Whether the editor waits for one of them to be sent."""
        return any(not request.sent and request.listen is None for request in self.open.values())

    @property
    def is_at_work(self) -> bool:
        """Whether answers are still to come, subscriptions apart."""
        return any(request.listen is None for request in self.open.values())

    def has(self, method: str) -> bool:
        return any(request.method == method for request in self.open.values())

    def next_due(self) -> float:
        return min(self.due.values(), default=math.inf)

    def overdue(self, now: float) -> list[bytes]:
        return [key for key, due in self.due.items() if due <= now]

    def add(self, key: bytes, method: str, line: bytes, now: float, *, sent: bool) -> bool:
        """A new one; False, and nothing is kept, where that would be too many."""
        if len(self.open) >= MAX_OPEN or (not sent and self._waiting + len(line) > MAX_WAITING):
            return False
        keep = not sent or method in REPEATABLE
        self.open[key] = Request(method, line if keep else b"", sent)
        if method in HANDSHAKES:
            self.due[key] = now + HANDSHAKE_WITHIN + (DAEMON_WITHIN if sent else 0.0)
        elif not sent:
            self.due[key] = now + PATIENCE
        if not sent:
            self._waiting += len(line)
        return True

    def forget(self, key: bytes) -> Request:
        """It is over."""
        request = self.open.pop(key)
        self.due.pop(key, None)
        if not request.sent:
            self._waiting -= len(request.line)
        return request

    def wait_again(self, key: bytes, line: bytes, now: float) -> None:
        """It was sent, and has to be once more, as `line`; within `PATIENCE`, unless it is a subscription."""
        request = self.open[key]
        request.line = line
        self.reopen(request)
        if request.listen is None:
            self.due.setdefault(key, now + PATIENCE)

    def reopen(self, request: Request) -> None:
        """It waits to be sent once more, for as long as that takes."""
        request.sent = False
        self._waiting += len(request.line)

    def take_waiting(self) -> list[bytes]:
        """All that waits, to be sent now."""
        lines = []
        for key, request in self.open.items():
            if not request.sent:
                request.sent = True
                if request.method in HANDSHAKES:
                    self.due[key] += DAEMON_WITHIN
                else:
                    self.due.pop(key, None)
                lines.append(request.line)
                if request.method not in REPEATABLE:
                    request.line = b""
        self._waiting = 0
        return lines

    def bring_forward(self, by: float) -> None:
        """Whoever has a moment to give up at gives up at `by` at the latest."""
        for key, due in self.due.items():
            self.due[key] = min(due, by)
