"""Why nobody can rely on a server although it is connected."""

from __future__ import annotations

import math

import trio

from mcpd.model.text import shorten
from mcpd.transports.base import Channel
from mcpd.transports.child_process import Child

_LOST_CALLS_SHOWN = 600.0
"""Seconds after which it is unknown whether calls would still fail."""


class Degradation:
    """The evidence of one server."""

    def __init__(self) -> None:
        self._silence = (-math.inf, "")
        """When the server had last sent anything before it left a request unanswered, and what that means."""

    def note_silence(self, link: Channel, child: Child | None, seconds: float) -> None:
        """Note that a request has not been answered for `seconds`, until the server sends anything."""
        is_stopped = child is not None and child.is_stopped()
        what = "its process is stopped (SIGSTOP)" if is_stopped else f"it did not answer within {seconds:g} s"
        self._silence = (link.last_received_at, what)

    def describe(self, link: Channel, missed_checks: int, list_problem: str, instability: str) -> str:
        """Return what a connected server does not do; empty if nothing is known. May contain secrets."""
        silent_since, silence = self._silence
        if link.last_received_at == silent_since:
            return silence
        if missed_checks:
            checks = "the last health check" if missed_checks == 1 else f"{missed_checks} health checks"
            return f"it did not answer {checks}"
        lost = link.lost_calls
        if lost.count > 1 and lost.at > max(link.last_success_at, trio.current_time() - _LOST_CALLS_SHOWN):
            return f"its last {lost.count} calls failed: {shorten(lost.reason, 300)}"
        return list_problem or instability
