"""The calls that wait for approval on any replica, and what people have approved for an hour.

A call waits on the replica that has it, which reads the answers that others leave for it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from mcpd.model.config_api import PendingApproval
from mcpd.model.errors import InvalidArguments, McpdError, Problem
from mcpd.model.status import parse_timestamp, rfc3339

if TYPE_CHECKING:
    from mcpd.state.shared import Link, SharedState, Work

log = logging.getLogger("mcpd.calls")

GRANTED_SECONDS = 3600
_WAITING, _ANSWERS, _GRANTED = "mcpd:approvals", "mcpd:approvals:answers:", "mcpd:approvals:granted"
_STALE = 10.0
_MAX_SHARED = 128 * 1024
"""Bytes of arguments that others may see. The calls after these are only listed on their own replica."""
_MAX_GRANTED, _AT_ONCE = 1000, 16


class _Waiting(msgspec.Struct):
    daemon: str
    at: float
    """By the clock of Redis."""
    clock: float
    """See `Link`."""
    calls: Sequence[PendingApproval]


class WaitingCalls(Protocol):
    """The calls that wait here. Implemented by `Approvals`."""

    def list(self, mask: Callable[[str], str]) -> Sequence[PendingApproval]: ...
    async def answer(self, key: str, answer: str) -> None: ...
    def settle_granted(self) -> None:
        """Let those pass that a person has approved meanwhile, on any replica."""


class SharedApprovals:
    """See `SharedPart`."""

    def __init__(
        self,
        state: SharedState,
        approvals: WaitingCalls,
        mask: Callable[[str], str],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._state, self._approvals, self._mask, self._spawn = state, approvals, mask, spawn
        state.parts.append(self)
        self._daemon = secrets.token_hex(8)
        """An answer is for this process: the next one uses the same ids for other calls."""
        self._is_published = False
        self._granted: dict[str, float] = {}
        """Digest → the time until which it is approved, by this machine's monotonic clock."""
        self._unsent: tuple[str, ...] = ()

    def publish(self) -> None:
        """A call begins to wait."""
        self._state.exchange_soon()

    def is_granted(self, *what: str) -> bool:
        return self._granted.get(self._state.link.digest(*what), 0.0) > time.monotonic()

    def grant(self, *what: str) -> None:
        """Approve this on all replicas for an hour."""
        digest = self._state.link.digest(*what)
        self._granted[digest] = time.monotonic() + GRANTED_SECONDS
        self._unsent += (digest,)
        self._state.exchange_soon()

    def prepare(self) -> Work:
        waiting: list[PendingApproval] = []
        room = _MAX_SHARED
        for each in self._approvals.list(self._mask):
            if (room := room - 500 - len(each.arguments)) > 0:
                waiting.append(each)
        return partial(self._exchange, waiting, self._unsent)

    def _exchange(
        self, waiting: Sequence[PendingApproval], unsent: Sequence[str], link: Link
    ) -> Callable[[], None]:
        """Runs in the thread."""
        now = time.time() + link.clock
        if waiting:
            stored = msgspec.json.encode(_Waiting(self._daemon, now, link.clock, waiting))
            link.redis.hset(_WAITING, link.replica, link.seal(f"waiting {link.replica}", stored))
        elif self._is_published:
            link.redis.hdel(_WAITING, link.replica)
        self._is_published = bool(waiting)
        for digest in unsent:
            link.redis.zadd(_GRANTED, {digest: now + GRANTED_SECONDS})
        link.redis.zremrangebyscore(_GRANTED, "-inf", now)
        scores: Any = link.redis.zrevrange(_GRANTED, 0, _MAX_GRANTED - 1, withscores=True)
        ends = {key.decode(): time.monotonic() + min(float(at) - now, GRANTED_SECONDS) for key, at in scores}
        answers: Any = link.redis.lpop(f"{_ANSWERS}{link.replica}", _AT_ONCE) or []
        opened = filter(None, (link.unseal(f"answer {self._daemon}", each) for each in answers))
        decided = [msgspec.json.decode(each, type=tuple[str, str]) for each in opened]
        return partial(self._apply, unsent, ends, decided)

    def _apply(
        self, unsent: Sequence[str], granted: Mapping[str, float], decided: Sequence[tuple[str, str]]
    ) -> None:
        self._unsent = self._unsent[len(unsent) :]
        self._granted = {**granted, **{each: self._granted[each] for each in self._unsent}}
        self._approvals.settle_granted()
        for id, decision in decided:
            self._spawn(partial(self._answer_here, id, decision))

    async def _answer_here(self, id: str, decision: str) -> None:
        try:
            await self._approvals.answer(id, decision)
        except McpdError as error:
            log.warning("an answer of another replica cannot be used: %s", error)

    async def others(self) -> Sequence[PendingApproval]:
        """Return the calls that wait on other replicas."""
        nothing: dict[str, _Waiting] = {}
        clock = self._state.link.clock
        return [
            attrs.evolve(
                call,
                id=f"{call.id}@{replica}",
                since=rfc3339(parse_timestamp(call.since) + found.clock - clock),
                expires_at=rfc3339(parse_timestamp(call.expires_at) + found.clock - clock),
            )
            for replica, found in (await self._state.ask(self._read, nothing)).items()
            for call in found.calls
        ]

    async def answer(self, key: str, decision: str) -> None:
        """Answer a call that waits on another replica. Raises InvalidArguments."""
        id, _, replica = key.partition("@")
        nothing: dict[str, _Waiting] = {}
        found = (await self._state.ask(self._read, nothing)).get(replica)
        problem = None
        if found is None or all(call.id != id for call in found.calls):
            problem = Problem("$.id", f"no call {key!r} waits for approval", "mcpctl approvals")
        elif decision == "always":
            problem = Problem("$.decision", "a rule can only be written on the replica that has the call")
        elif not await self._state.ask(partial(self._send, replica, found.daemon, id, decision), False):
            problem = Problem("$.id", self._state.problem or "Redis cannot be used")
        if problem is not None:
            raise InvalidArguments(problem.message, [problem])

    def _send(self, replica: str, daemon: str, id: str, decision: str, link: Link) -> bool:
        key = f"{_ANSWERS}http://{replica}"
        link.redis.rpush(key, link.seal(f"answer {daemon}", msgspec.json.encode((id, decision))))
        return bool(link.redis.expire(key, round(_STALE)))

    def _read(self, link: Link) -> dict[str, _Waiting]:
        """Return what waits on the others. Runs in the thread."""
        found: dict[str, _Waiting] = {}
        now = time.time() + link.clock
        keys: Any = link.redis.hkeys(_WAITING)
        for name in (each.decode() for each in keys):
            stored: Any = link.redis.hget(_WAITING, name)
            content = None if name == link.replica or not stored else link.unseal(f"waiting {name}", stored)
            waiting = None if content is None else msgspec.json.decode(content, type=_Waiting)
            if waiting is not None and now - waiting.at < _STALE:
                found[name.removeprefix("http://")] = waiting
        return found
