"""Who is connected: a bounded number, and a newcomer takes the seat of whoever has been idle longest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

MAX_CLIENTS = 256


class Evictable(Protocol):
    """A connection, as its seat sees it."""

    @property
    def idle_since(self) -> float | None:
        """`trio.current_time()` of the last it said; None while anything is under way for it."""

    def evict(self, reason: str) -> None:
        """End it soon. Does not wait."""


class LruConnectionLimit:
    """One for each way in. Whoever has nothing under way may lose the seat, so nobody waits for long."""

    def __init__(self) -> None:
        self._connections: set[Evictable] = set()

    @contextmanager
    def held_by(self, connection: Evictable) -> Iterator[None]:
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    def evict_idlest(self) -> None:
        """Send away the one that is idle longest; nobody, when all are busy."""
        idle = [
            (since, connection)
            for connection in self._connections
            if (since := connection.idle_since) is not None
        ]
        if idle:
            _, sitter = min(idle, key=lambda entry: entry[0])
            self._connections.discard(sitter)
            sitter.evict("its seat was needed")


socket_limit = LruConnectionLimit()
"""Of the Unix socket. A port has its own: what comes there must not take a seat from anybody here."""
