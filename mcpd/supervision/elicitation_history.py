"""Which tools of a server ask the client something during a call, learned by watching their calls."""

from __future__ import annotations

import math

QUIET_AFTER = 3
"""Calls of a tool without a request from the server after which we assume that it never sends any."""
_MAX_KEPT = 2000
"""Tools and methods that are remembered: clients may call any name."""


class ElicitationHistory:
    """What is known about one server while the daemon runs."""

    def __init__(self) -> None:
        self.names_no_calls = False
        """Whether a request has arrived outside of its call, although the transport could name the call.
        Servers on the Python SDK 1.x send sampling requests like this."""
        self._quiet_calls: dict[tuple[str, str], float] = {}
        """Method and tool → calls without a request; -∞ once there was one."""

    def may_ask(self, method: str, tool: str) -> bool:
        """Return whether the server may send elicitation or sampling requests during such a call."""
        return self._quiet_calls.get((method, tool), 0) < QUIET_AFTER

    def has_asked(self, method: str, tool: str) -> bool:
        """Return whether the server has sent such a request during such a call, or may have."""
        return self._quiet_calls.get((method, tool)) == -math.inf

    def record_answer(self, method: str, tool: str) -> None:
        """Count an answered call of a client that the server could have asked."""
        if len(self._quiet_calls) >= _MAX_KEPT:
            self._quiet_calls.clear()
        self._quiet_calls[method, tool] = self._quiet_calls.get((method, tool), 0) + 1

    def record_request(self, method: str, tool: str) -> None:
        """Note that the server does ask during such calls, or may have: this holds while the daemon runs."""
        self._quiet_calls[method, tool] = -math.inf
