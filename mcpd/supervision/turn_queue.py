"""Whose turn it is at a server: one owner after the other, and all calls of an owner together.

Some servers cannot tell for whom they ask a question, and some lose updates that overlap. Nobody is
passed over: while others wait, an owner that is inside waits for a new turn like everybody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

QUIET_AFTER = 50
"""Calls without a question after which a server is taken for one that never asks (DESIGN D6)."""


class Line:
    """Of one server. An entry is any object, inside or waiting at most once."""

    def __init__(self) -> None:
        self._owner: object = None
        self._inside: set[object] = set()
        self._waiting: deque[tuple[object, object, Callable[[], None]]] = deque()
        self._calling = False
        self.watched = False
        """Whether somebody sees to it that nobody waits too long."""

    def enter(self, entry: object, owner: object, go: Callable[[], None]) -> bool:
        """Whether it may go on at once; else `go` is called when its turn has come. It must not raise."""
        if not self._waiting and (not self._inside or self._owner is owner):
            self._owner = owner
            self._inside.add(entry)
            return True
        self._waiting.append((entry, owner, go))
        return False

    def leave(self, entry: object) -> None:
        """It is over, or nobody wants it any more. Ignored for one that is not here."""
        if entry in self._inside:
            self._inside.remove(entry)
            self._next()
        elif self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not entry)

    def waiting(self) -> list[object]:
        """The entries whose turn has not come."""
        return [entry for entry, _, _ in self._waiting]

    def _next(self) -> None:
        """In a loop: where nothing can be sent, each one's `go` leaves at once, however many there are."""
        if self._calling:
            return
        self._calling = True
        try:
            while self._waiting and not self._inside:
                for entry, go in self._admitted():
                    if entry in self._inside:  # else one that went before has taken it along
                        go()
        finally:
            self._calling = False

    def _admitted(self) -> list[tuple[object, Callable[[], None]]]:
        """The first who waits, and all of the same owner that come right after."""
        self._owner = self._waiting[0][1]
        coming = []
        while self._waiting and self._waiting[0][1] is self._owner:
            entry, _, go = self._waiting.popleft()
            self._inside.add(entry)
            coming.append((entry, go))
        return coming

    def __len__(self) -> int:
        return len(self._inside) + len(self._waiting)


class Curiosity:
    """Whether a server ever asks something in the middle of a call; learnt by watching it."""

    def __init__(self, *, is_quiet: bool, learn: Callable[[bool], None]) -> None:
        self.is_quiet = is_quiet
        """It is known never to ask."""
        self._calls = 0
        self._learn = learn
        self._asks = False

    def called(self) -> None:
        """A call has ended, of a client that it could have asked."""
        self._calls += 1
        if self._calls >= QUIET_AFTER and not self._asks and not self.is_quiet:
            self.is_quiet = True
            self._learn(True)

    def asked(self) -> None:
        """It does ask; that is known for as long as it runs, and no longer taken for unlikely after that."""
        self._asks = True
        if self.is_quiet:
            self.is_quiet = False
            self._learn(False)
