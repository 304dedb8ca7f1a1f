"""One limit for the bytes of all requests that are incomplete or wait their turn, on all connections."""

from __future__ import annotations

MAX_BUFFERED = 96 * 1024 * 1024
"""Bytes on all connections together."""
FREE_SHARE = 256 * 1024
"""Bytes that each connection may buffer in any case, so that large bodies cannot shut out small requests."""


class BodyBudget:
    """Counts the bytes that connections buffer for requests."""

    def __init__(self, limit: int = MAX_BUFFERED) -> None:
        self.limit = limit
        self.used = 0

    def change(self, old: int, new: int) -> bool:
        """A connection now buffers `new` bytes instead of `old`. Return False if it must give them up."""
        self.used += new - old
        return new <= max(old, FREE_SHARE) or self.used <= self.limit
