"""The stage that answers a request with the result of an earlier, equal one.

A resource or prompt is cached if its server says for how long (`ttlMs`, MCP 2026-07-28); a tool's result if
the definition says so (`cache`) and the server declares the tool read-only. A private result is used only for
the client that asked for it. Equal requests that arrive while the first is at the server wait for its result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import WAS_ASKED, Answer, Call, Caller, Scope, Stage, StageWork
from mcpd.config.settings import Settings
from mcpd.model.events import CallOutcome
from mcpd.model.policy import is_read_only
from mcpd.supervision.attachments import Attachment
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.tool_call_stats import is_error_result
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

FEATURES: Mapping[str, str] = {"tools/call": "tools", "resources/read": "resources", "prompts/get": "prompts"}
MAX_TTL = 86_400.0
"""Seconds after which a result is requested again, whatever its server says."""
_MAX_KEY = 16 * 1024
"""Bytes of params that are compared with others."""
_WITHOUT_EFFECT = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})
"""Members of `_meta` that do not change the result."""
_NOT_FIRST = ("requestState", "inputResponses")
"""Members of requests that answer a question, and have a meaning only once."""


class CacheStageFactory:
    is_per_tool = True

    def __init__(self) -> None:
        self._owners: WeakKeyDictionary[Caller, int] = WeakKeyDictionary()
        self._numbers = itertools.count(1)

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return bool(server.spec.cache) if method == "tools/call" else server.spec.cache is not None

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> CacheStage | None:
        """Tools that may write are never cached."""
        feature, lifetimes = FEATURES.get(method), server.spec.cache
        if feature is None or lifetimes is None:
            return None
        lifetime = None
        if feature == "tools":
            item = server.catalog.tool(name) if server.catalog is not None else None
            lifetime = lifetimes.get(name)
            if lifetime is None or item is None or not is_read_only(item.raw):
                return None
        return CacheStage(server, feature, lifetime, self.owner)

    def owner(self, caller: Caller) -> int:
        """Return a number that no other caller has ever had."""
        number = self._owners.get(caller)
        if number is None:
            number = self._owners[caller] = next(self._numbers)
        return number


class _PendingResult(msgspec.Struct, eq=False):
    """A request that is at the server."""

    entry: tuple[str, bytes, int]
    """Where it is in `ResultCache.pending`."""
    owner: int
    upstream: object
    epoch: int
    """See `ResultCache`."""
    done: trio.Event = msgspec.field(default_factory=trio.Event)
    answer: Raw | bytes | None = None
    """The result, if others may use it."""
    is_private: bool = True
    """Whether only `owner` may use it; also if there is no result."""


_ASKED = Attachment[_PendingResult]("the request at the server that others wait for")


@attrs.define(eq=False)
class CacheStage(Stage):
    """Caches the results of one tool, or of one method."""

    server: ManagedServer
    feature: str
    lifetime: float | None
    """Seconds for which a tool's results are used. None: the server says that with each result."""
    owner: Callable[[Caller], int]

    def before(self, call: Call) -> Answer | StageWork | None:
        upstream = self.server.upstream
        if upstream is None or (self.lifetime is None and not upstream.sends_cache_hints):
            return None
        key = _key(call.params)
        return None if key is None else self._find(call, key)

    def _find(self, call: Call, key: bytes, *, is_private: bool = False) -> Answer | StageWork | None:
        """Return the answer if it is known, or how to wait for it. Otherwise, others wait for this call.

        `is_private`: the results of such requests are known to be private, so clients do not share requests.
        """
        results, owner, now = self.server.results, self.owner(call.caller), trio.current_time()
        epoch = results.epoch(self.feature)
        for use_by in (0, owner):
            found = results.get(self.feature, (key, use_by), now)
            if found is not None:
                results.hits += 1
                return Answer(_with_ttl(found.result, found.fresh_until - now))
        for use_by in (owner,) if is_private else (0, owner):
            first: _PendingResult | None = results.pending.get((self.feature, key, use_by))
            if first is not None and first.epoch == epoch:
                return partial(self._wait, call, first)
        results.misses += 1
        entry = (self.feature, key, owner if is_private else 0)
        asked = _PendingResult(entry, owner, self.server.upstream, epoch)
        results.pending[entry] = call.slots[_ASKED] = asked
        return None

    async def _wait(self, call: Call, first: _PendingResult) -> Answer | None:
        """Return the answer to an equal request; None if the call must be sent itself."""
        await first.done.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        results, is_private = self.server.results, False
        if first.answer is not None and first.epoch == results.epoch(self.feature):
            is_private = first.is_private
            if not is_private or first.owner == self.owner(call.caller):
                results.hits += 1
                return Answer(first.answer)
        found = self._find(call, first.entry[1], is_private=is_private)
        return await found() if callable(found) else found

    def after(self, call: Call, result: Raw | bytes) -> Raw | bytes:
        asked = call.slots.get(_ASKED)
        if asked is None:
            return result  # it came from the cache
        seconds, is_private = self._lifetime(call, result)
        if seconds > 0 and self.server.upstream is asked.upstream:
            kept, until = bytes(result), trio.current_time() + seconds
            use_by = asked.owner if is_private else 0
            key = (asked.entry[1], use_by)
            self.server.results.put(self.feature, key, kept, until, asked.epoch)
            asked.answer, asked.is_private = result, is_private
        self._on_ended(call)
        return result

    def _lifetime(self, call: Call, result: Raw | bytes) -> tuple[float, bool]:
        """Return for how many seconds the result may be used, and whether only by the same client."""
        if call.rounds or WAS_ASKED in call.slots:
            return 0, True  # it contains what this client has answered
        if self.lifetime is not None:
            return 0 if is_error_result(Raw(result)) else self.lifetime, False
        members = wire.members_or_empty(result)
        try:
            milliseconds = msgspec.json.decode(members.get("ttlMs", b"0"), type=float)
            scope = msgspec.json.decode(members.get("cacheScope", b'""'), type=str)
        except msgspec.MsgspecError:
            return 0, True
        return min(milliseconds / 1000, MAX_TTL), scope != "public"

    def ended(
        self, call: Call, outcome: CallOutcome, result: Raw | bytes, code: str = "", message: str = ""
    ) -> None:
        self._on_ended(call)

    def _on_ended(self, call: Call) -> None:
        asked = call.slots.pop(_ASKED, None)
        if asked is None:
            return
        pending = self.server.results.pending
        if pending.get(asked.entry) == asked:
            del pending[asked.entry]
        asked.done.set()


def _key(params: bytes) -> bytes | None:
    """Return the same bytes for all requests with an equal result; None if the request is not comparable."""
    if len(params) > _MAX_KEY:
        return None
    try:
        value = wire.value(params or b"{}")
    except BadFrame:
        return None
    if not isinstance(value, dict) or any(name in value for name in _NOT_FIRST):
        return None
    meta = value.pop("_meta", None)
    if isinstance(meta, dict):
        meta = {name: each for name, each in meta.items() if name not in _WITHOUT_EFFECT}
    return msgspec.json.encode([value, meta] if meta else [value], order="sorted")


def _with_ttl(result: bytes, seconds: float) -> Raw | bytes:
    """Return a result with its remaining lifetime instead of the original one."""
    members = wire.members_or_empty(result)
    if "ttlMs" not in members:
        return result
    return msgspec.json.encode({**members, "ttlMs": max(0, int(seconds * 1000))})
