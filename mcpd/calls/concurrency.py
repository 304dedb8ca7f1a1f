"""Turns: which calls must wait for other calls to the same server, and when they may start.

A legacy server that cannot tell which call its requests belong to gets the calls of one client at a time (if
that client can be asked at all), until it has shown that it never asks. A server whose definition sets
`concurrency` gets exclusive calls one at a time. Calls that may change something have short turns
(`write_turns`); a call that needs both kinds waits for the long one first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from mcpd.calls.call import INTERACTIVE_METHODS, Call, Spawn
from mcpd.calls.write_turns import WriteTurns, write_turns
from mcpd.model.errors import Overloaded
from mcpd.supervision.managed_server import ManagedServer


class TurnQueue:
    """The calls of one server that take turns: one owner at a time, with all of its calls together.

    Turns are granted in order of arrival. While others wait, new calls of the current owner queue up too,
    so that nobody starves. An entry is any object; it holds or awaits a turn at most once.
    """

    def __init__(self) -> None:
        self._owner: object = None
        self._holders: set[object] = set()
        self._waiting: deque[tuple[object, object, Callable[[], None]]] = deque()
        self._starting_calls = False
        self.is_watched = False
        """Whether `waiting_calls` watches this queue."""

    def acquire(self, entry: object, owner: object, go: Callable[[], None]) -> bool:
        """Return True if `entry` may start now; otherwise `go` is called in its turn. `go` must not raise."""
        if not self._waiting and (not self._holders or self._owner is owner):
            self._owner = owner
            self._holders.add(entry)
            return True
        self._waiting.append((entry, owner, go))
        return False

    def release(self, entry: object) -> None:
        """End the turn of `entry`, or stop waiting for one. Does nothing for an unknown entry."""
        if entry in self._holders:
            self._holders.remove(entry)
            self._start_next()
        elif self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not entry)
            self._start_next()  # if only this entry kept the owner's next calls waiting

    def has_turn(self, entry: object) -> bool:
        return entry in self._holders

    def waiting(self) -> list[object]:
        """Return the entries that wait for a turn, in order."""
        return [entry for entry, _, _ in self._waiting]

    def holders(self) -> list[object]:
        """Return the entries that have a turn now."""
        return list(self._holders)

    def _start_next(self) -> None:
        """Start the next owner's calls. A loop, not recursion: if nothing can be sent, each `go` releases its
        turn immediately, however many wait."""
        if self._starting_calls:
            return
        self._starting_calls = True
        try:
            while self._waiting and (not self._holders or self._waiting[0][1] is self._owner):
                for entry, go in self._admit_next_owner():
                    if entry in self._holders:  # an earlier `go` may have released it
                        go()
        finally:
            self._starting_calls = False

    def _admit_next_owner(self) -> list[tuple[object, Callable[[], None]]]:
        """Give a turn to the first waiting entry and to those of the same owner directly behind it."""
        self._owner = self._waiting[0][1]
        admitted = []
        while self._waiting and self._waiting[0][1] is self._owner:
            entry, _, go = self._waiting.popleft()
            self._holders.add(entry)
            admitted.append((entry, go))
        return admitted

    def __len__(self) -> int:
        return len(self._holders) + len(self._waiting)


class Turns:
    """Decides when calls may be sent. `start` sends a call whose turn has come, and must not raise. `spawn`
    must run tasks that outlive the calls.
    """

    def __init__(self, start: Callable[[Call], None], spawn: Spawn) -> None:
        self._start = start
        self._spawn = spawn

    def enter(self, call: Call) -> bool:
        """Return True if the call may be sent now; otherwise `start` is called for it later. Its turn or its
        wait ends with `release_turn`.

        Raises Overloaded if too many calls wait; the call has no turn then.
        """
        owner = turn_owner(call)
        if owner is not None and not acquire_turn(call, owner, partial(self._on_turn, call)):
            return False
        return self._enter_write_turn(call)

    def _on_turn(self, call: Call) -> None:
        if self._enter_write_turn(call):
            self._start(call)

    def _enter_write_turn(self, call: Call) -> bool:
        if not call.route.write_turn:
            return True
        turns = write_turns(call.server)
        if turns is None:
            turns = WriteTurns(self._start, self._spawn)
            (call.server.original or call.server).write_turns = turns
        call.holds_turn = True
        return turns.enter(call)


def turn_queue(server: ManagedServer) -> TurnQueue:
    """Return the queue of `server`, created on first use. `ManagedServer` only keeps the reference."""
    if server.turn_queue is None:
        server.turn_queue = TurnQueue()
    assert isinstance(server.turn_queue, TurnQueue)
    return server.turn_queue


def turn_owner(call: Call) -> object:
    """Return whose calls may run together with this one; None if it need not take turns."""
    if call.route.is_exclusive:
        return call
    assert call.binding is not None
    if (
        call.binding.may_ask
        and not call.binding.upstream.link.correlates_server_requests
        and call.route.method in INTERACTIVE_METHODS
        and not call.server.elicitation_history.never_asks
        and not call.route.is_read_only
    ):
        return call.caller
    return None


def acquire_turn(call: Call, owner: object, start: Callable[[], None]) -> bool:
    """Return True if the call may start now. Otherwise `start` is called when its turn comes, unless
    `waiting_calls` ends the wait before.

    Raises Overloaded if too many calls wait; the call is not queued then.
    """
    server = call.server
    queue = turn_queue(server)
    if queue.acquire(call, owner, start):
        call.holds_turn = True
        return True
    if len(queue.waiting()) > server.spec.max_queued:
        queue.release(call)
        message = f"{server.spec.name}: {server.spec.max_queued} calls are already waiting for their turn"
        raise Overloaded(f"{message}; nothing was sent, try again later", server=server.spec.name)
    call.holds_turn = True
    call.queued_at = trio.current_time()
    call.deadline = call.queued_at + call.idle_timeout
    return False


def release_turn(call: Call) -> None:
    """End the call's turns, or its wait for one. Does nothing if it has neither."""
    if not call.holds_turn:
        return
    call.holds_turn = False
    if (turns := write_turns(call.server)) is not None:
        turns.leave(call)
    if call.server.turn_queue is None:
        return
    queue = turn_queue(call.server)
    if call.context.accepts_server_requests and call.key and queue.has_turn(call):  # the call was sent
        call.server.elicitation_history.record_call()
    queue.release(call)
