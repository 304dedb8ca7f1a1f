"""One limit for the bytes of all requests that are incomplete or wait their turn, on all connections."""

from __future__ import annotations

from mcpd.support.memory_tuning import trim_heap_soon

MAX_BUFFERED = 96 * 1024 * 1024
"""Bytes on all connections together."""
FREE_SHARE = 256 * 1024
"""Bytes that each connection may buffer in any case, so that large bodies cannot shut out small requests."""
_MUCH = 1024 * 1024
"""Bytes that are released before free memory is returned to the system."""


class BodyBudget:
    """Counts the bytes that connections buffer for requests."""

    def __init__(self, limit: int = MAX_BUFFERED) -> None:
        self.limit = limit
        self.used = 0
        self._most = 0
        """`used` at most since memory was last returned."""

    def change(self, old: int, new: int) -> bool:
        """A connection now buffers `new` bytes instead of `old`. Return False if it must give them up."""
        self.used += new - old
        if self.used > self._most:
            self._most = self.used
        elif self._most - self.used >= _MUCH:  # by one connection, or by many small ones
            self._most = self.used
            trim_heap_soon()
        return new <= max(old, FREE_SHARE) or self.used <= self.limit
