"""When to renew a token: before it expires, and again after a failure. Nothing here knows the time."""

from __future__ import annotations

from collections.abc import Callable

import attrs

ACTIVE = 86_400.0
"""Logins that nobody has used for so long are renewed only when they are used."""
YOUNG = 60.0
"""A token that a server refuses within this time, and that it never accepted, is not worth renewing."""
MAX_REFUSALS, REFUSAL_PERIOD = 6, 600.0
"""How often a refused token that has not expired may cause a renewal in this time."""
_MIN_LIFETIME = 60.0
_MAX_DELAY = 300.0
_MAX_RETRY_AFTER = 3600.0
_HURRY_AFTER = 2.0
"""Seconds after a failed renewal before a request may cause the next one, whatever the delay."""


def lead_time(lifetime: float) -> float | None:
    """Return how long before its end a token is renewed; None if it lives too shortly for that."""
    if lifetime < _MIN_LIFETIME:
        return None
    return min(max(0.2 * lifetime, 30.0), 300.0, 0.5 * lifetime)


def renewal_delay(lifetime: float | None, left: float, random: Callable[[], float]) -> float | None:
    """Return in how many seconds a token with `left` seconds is renewed ahead; None if it is not.

    Up to 5 % of the lead is random, so that tokens issued together are not renewed together.
    """
    lead = None if lifetime is None else lead_time(lifetime)
    if lead is None:
        return None
    return max(0.0, left - lead * (1 + 0.05 * (2 * random() - 1)))


@attrs.frozen
class Failure:
    """A renewal that failed, and may succeed later."""

    message: str
    failed_at: float
    retry_at: float
    may_hurry: bool = True
    """Whether a request may cause an earlier attempt; not if the server asked to wait."""
    needs_person: bool = False
    """Whether it will probably fail until a person logs in again."""

    def permits_attempt(self, now: float) -> bool:
        return now >= self.retry_at or (self.may_hurry and now >= self.failed_at + _HURRY_AFTER)


@attrs.define
class Backoff:
    """The delays after failures in a row: doubled from one second to five minutes, ±20 %."""

    random: Callable[[], float]
    failures: int = 0

    def next_delay(self, retry_after: float | None) -> float:
        """Count a failure, and return the delay; `retry_after` is what the server asked for."""
        self.failures += 1
        if retry_after is not None:
            return min(max(1.0, retry_after), _MAX_RETRY_AFTER)
        delay: float = min(_MAX_DELAY, 2.0 ** min(self.failures - 1, 30))
        return delay * (0.8 + 0.4 * self.random())

    def reset(self) -> None:
        self.failures = 0
