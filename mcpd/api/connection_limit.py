"""A bounded number of client connections: a new one replaces the one that has been idle longest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

MAX_CLIENTS = 256


class Evictable(Protocol):
    """A connection that may be closed to make room for another."""

    @property
    def idle_since(self) -> float | None:
        """`trio.current_time()` of its last message; None while it has a request in progress."""

    def evict(self, reason: str) -> None:
        """Close it soon. Does not wait."""


class LruConnectionLimit:
    """The connections of one listener. Each listener has its own, so none can evict another's clients."""

    def __init__(self) -> None:
        self._connections: set[Evictable] = set()

    @contextmanager
    def held_by(self, connection: Evictable) -> Iterator[None]:
        """Make `connection` evictable while the block runs."""
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    def evict_idlest(self) -> None:
        """Evict the connection that has been idle longest, if any is idle."""
        idle = [(since, each) for each in self._connections if (since := each.idle_since) is not None]
        if idle:
            _, connection = min(idle, key=lambda entry: entry[0])
            self._connections.discard(connection)
            connection.evict("evicted: too many connections are open")
