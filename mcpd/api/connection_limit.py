"""Who is connected: a bounded number, and a newcomer takes the seat of whoever has been idle longest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

MAX_CLIENTS = 256


class Sitter(Protocol):
    """A connection, as its seat sees it."""

    @property
    def idle_since(self) -> float | None:
        """`trio.current_time()` of the last it said; None while anything is under way for it."""

    def leave(self, reason: str) -> None:
        """End it soon. Does not wait."""


class Seats:
    """One for each way in. Whoever has nothing under way may lose the seat, so nobody waits for long."""

    def __init__(self) -> None:
        self._sitters: set[Sitter] = set()

    @contextmanager
    def taken_by(self, sitter: Sitter) -> Iterator[None]:
        self._sitters.add(sitter)
        try:
            yield
        finally:
            self._sitters.discard(sitter)

    def free_one(self) -> None:
        """Send away the one that is idle longest; nobody, when all are busy."""
        idle = [(since, sitter) for sitter in self._sitters if (since := sitter.idle_since) is not None]
        if idle:
            _, sitter = min(idle, key=lambda entry: entry[0])
            self._sitters.discard(sitter)
            sitter.leave("its seat was needed")


seats = Seats()
"""Of the Unix socket. A port has its own: what comes there must not take a seat from anybody here."""
