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
    random: Callable[[], float]
    _attempts: int = 0
    _end_times: deque[float] = attrs.field(factory=deque)
    _in_crash_loop: bool = False

    @property
    def attempts(self) -> int:
        """Starts in a row that ended before they had proved themselves."""
        return self._attempts

    def reset(self) -> None:
        """It proved itself, or a person asked for a fresh start."""
        self._attempts = 0
        self._end_times.clear()
        self._in_crash_loop = False

    def record_end(self, now: float) -> Pause:
        """A start has ended at `now` (seconds of any clock); how long to wait."""
        policy = self.policy
        self._attempts += 1
        self._end_times.append(now)
        while self._end_times and self._end_times[0] <= now - policy.period:
            self._end_times.popleft()
        if self._in_crash_loop or len(self._end_times) >= policy.intensity:
            self._in_crash_loop = True
            spread = policy.probe * policy.probe_spread * (2 * self.random() - 1)
            return Pause(policy.probe + spread, crash_loop=True)
        # The exponent is bounded: 2.0 ** 5000 overflows long after the cap has made it pointless.
        ceiling = min(policy.cap, policy.base * policy.factor ** min(self._attempts - 1, 64))
        return Pause(max(policy.floor, self.random() * ceiling), crash_loop=False)
