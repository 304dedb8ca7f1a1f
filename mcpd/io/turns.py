"""Splits long work, and work of many tasks, into turns on the event loop that do not delay other tasks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from mcpd.model.steps import Steps

T = TypeVar("T")

MAX_TURN = 0.005
"""Seconds of work before other tasks run."""
REST = 0.002
"""Seconds in which a server answers a small request, and mcpd passes the response on."""


class TurnLimit:
    """Call `pause` often during long work: it lets other tasks run if a turn has lasted MAX_TURN.

    The work must tolerate that other tasks run, and cancellation, wherever it calls `pause`.
    """

    def __init__(self) -> None:
        self._ends = time.monotonic() + MAX_TURN

    async def pause(self) -> None:
        """Costs 0.1 µs as long as the turn lasts."""
        if time.monotonic() >= self._ends:
            await trio.lowlevel.checkpoint()
            self._ends = time.monotonic() + MAX_TURN


async def rest() -> None:
    """Let others finish a small request, and not only go one step further with it.

    Call this between two looks at a message of many megabytes: otherwise, one look would follow the request,
    and the next one the response of the server.
    """
    await trio.sleep(REST)


async def in_turns(steps: Steps[T]) -> T:
    """Do the same as `run_steps`, in a task: rest before the work, and whenever it has taken MAX_TURN."""
    await rest()
    began = time.monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if time.monotonic() - began >= MAX_TURN:
            await rest()
            began = time.monotonic()


class _Turns:
    """Grants one turn in each round of the scheduler."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[object, deque[trio.Event]] = {}
        """Who takes turns with the others → what waits, in its order."""

    async def take(self, of: object) -> None:
        if self._is_taken:
            turn, line = trio.Event(), self._waiting.setdefault(of, deque())
            line.append(turn)
            try:
                await turn.wait()
            except trio.Cancelled:
                if turn.is_set():
                    self._pass_on()
                else:
                    line.remove(turn)
                    if not line:
                        del self._waiting[of]
                raise
        else:
            self._is_taken = True
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
        self._pass_on()

    def _pass_on(self) -> None:
        """Wake the next task, which has its turn in the next round."""
        self._is_taken = bool(self._waiting)
        if self._is_taken:
            of = next(iter(self._waiting))
            line = self._waiting.pop(of)
            line.popleft().set()
            if line:
                self._waiting[of] = line  # as the last one


_turns: trio.lowlevel.RunVar[_Turns] = trio.lowlevel.RunVar("whose turn it is")


async def take_turn(of: object = None) -> None:
    """Wait for a turn. Each round of the scheduler grants one, to each `of` in turn.

    Call this before work that thousands of tasks may do at the same time, such as those that waited for the
    same event. Otherwise, all of them would do it in one round, and delay all other tasks. `of` is usually
    the client that the work is for, so that it does not wait behind all tasks of another client.
    """
    try:
        turns = _turns.get()
    except LookupError:
        _turns.set(turns := _Turns())
    await turns.take(of)


async def run_in_turn(
    work: Callable[[], Awaitable[None]], on_start: Callable[[], None] | None = None, of: object = None
) -> None:
    """Run `work` after `take_turn`. Use this for every task of which a client can start many.

    `work` is started even if the task is cancelled while it waits, so that `work` can clean up.
    """
    with trio.CancelScope(shield=True):
        await take_turn(of)
    if on_start is not None:
        on_start()
    await work()
