"""Limits of `settings.policies`: how often and how often at the same time a client may use an item.

Clients are identified by their program, as the kernel reports it, because they choose everything else
themselves. A client that reconnects, or uses another name, remains the same client. Clients whose program is
unknown count as one client for each transport.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from mcpd.calls.call import Call
from mcpd.model.errors import LimitReached
from mcpd.model.policy import ClientFacts, ItemKind, PolicyRule
from mcpd.model.text import shorten

_MAX_COUNTERS = 10_000
"""Counters in use at the same time."""
Use = tuple[str, ItemKind, str]
"""(definition name, kind, name)."""


@attrs.define(eq=False)
class _Uses:
    """What one client does with one item under one rule."""

    times: deque[float] = attrs.field(factory=deque)
    """When the uses that count began (`trio.current_time()`), oldest first."""
    running: int = 0
    seconds: float = 0.0
    """For how long a use counts."""

    def expire(self, now: float) -> None:
        while self.times and self.times[0] <= now - self.seconds:
            self.times.popleft()


class UseLimits:
    """All counters. They start at zero with the daemon, and when a rule changes."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str, str, Use], _Uses] = {}

    def enter(
        self, call: Call, rules: Sequence[PolicyRule], client: ClientFacts, use: Use, *, is_listed: bool
    ) -> None:
        """Count a use until its call ends. Raises LimitReached; the use then counts for no rule.

        Items that are in none of the server's lists are counted together: a client could invent any number.
        """
        now = trio.current_time()
        server, kind, _ = use
        counted = use if is_listed else (server, kind, "")
        found = [self._find(rule, client, counted, now) for rule in rules]
        for rule, uses in zip(rules, found, strict=True):
            uses.expire(now)
            if rule.concurrent is not None and uses.running >= rule.concurrent:
                limit = f"{rule.concurrent} calls at the same time (`concurrent`)"
                raise _refusal(rule, use, limit, "try again when one of them has ended")
            if rule.rate is not None and len(uses.times) >= rule.rate.count:
                wait = math.ceil(uses.times[0] + rule.rate.seconds - now)
                raise _refusal(rule, use, f"{rule.rate.written} (`rate`)", f"try again in {wait} s", wait)
        entered = list(dict.fromkeys(found))  # equal rules have one counter
        for uses in entered:
            uses.running += 1
            if uses.seconds:
                uses.times.append(now)
        call.on_end = partial(_leave, entered)

    def _find(self, rule: PolicyRule, client: ClientFacts, counted: Use, now: float) -> _Uses:
        via = "" if client.executable else client.transport
        key = (rule.fingerprint, client.executable, via, counted)
        uses = self._uses.get(key)
        if uses is None:
            if len(self._uses) >= _MAX_COUNTERS:
                self._drop_unused(now)
            if len(self._uses) >= _MAX_COUNTERS:
                raise _refusal(rule, counted, f"{_MAX_COUNTERS} counters of all rules", "try again later")
            uses = self._uses[key] = _Uses(seconds=0.0 if rule.rate is None else rule.rate.seconds)
        return uses

    def _drop_unused(self, now: float) -> None:
        for key, uses in list(self._uses.items()):
            uses.expire(now)
            if not (uses.times or uses.running):
                del self._uses[key]


def _leave(counters: list[_Uses]) -> None:
    while counters:
        counters.pop().running -= 1


def _refusal(rule: PolicyRule, use: Use, limit: str, advice: str, wait: int | None = None) -> LimitReached:
    server, kind, name = use
    why = f" ({rule.reason})" if rule.reason else ""
    return LimitReached(
        f"{server}: {kind} {shorten(name, 80)!r} was not used: the rule at {rule.place} limits this client "
        f"to {limit}{why}; {advice}",
        server=server,
        rule=rule.place,
        retry_after=wait,
    )
