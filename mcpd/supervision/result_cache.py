"""The results of one server that answer further requests, within limits for their memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

MAX_SIZE = 4 * 1024 * 1024
"""Bytes of all results of one server."""
MAX_ENTRY = 1024 * 1024
"""Bytes of one result; a larger one is not kept."""
MAX_TOTAL = 32 * 1024 * 1024
"""Bytes of the results of all servers."""
_OVERHEAD = 500

Key = tuple[bytes, int]
"""What identifies the request, and who may use its result."""


class CachedResult(msgspec.Struct, frozen=True):
    result: bytes
    fresh_until: float
    """In `trio.current_time()`."""
    size: int


class ResultCache:
    """Results by feature (`tools`, `resources`, `prompts`) and key. The results used last are kept longest.

    A result is stored only if nothing has changed since its request was sent: the caller takes `epoch` then
    and passes it to `put`.
    """

    total = 0
    """Bytes of the results of all servers."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self._size = 0
        self._epoch = 0
        self._changed: dict[str, int] = {}
        self.pending: dict[tuple[str, bytes, int], Any] = {}
        """Requests that are at the server, for others that wait for the same result."""
        self._entries: OrderedDict[tuple[str, Key], CachedResult] = OrderedDict()

    def epoch(self, feature: str) -> int:
        """Return a number that differs after each change of the feature."""
        return self._changed.get(feature, 0)

    def get(self, feature: str, key: Key, now: float) -> CachedResult | None:
        found = self._entries.get((feature, key))
        if found is None:
            return None
        if found.fresh_until <= now:
            self._remove((feature, key))
            return None
        self._entries.move_to_end((feature, key))
        return found

    def put(self, feature: str, key: Key, result: bytes, fresh_until: float, epoch: int) -> None:
        """Store a result, unless it is too large or the feature has changed since `epoch`."""
        size = _OVERHEAD + len(key[0]) + len(result)
        if epoch != self.epoch(feature) or size > MAX_ENTRY:
            return
        self._remove((feature, key))
        while self._entries and (self._size + size > MAX_SIZE or ResultCache.total + size > MAX_TOTAL):
            self._remove(next(iter(self._entries)))
        if ResultCache.total + size > MAX_TOTAL:
            return  # other servers' results take the room
        self._entries[feature, key] = CachedResult(result, fresh_until, size)
        self._size += size
        ResultCache.total += size

    def forget(self, feature: str) -> int:
        """Drop the results of a feature that has changed. Return how many there were."""
        self._epoch += 1
        self._changed[feature] = self._epoch
        dropped = [each for each in self._entries if each[0] == feature]
        for each in dropped:
            self._remove(each)
        return len(dropped)

    def clear(self) -> int:
        """Drop all results. Return how many there were."""
        return sum(map(self.forget, ("tools", "resources", "prompts")))

    def _remove(self, entry: tuple[str, Key]) -> None:
        removed = self._entries.pop(entry, None)
        if removed is not None:
            self._size -= removed.size
            ResultCache.total -= removed.size
