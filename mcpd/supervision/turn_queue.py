"""Whose turn it is at a server: one owner after the other, and all calls of an owner together.

Some servers cannot tell for whom they ask a question, and some lose updates that overlap. Nobody is
passed over: while others wait, an owner that is inside waits for a new turn like everybody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

QUIET_AFTER = 50
"""Calls without a question after which a server is taken for one that never asks (DESIGN D6)."""


class TurnQueue:
    """Of one server. An entry is any object, inside or waiting at most once."""

    def __init__(self) -> None:
        self._owner: object = None
        self._holders: set[object] = set()
        self._waiting: deque[tuple[object, object, Callable[[], None]]] = deque()
        self._starting_calls = False
        self.has_timeout_watcher = False
        """Whether somebody sees to it that nobody waits too long."""

    def acquire(self, entry: object, owner: object, go: Callable[[], None]) -> bool:
        """Whether it may go on at once; else `go` is called when its turn has come. It must not raise."""
        if not self._waiting and (not self._holders or self._owner is owner):
            self._owner = owner
            self._holders.add(entry)
            return True
        self._waiting.append((entry, owner, go))
        return False

    def release(self, entry: object) -> None:
        """It is over, or nobody wants it any more. Ignored for one that is not here."""
        if entry in self._holders:
            self._holders.remove(entry)
            self._start_next()
        elif self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not entry)

    def waiting(self) -> list[object]:
        """The entries whose turn has not come."""
        return [entry for entry, _, _ in self._waiting]

    def _start_next(self) -> None:
        """In a loop: where nothing can be sent, each one's `go` leaves at once, however many there are."""
        if self._starting_calls:
            return
        self._starting_calls = True
        try:
            while self._waiting and not self._holders:
                for entry, go in self._admit_next_owner():
                    if entry in self._holders:  # else one that went before has taken it along
                        go()
        finally:
            self._starting_calls = False

    def _admit_next_owner(self) -> list[tuple[object, Callable[[], None]]]:
        """The first who waits, and all of the same owner that come right after."""
        self._owner = self._waiting[0][1]
        coming = []
        while self._waiting and self._waiting[0][1] is self._owner:
            entry, _, go = self._waiting.popleft()
            self._holders.add(entry)
            coming.append((entry, go))
        return coming

    def __len__(self) -> int:
        return len(self._holders) + len(self._waiting)


class ElicitationHistory:
    """Whether a server ever asks something in the middle of a call; learnt by watching it."""

    def __init__(self, *, never_asks: bool, learn: Callable[[bool], None]) -> None:
        self.never_asks = never_asks
        """It is known never to ask."""
        self._calls = 0
        self._learn = learn
        self._has_asked = False

    def record_call(self) -> None:
        """A call has ended, of a client that it could have asked."""
        self._calls += 1
        if self._calls >= QUIET_AFTER and not self._has_asked and not self.never_asks:
            self.never_asks = True
            self._learn(True)

    def record_request(self) -> None:
        """It does ask; that is known for as long as it runs, and no longer taken for unlikely after that."""
        self._has_asked = True
        if self.never_asks:
            self.never_asks = False
            self._learn(False)
