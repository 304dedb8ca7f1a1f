"""Dashboard login: one-time codes that expire after a minute, and the sessions that they open.

A session requires two secrets. Scripts cannot read the cookie, but browsers send it to every port of this
machine (RFC 6265, 8.5). The key is stored by the browser for this port only, and sent in a header that forms
and links cannot send. Neither grants access to `/mcp`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

import attrs

CODE_LIFETIME = 60.0
"""Seconds after which a code expires."""
SESSION_LIFETIME = 12 * 3600.0
"""Seconds without an open WebSocket after which a session expires."""
_MAX_CODES = 16
_MAX_SESSIONS = 16
_BYTES = 32


@attrs.define(eq=False)
class DashboardSession:
    """A logged-in browser. `sockets`: its open WebSockets, each with its close function."""

    cookie: str
    key: str
    used_at: float
    sockets: dict[object, Callable[[str], None]] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _LoginCode:
    created_at: float
    session: DashboardSession | None = None
    """The session that it has opened."""


class CodeReused(Exception):
    """A code was used twice, so one user has stolen it. Its session is ended."""


class DashboardSessions:
    """The codes and sessions of one port. They end with the daemon."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: dict[bytes, _LoginCode] = {}
        self._sessions: list[DashboardSession] = []

    def create_code(self) -> str:
        """Return a new code for a user who was authenticated by the Unix socket."""
        self._expire()
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_BYTES)
        self._codes[_digest(code)] = _LoginCode(self._clock())
        return code

    def redeem(self, code: str) -> DashboardSession | None:
        """Return the session that a code opens; None if it is unknown or expired. Raises CodeReused.

        Other users can read the browser's command line, which contains the code. If a thief is first, the
        user's own attempt is the second one and ends the thief's session.
        """
        self._expire()
        known = self._codes.get(_digest(code))
        if known is None:
            return None
        if known.session is not None:
            self.end(known.session)
            raise CodeReused
        session = DashboardSession(
            secrets.token_urlsafe(_BYTES), secrets.token_urlsafe(_BYTES), self._clock()
        )
        known.session = session
        while len(self._sessions) >= _MAX_SESSIONS:
            self.end(min(self._sessions, key=lambda each: (bool(each.sockets), each.used_at)))
        self._sessions.append(session)
        return session

    def find(self, cookie: str, key: str) -> DashboardSession | None:
        """Return the session that both secrets belong to."""
        self._expire()
        found = None
        for session in self._sessions:
            if _equal(session.cookie, cookie) and _equal(session.key, key):
                found = session
        if found is not None:
            found.used_at = self._clock()
        return found

    def end(self, session: DashboardSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._close(session, "logged out")

    def close(self, reason: str) -> None:
        """End all sessions."""
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            self._close(session, reason)

    @property
    def socket_count(self) -> int:
        return sum(len(visit.sockets) for visit in self._sessions)

    def _close(self, session: DashboardSession, reason: str) -> None:
        for close in list(session.sockets.values()):
            close(reason)

    def _expire(self) -> None:
        now = self._clock()
        self._codes = {
            each: code for each, code in self._codes.items() if now - code.created_at <= CODE_LIFETIME
        }
        self._sessions = [
            visit for visit in self._sessions if visit.sockets or now - visit.used_at <= SESSION_LIFETIME
        ]


def _digest(code: str) -> bytes:
    """Return the lookup key of a code; hashing prevents timing attacks."""
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
