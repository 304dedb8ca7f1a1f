"""How many connections a listener has, and which one is closed to make room for another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

MAX_ESTABLISHED = 256
MAX_PER_PROCESS = 224
"""Connections of one process to the Unix socket, so that no program can take the place of all others."""
MAX_PROVISIONAL = {"unix": 32, "tcp": 128}
"""Connections that are not established: see `ConnectionLimit`."""


class Evictable(Protocol):
    """A connection that may be closed to make room for another."""

    @property
    def idle_since(self) -> float | None:
        """`trio.current_time()` of its last message; None while it has a request in progress."""

    def evict(self, reason: str) -> None:
        """Close it soon. Does not wait."""


class Slot:
    """The place of one connection among those of its listener, from `ConnectionLimit.open` to `close`."""

    def __init__(self, limit: ConnectionLimit, pid: int) -> None:
        self.pid = pid
        """The process of the client; 0 if it is unknown."""
        self.is_established = False
        self._limit = limit
        self._connection: Evictable | None = None
        self._reason = ""
        """Why the connection must close, if that was decided before `held_by`."""

    @contextmanager
    def held_by(self, connection: Evictable) -> Iterator[None]:
        """Make `connection` evictable while the block runs; at once if its place was needed meanwhile."""
        self._connection = connection
        if self._reason:
            connection.evict(self._reason)
        try:
            yield
        finally:
            self._connection = None

    def authenticate(self) -> bool:
        """The client has proved who it is. Return False if it must be refused because of too many others.

        On the Unix socket, a provisional connection is not refused.
        """
        return self.is_established or self._limit.authenticate(self)

    @property
    def idle_since(self) -> float | None:
        return None if self._connection is None else self._connection.idle_since

    def evict(self, reason: str) -> None:
        self._reason = reason
        if self._connection is not None:
            self._connection.evict(reason)


class ConnectionLimit:
    """The connections of one listener. Each listener has its own, so none can close another's connections.

    Established connections are closed for others only while they are idle. A connection is provisional before
    that, and while too many others are established. A new connection always gets a provisional place, even if
    the oldest provisional connection has to be closed in the middle of a request. So a client that asks for
    little, such as `mcpctl daemon stop`, is served however many connections others hold.

    `family` is "unix", where every client is the user's own and is established at once if there is room, or
    "tcp", where a client is established by its first authenticated request.
    """

    def __init__(self, family: str) -> None:
        self._is_unix = family == "unix"
        self._max_provisional = MAX_PROVISIONAL[family]
        self._provisional: dict[Slot, None] = {}
        """Oldest first."""
        self._established: dict[Slot, None] = {}

    def __len__(self) -> int:
        return len(self._provisional) + len(self._established)

    def open(self, pid: int) -> Slot | str:
        """Return the place of a new connection, or the reason why it is refused.

        The caller calls `close` when the connection has ended.
        """
        slot = Slot(self, pid)
        if self._is_unix:
            of_process = [each for each in self._all() if each.pid == pid]
            if len(of_process) >= MAX_PER_PROCESS and not self._evict_idlest(of_process):
                return f"a process may have {MAX_PER_PROCESS} connections that are in use; close one"
        self._provisional[slot] = None
        if not (self._is_unix and self._establish(slot)):
            self._close_oldest_provisional()
        return slot

    def close(self, slot: Slot) -> None:
        """The connection has ended. On a Unix socket, its place goes to the oldest provisional one."""
        self._forget(slot)
        if self._is_unix and self._provisional and len(self._established) < MAX_ESTABLISHED:
            self._establish(next(iter(self._provisional)))

    def authenticate(self, slot: Slot) -> bool:
        """See `Slot.authenticate`."""
        return self._establish(slot) or self._is_unix

    def _establish(self, slot: Slot) -> bool:
        """Make a provisional connection one that is closed only while it is idle, if there is room."""
        if slot not in self._provisional:
            return False  # it is being closed
        if len(self._established) >= MAX_ESTABLISHED and not self._evict_idlest(self._established):
            return False
        del self._provisional[slot]
        self._established[slot] = None
        slot.is_established = True
        return True

    def _close_oldest_provisional(self) -> None:
        if len(self._provisional) > self._max_provisional:
            oldest = next(iter(self._provisional))
            self._forget(oldest)
            if self._is_unix:
                reason = (
                    f"{MAX_ESTABLISHED} connections are in use, and {self._max_provisional} newer ones came"
                )
            else:
                reason = (
                    f"{self._max_provisional} newer connections came before its first authenticated request"
                )
            oldest.evict(reason)

    def _evict_idlest(self, among: Iterable[Slot]) -> bool:
        """Close the connection that has been idle longest. Return False if none is idle."""
        idle = [(since, each) for each in among if (since := each.idle_since) is not None]
        if not idle:
            return False
        _, slot = min(idle, key=lambda entry: entry[0])
        self._forget(slot)
        slot.evict("it was idle, and its place was needed")
        return True

    def _all(self) -> Iterator[Slot]:
        yield from self._established
        yield from self._provisional

    def _forget(self, slot: Slot) -> None:
        self._provisional.pop(slot, None)
        self._established.pop(slot, None)
