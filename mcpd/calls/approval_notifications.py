"""Desktop notifications of calls that wait for approval, and whose clients cannot ask the person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio

from mcpd.model.text import shorten
from mcpd.support.desktop_notification import show_notification

MIN_INTERVAL = 30.0
"""Seconds between two notifications: all calls that wait are in the list that they point to."""


class ApprovalNotifications:
    """`start` must run a task that outlives the client that made the call."""

    def __init__(
        self,
        environ: Mapping[str, str],
        is_enabled: Callable[[], bool],
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._environ = environ
        self._is_enabled = is_enabled
        self._start = start
        self._last = -MIN_INTERVAL

    def on_waiting(self, client: str, what: str) -> None:
        """Tell the person that a call waits. The arguments of the call are not shown."""
        now = trio.current_time()
        if now - self._last < MIN_INTERVAL or not self._is_enabled():
            return
        self._last = now
        title = f"{shorten(client, 80)} needs your approval"
        text = f"It wants to use {shorten(what, 200)}\nRun: mcpctl approvals, or mcpctl ui"

        async def show() -> None:
            await show_notification(title, text, self._environ)

        self._start(show)
