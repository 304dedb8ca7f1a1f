"""Announces changes of logins to the event history and to clients that follow events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from mcpd.auth.discovery import LoginError
from mcpd.auth.renewal_request import LoginEvent
from mcpd.model.events import Event, EventKind
from mcpd.model.status import rfc3339

Announce = Callable[[Event], None]


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
