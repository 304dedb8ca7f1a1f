"""A cache bounded by the bytes of its entries, for results that depend on what other programs send."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

OVERHEAD = 200
"""Bytes that an entry counts in addition to its key and value."""


class SizedCache:
    """Keeps the results of `compute`, those used last first, up to `max_bytes` in total.

    A result that takes more than a sixteenth of that is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._entries: OrderedDict[tuple[Hashable, bytes], bytes] = OrderedDict()

    def get(self, kind: Hashable, data: bytes, compute: Callable[[bytes], bytes]) -> bytes:
        """Return `compute(data)`, or what it returned before for this `kind` and these bytes."""
        key = (kind, data)
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
            return known
        result = compute(data)
        size = _size(data, result)
        if size <= self.max_bytes // 16:
            self._entries[key] = result
            self.size += size
            while self.size > self.max_bytes:
                (_, oldest), value = self._entries.popitem(last=False)
                self.size -= _size(oldest, value)
        return result

    def __len__(self) -> int:
        return len(self._entries)


def _size(data: bytes, result: bytes) -> int:
    return OVERHEAD + len(data) + (len(result) if result is not data else 0)
