"""When a token expires, when it is renewed ahead, and when a refusal or a failure may cause a renewal."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import attrs
import trio

from mcpd.auth.oauth.tokens import TokenSet
from mcpd.process.suspend import boottime

YOUNG = 60.0
"""A token that a server refuses within this time, and that it never accepted, is not worth renewing."""
MAX_REFUSALS, REFUSAL_PERIOD = 6, 600.0
"""How often a refused token that has not expired may cause a renewal in this time."""
_MIN_LIFETIME = 60.0
_MAX_DELAY = 300.0
_MAX_RETRY_AFTER = 3600.0
_SUSPEND, _AFTER_SUSPEND = 10.0, 5.0
"""After a suspend of so many seconds, the network gets so many seconds to come back before a renewal."""


@attrs.frozen
class Clocks:
    """Seconds of three clocks."""

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = boottime
    """Includes suspended time, and never jumps."""
    awake: Callable[[], float] = time.monotonic


def lead_time(lifetime: float) -> float:
    """Return how long before its end a token is renewed; 0 if it lives too shortly for that."""
    return 0.0 if lifetime < _MIN_LIFETIME else min(max(0.2 * lifetime, 30.0), 300.0)


def backoff(failures: int, retry_after: float | None, random: Callable[[], float]) -> float:
    """Return the delay after so many failures in a row: doubled from one second to five minutes, ±20 %.

    `retry_after` is what the server asked for.
    """
    if retry_after is not None:
        return min(max(1.0, retry_after), _MAX_RETRY_AFTER)
    return min(_MAX_DELAY, 2.0 ** min(failures - 1, 30)) * (0.8 + 0.4 * random())


class TokenTimes:
    """When a token expires and is renewed ahead. In seconds since boot, because the wall clock may be set."""

    def __init__(
        self, tokens: TokenSet, clocks: Clocks, random: Callable[[], float], *, issued_now: bool
    ) -> None:
        self._clocks = clocks
        self._suspended = clocks.boot() - clocks.awake()
        self.issued_at = clocks.boot() if issued_now else -math.inf
        left = math.inf if tokens.expires_at is None else tokens.expires_at - clocks.wall()
        self.expires_at = clocks.boot() + left
        lead = lead_time(tokens.lifetime or 0.0)
        # Up to 5 % are random, so that tokens issued together are not renewed together.
        ahead = lead * (1 + 0.05 * (2 * random() - 1))
        self.renew_at = max(clocks.boot(), self.expires_at - ahead) if lead else math.inf

    async def wait_after_suspend(self) -> None:
        """Give the network a moment: most answers are lost right after a suspend."""
        before, self._suspended = self._suspended, self._clocks.boot() - self._clocks.awake()
        if self._suspended - before > _SUSPEND:
            await trio.sleep(_AFTER_SUSPEND)


class RefusalLimit:
    """Decides whether a newer token may help if the server refuses one that has not expired."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=MAX_REFUSALS)
        """When renewals were caused by such tokens, in seconds since boot."""

    def permits(self, now: float, times: TokenTimes, *, was_accepted: bool) -> bool:
        if now >= times.expires_at:
            return True
        is_often = len(self._at) == MAX_REFUSALS and now - self._at[0] < REFUSAL_PERIOD
        if is_often or (now - times.issued_at < YOUNG and not was_accepted):
            return False
        self._at.append(now)
        return True
