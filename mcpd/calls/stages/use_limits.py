"""The stage that limits how often, and how often at the same time, a client may use something (`rate` and
`concurrent` of a rule)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import attrs
import trio
from msgspec import Raw

from mcpd.calls.call import Call, Scope, Stage
from mcpd.calls.permissions import PERMISSION, Permission, Policies
from mcpd.calls.shared_limits import Share, SharedLimits
from mcpd.config.settings import Settings
from mcpd.model.errors import LimitReached
from mcpd.model.events import CallOutcome
from mcpd.model.policy import ClientFacts, ItemKind, PolicyRule
from mcpd.model.text import shorten
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer

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
    share: Share | None = None
    """What this replica may use of the rate; None if there are no others."""

    def count(self) -> int:
        """Return how many uses count now."""
        self.expire(trio.current_time())
        return len(self.times)

    def expire(self, now: float) -> None:
        while self.times and self.times[0] <= now - self.seconds:
            self.times.popleft()


class UseLimits:
    """All counters. They start at zero with the daemon, and when a rule changes."""

    def __init__(self, shared: SharedLimits | None = None) -> None:
        self._shared = shared
        self._uses: dict[tuple[str, str, str, Use], _Uses] = {}

    def enter(self, permission: Permission) -> list[_Uses]:
        """Count a use, until `leave` is called with what this returns. Raises LimitReached;
        nothing is counted then.

        Items that are in none of the server's lists are counted together: a client could invent any number.
        """
        now, use, rules = trio.current_time(), permission.use, permission.verdict.limits
        server, kind, _ = use
        counted = use if permission.is_listed else (server, kind, "")
        found = [self._find(rule, permission.client, counted, now) for rule in rules]
        for rule, uses in zip(rules, found, strict=True):
            uses.expire(now)
            if rule.concurrent is not None and uses.running >= rule.concurrent:
                limit = f"{rule.concurrent} calls at the same time (`concurrent`)"
                raise _refusal(rule, use, limit, "try again when one of them has ended")
            if rule.rate is not None and len(uses.times) >= rule.rate.count:
                wait = math.ceil(uses.times[0] + rule.rate.seconds - now)
                raise _refusal(rule, use, f"{rule.rate.written} (`rate`)", f"try again in {wait} s", wait)
            if rule.rate is not None and uses.share is not None and not uses.share.admits_more():
                limit = f"{rule.rate.written} (`rate`) on all replicas"
                raise _refusal(rule, use, limit, "try again in 1 s", 1)
        entered = list(dict.fromkeys(found))  # equal rules have one counter
        for uses in entered:
            uses.running += 1
            if uses.seconds:
                uses.times.append(now)
            if uses.share is not None:
                uses.share.use()
        return entered

    def leave(self, entered: Sequence[_Uses]) -> None:
        """The call of a use has ended."""
        for uses in entered:
            uses.running -= 1

    def _find(self, rule: PolicyRule, client: ClientFacts, counted: Use, now: float) -> _Uses:
        via = "" if client.executable else client.transport
        key = (rule.fingerprint, client.person or client.executable, via, counted)
        uses = self._uses.get(key)
        if uses is None:
            if len(self._uses) >= _MAX_COUNTERS:
                self._drop_unused(now)
            if len(self._uses) >= _MAX_COUNTERS:
                raise _refusal(rule, counted, f"{_MAX_COUNTERS} counters of all rules", "try again later")
            uses = self._uses[key] = _Uses(seconds=0.0 if rule.rate is None else rule.rate.seconds)
            if self._shared is not None and rule.rate is not None:
                names, rate = (rule.fingerprint, client.person or client.executable, via), rule.rate
                uses.share = Share(self._shared, (*names, *counted), rate.count, rate.seconds, uses.count)
        return uses

    def _drop_unused(self, now: float) -> None:
        for key, uses in list(self._uses.items()):
            uses.expire(now)
            if not (uses.times or uses.running):
                del self._uses[key]


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


_ENTERED = Attachment[list[_Uses]]("the uses that the call counts for")


class UseLimitStageFactory:
    is_per_tool = False

    def __init__(self, policies: Policies, shared: SharedLimits | None = None) -> None:
        self._policies = policies
        self._limits = UseLimits(shared)

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return self._policies.apply_to(server) and self._policies.require_more(server)

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> UseLimitStage:
        return UseLimitStage(self._limits)


@attrs.define(eq=False)
class UseLimitStage(Stage):
    """Refuses a call that would exceed a limit, with LimitReached."""

    limits: UseLimits

    def before(self, call: Call) -> None:
        permission = call.slots.get(PERMISSION)
        if permission is not None and permission.verdict.limits and _ENTERED not in call.slots:
            call.slots[_ENTERED] = self.limits.enter(permission)

    def ended(
        self, call: Call, outcome: CallOutcome, result: Raw | bytes, code: str = "", message: str = ""
    ) -> None:
        if (entered := call.slots.pop(_ENTERED, None)) is not None:
            self.limits.leave(entered)
