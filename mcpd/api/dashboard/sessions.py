"""Who may use the page: codes that are good once and for a minute, and the visits they open.

A visit is proved by two secrets. The cookie is out of reach of scripts, but a browser sends it to every port
of this machine, whoever listens there (RFC 6265, 8.5). The key is kept by the browser for our port alone, and
is sent in a header that neither a form nor a link can send. Neither opens `/mcp`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable

import attrs

CODE_LIFETIME = 60.0
"""Seconds in which a code must be used."""
SESSION_LIFETIME = 12 * 3600.0
"""Seconds without anything open on the page."""
_MAX_CODES = 16
_MAX_SESSIONS = 16
_BYTES = 32


@attrs.define(eq=False)
class DashboardSession:
    """One browser that was let in. `sockets`: what it has open, each with how to close it."""

    cookie: str
    key: str
    used_at: float
    sockets: dict[object, Callable[[str], None]] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _LoginCode:
    created_at: float
    session: DashboardSession | None = None
    """Whom it has let in."""


class CodeReused(Exception):
    """Two have the same code, so one of them has stolen it: neither is let in any more."""


class DashboardSessions:
    """Of one port. Codes and visits do not outlive the daemon."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: dict[bytes, _LoginCode] = {}
        self._sessions: list[DashboardSession] = []

    def create_code(self) -> str:
        """A new code, for a person who has proved on the Unix socket who they are."""
        self._expire()
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_BYTES)
        self._codes[_digest(code)] = _LoginCode(self._clock())
        return code

    def redeem(self, code: str) -> DashboardSession | None:
        """The visit that a code opens; None when it is unknown or too old. Raises UsedTwice.

        Command lines can be read by everybody on the machine, and a browser is given the address on its own.
        So a thief may be the first; then the second one, who is you, ends what the thief has opened.
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
        """The visit that both belong to."""
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
        """End them all."""
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
    """What is looked up says nothing, by the time it takes, about what is known."""
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
