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

CODE_LIVES = 60.0
"""Seconds in which a code must be used."""
VISIT_LIVES = 12 * 3600.0
"""Seconds without anything open on the page."""
_MOST_CODES = 16
_MOST_VISITS = 16
_BYTES = 32


@attrs.define(eq=False)
class Visit:
    """One browser that was let in. `sockets`: what it has open, each with how to close it."""

    cookie: str
    key: str
    used_at: float
    sockets: dict[object, Callable[[str], None]] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _Code:
    made_at: float
    visit: Visit | None = None
    """Whom it has let in."""


class UsedTwice(Exception):
    """Two have the same code, so one of them has stolen it: neither is let in any more."""


class Visits:
    """Of one port. Codes and visits do not outlive the daemon."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: dict[bytes, _Code] = {}
        self._visits: list[Visit] = []

    def invite(self) -> str:
        """A new code, for a person who has proved on the Unix socket who they are."""
        self._forget()
        while len(self._codes) >= _MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(_BYTES)
        self._codes[_digest(code)] = _Code(self._clock())
        return code

    def redeem(self, code: str) -> Visit | None:
        """The visit that a code opens; None when it is unknown or too old. Raises UsedTwice.

        Command lines can be read by everybody on the machine, and a browser is given the address on its own.
        So a thief may be the first; then the second one, who is you, ends what the thief has opened.
        """
        self._forget()
        known = self._codes.get(_digest(code))
        if known is None:
            return None
        if known.visit is not None:
            self.end(known.visit)
            raise UsedTwice
        visit = Visit(secrets.token_urlsafe(_BYTES), secrets.token_urlsafe(_BYTES), self._clock())
        known.visit = visit
        while len(self._visits) >= _MOST_VISITS:
            self.end(min(self._visits, key=lambda each: (bool(each.sockets), each.used_at)))
        self._visits.append(visit)
        return visit

    def find(self, cookie: str, key: str) -> Visit | None:
        """The visit that both belong to."""
        self._forget()
        found = None
        for visit in self._visits:
            if _same(visit.cookie, cookie) and _same(visit.key, key):
                found = visit
        if found is not None:
            found.used_at = self._clock()
        return found

    def end(self, visit: Visit) -> None:
        if visit in self._visits:
            self._visits.remove(visit)
            self._close(visit, "logged out")

    def close(self, reason: str) -> None:
        """End them all."""
        visits, self._visits = self._visits, []
        for visit in visits:
            self._close(visit, reason)

    @property
    def sockets(self) -> int:
        return sum(len(visit.sockets) for visit in self._visits)

    def _close(self, visit: Visit, reason: str) -> None:
        for close in list(visit.sockets.values()):
            close(reason)

    def _forget(self) -> None:
        now = self._clock()
        self._codes = {each: code for each, code in self._codes.items() if now - code.made_at <= CODE_LIVES}
        self._visits = [
            visit for visit in self._visits if visit.sockets or now - visit.used_at <= VISIT_LIVES
        ]


def _digest(code: str) -> bytes:
    """What is looked up says nothing, by the time it takes, about what is known."""
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
