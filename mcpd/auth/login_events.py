"""Announces changes of logins: to the event history, to clients that follow events, and on the desktop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from mcpd.auth.discovery import LoginError
from mcpd.auth.renewal_request import LoginEvent
from mcpd.model.events import Event, EventKind
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.support.desktop_notification import LimitedNotifications

Announce = Callable[[Event], None]

NOTIFICATION_INTERVAL = 3600.0
"""Seconds between two notifications about the same server."""
_MAX_REASON = 200


class LoginEvents:
    """Announces one event for each server that a login is for. No message contains a secret of a login."""

    def __init__(self, announce: Announce, mask: Callable[[str], str]) -> None:
        self._announce = announce
        self._mask = mask

    def on_begun(self, server: str) -> None:
        """A person began to log in."""
        self._send([server], "began; waiting for a person to finish it in a browser")

    def on_failed(self, server: str, error: LoginError) -> None:
        """An attempt ended without a login."""
        self._send([server], f"failed: {error}")

    def on_event(self, event: LoginEvent, servers: Iterable[str], issuer: str, reason: str) -> None:
        """A login of these servers was made, was or could not be renewed, or has ended. `reason` explains the
        last two."""
        why = f": {reason}" if reason else ""
        message = {
            "login_done": f"logged in at {issuer}",
            "login_refreshed": f"renewed at {issuer}",
            "renewal_failed": f"not renewed{why}",
            "login_needed": f"needed again{why}",
        }[event]
        self._send(servers, message)

    def _send(self, servers: Iterable[str], message: str) -> None:
        at, masked = rfc3339(time.time()), self._mask(message)
        for server in servers:
            self._announce(Event(kind=EventKind.LOGIN, at=at, server=server, message=masked))


def notify_login_needed(notifications: LimitedNotifications, servers: Collection[str], reason: str) -> None:
    """Notify the user that these servers need a login again. `reason` contains no secrets."""
    names = sorted(servers)
    if names:
        title = f"{shorten(', '.join(names), 80)}: login needed"
        text = f"{shorten(reason, _MAX_REASON)}\nRun: mcpctl login {names[0]}".lstrip()
        notifications.show(title, text, servers)
