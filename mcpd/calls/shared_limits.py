"""How replicas keep a `rate` together, without a call that waits for Redis.

In the background, Redis grants each replica a share of what is left. So all of them together do not exceed
the limit, with one exception: a replica that sees a client for the first time lets its equal share of the
limit pass until Redis has answered, and as long as Redis is down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from mcpd.state.shared import Link, SharedState, Work

_MAX_AT_ONCE = 500
_GRANT = """
local t = redis.call("time")
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local limit, window, used, held = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local others, all = 0, redis.call("hgetall", KEYS[1])
for i = 1, #all, 2 do
  local at, count = string.match(all[i + 1], "^(%d+) (%d+)$")
  if not at or at + window <= now then
    redis.call("hdel", KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    others = others + count
  end
end
local grant = held
if ARGV[6] ~= "0" then
  grant = math.max(held, math.ceil((limit - others - used) / ARGV[6]))
end
redis.call("hset", KEYS[1], ARGV[1], string.format("%.0f %.0f", now, used + grant))
redis.call("pexpire", KEYS[1], window)
return grant
"""
"""For each replica, what it has used or may use, and when it said so. `held` of that it may be using now."""


@attrs.define(eq=False)
class Share:
    """What this replica may use of one limit of one client."""

    limits: SharedLimits
    key: tuple[str, ...]
    limit: int
    seconds: float
    count: Callable[[], int]
    """Returns how many uses count now."""
    granted: int = 0
    """How many more Redis allows."""
    full: int = 0
    """`granted` when Redis answered."""
    answered_at: float = -math.inf
    was_used: bool = False

    def admits_more(self) -> bool:
        state = self.limits.state
        if state.is_down or self.answered_at + self.seconds < trio.current_time():
            return self.granted > 0 or self.count() < math.ceil(self.limit / state.link.replicas)
        if self.granted <= 0:
            self._ask()
        return self.granted > 0

    def use(self) -> None:
        self.granted -= 1
        self._ask()

    def _ask(self) -> None:
        self.was_used = True
        self.limits.touched[self] = None
        if self.granted * 2 <= self.full:
            self.limits.state.exchange_soon()


class SharedLimits:
    """See `SharedPart`."""

    def __init__(self, state: SharedState) -> None:
        self.state = state
        state.parts.append(self)
        self.touched: dict[Share, None] = {}
        """What was used, or has more than it needs."""

    def prepare(self) -> Work:
        asked: list[tuple[Share, int, int, bool]] = []
        for share in list(self.touched)[:_MAX_AT_ONCE]:
            del self.touched[share]
            if not share.was_used:
                share.granted = (share.granted + 1) // 2  # others may need it
            if share.was_used or share.granted > 1:
                self.touched[share] = None
            share.granted = max(0, share.granted)
            asked.append((share, share.count(), share.granted, share.was_used))
            share.was_used = False
        return partial(self._exchange, asked)

    def _exchange(self, asked: Sequence[tuple[Share, int, int, bool]], link: Link) -> Callable[[], None]:
        """Runs in the thread."""
        if not asked:
            return lambda: None
        pipe = link.redis.pipeline(transaction=False)
        for share, used, held, wants_more in asked:
            window = round(share.seconds * 1000)
            key = f"mcpd:uses:{link.digest(*share.key)}"
            divisor = link.replicas if wants_more else 0
            pipe.eval(_GRANT, 1, key, link.replica, share.limit, window, used, held, divisor)
        grants = [
            min(max(held, int(grant)), share.limit)
            for grant, (share, _, held, _) in zip(pipe.execute(), asked, strict=True)
        ]
        return partial(self._apply, [(share, held) for share, _, held, _ in asked], grants)

    def _apply(self, asked: Sequence[tuple[Share, int]], grants: Sequence[int]) -> None:
        for (share, held), grant in zip(asked, grants, strict=True):
            share.granted += grant - held  # less what was used meanwhile
            share.full, share.answered_at = share.granted, trio.current_time()
