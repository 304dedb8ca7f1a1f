"""Desktop notifications for logins that a person has to repeat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import trio

from mcpd.model.text import shorten
from mcpd.support.desktop_notification import show_notification

MIN_INTERVAL = 3600.0
"""Seconds between two notifications about the same server."""
_MAX_REASON = 200


class LoginNotifications:
    """Shows one for each login that has ended. A server that nobody ever logged in to gets none."""

    def __init__(
        self,
        environ: Mapping[str, str],
        is_enabled: Callable[[], bool],
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._environ = environ
        self._is_enabled = is_enabled
        self._start = start
        self._last: dict[str, float] = {}
        """By server (`trio.current_time()`)."""

    def on_needed(self, servers: Collection[str], reason: str) -> None:
        """Notify the user that these servers need a login again. `reason` contains no secrets."""
        now = trio.current_time()
        if not servers or not self._is_enabled():
            return
        if all(now - self._last.get(server, -MIN_INTERVAL) < MIN_INTERVAL for server in servers):
            return
        self._last.update(dict.fromkeys(servers, now))
        names = sorted(servers)
        title = f"{shorten(', '.join(names), 80)}: login needed"
        text = f"{shorten(reason, _MAX_REASON)}\nRun: mcpctl login {names[0]}".lstrip()

        async def show() -> None:
            await show_notification(title, text, self._environ)

        self._start(show)
