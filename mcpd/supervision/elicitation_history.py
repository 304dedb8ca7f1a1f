"""Whether a server ever sends requests to the client during a call, learned by watching its calls."""

from __future__ import annotations

from collections.abc import Callable

QUIET_AFTER = 50
"""Calls without a request from the server after which we assume that it never sends any."""


class ElicitationHistory:
    """What is known about one server. The verdict is kept in the state file, through `learn`."""

    def __init__(self, *, never_asks: bool, learn: Callable[[bool], None]) -> None:
        self.never_asks = never_asks
        """Whether the server is known never to send elicitation or sampling requests."""
        self.names_no_calls = False
        """Whether such a request has arrived outside of its call, although the transport could name the call.
        Servers on the Python SDK 1.x send sampling requests like this."""
        self._calls = 0
        self._learn = learn
        self._has_asked = False

    def record_call(self) -> None:
        """Count a finished call of a client that the server could have asked."""
        self._calls += 1
        if self._calls >= QUIET_AFTER and not self._has_asked and not self.never_asks:
            self.never_asks = True
            self._learn(True)

    def record_request(self) -> None:
        """Note that the server does ask: this holds for as long as it runs, and clears a saved verdict."""
        self._has_asked = True
        if self.never_asks:
            self.never_asks = False
            self._learn(False)
