"""When a server that ended is started again: full jitter, and a slow probe once it is a crash loop.

Pure: time and chance come from outside. Figures and reasons: `RestartPolicy`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from mcpd.model.server_spec import RestartPolicy


@attrs.frozen
class Pause:
    """How long to wait before the next start, and whether that is because of a crash loop."""

    seconds: float
    crash_loop: bool


@attrs.define
class Backoff:
    """One server's record of ended starts. `chance` gives numbers in [0, 1)."""

    policy: RestartPolicy
    chance: Callable[[], float]
    _tries: int = 0
    _ended: deque[float] = attrs.field(factory=deque)
    _looping: bool = False

    @property
    def tries(self) -> int:
        """Starts in a row that ended before they had proved themselves."""
        return self._tries

    def reset(self) -> None:
        """It proved itself, or a person asked for a fresh start."""
        self._tries = 0
        self._ended.clear()
        self._looping = False

    def ended(self, now: float) -> Pause:
        """A start has ended at `now` (seconds of any clock); how long to wait."""
        policy = self.policy
        self._tries += 1
        self._ended.append(now)
        while self._ended and self._ended[0] <= now - policy.period:
            self._ended.popleft()
        if self._looping or len(self._ended) >= policy.intensity:
            self._looping = True
            spread = policy.probe * policy.probe_spread * (2 * self.chance() - 1)
            return Pause(policy.probe + spread, crash_loop=True)
        # The exponent is bounded: 2.0 ** 5000 overflows long after the cap has made it pointless.
        ceiling = min(policy.cap, policy.base * policy.factor ** min(self._tries - 1, 64))
        return Pause(max(policy.floor, self.chance() * ceiling), crash_loop=False)
