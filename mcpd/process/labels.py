"""Labels that all descendants of a child process keep, so that each of them can be found and killed.

A process can leave its group, its session, its parent and its environment, and ordinary programs do: a
daemonizing one leaves the first three, and `env -i` or a program that shows a title in `ps` the last one.
Resource limits are inherited by every process, and nothing resets them. Linux has ignored RLIMIT_LOCKS since
2.4.25 (see getrlimit(2)), so that its soft limit can carry a number: the label.

Children also get the label as text in MCPD_INSTANCE. Where the limit cannot be set (gVisor, some
containers), this variable is searched for instead.
"""

from __future__ import annotations

import os
import resource
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache

import trio

from mcpd.process.guardian_process import RLIMIT_LOCKS, find_children, kill_children

INSTANCE_VARIABLE = "MCPD_INSTANCE"
"""Its value is a mark: the id of the daemon instance, and for a child also `.NUMBER.NAME`."""

_MARKS_PER_INSTANCE = 1 << 24
_GUARDIAN = _MARKS_PER_INSTANCE - 1
_FORK_TIMEOUT = 1.0
"""Seconds after which a process that is being started has forked for certain."""
_SWEEP_INTERVAL = 0.02
_KILL_TIMEOUT = 2.0


def labels_of(mark: str) -> range:
    """Return the label of a child's mark, or all labels of children of an instance."""
    instance, _, rest = mark.partition(".")
    first = (1 << 32 | zlib.crc32(instance.encode())) * _MARKS_PER_INSTANCE
    number = rest.partition(".")[0]
    if not number.isdecimal():
        return range(first, first + _GUARDIAN)
    return range(first + int(number) % _GUARDIAN, first + int(number) % _GUARDIAN + 1)


def guardian_label(instance: str) -> range:
    """Return the label of the guardian, which does not belong to the children."""
    end = labels_of(instance).stop
    return range(end, end + 1)


@cache
def are_supported() -> bool:
    """Return whether this system keeps labels."""
    try:
        with carrying(labels_of("test").start):
            return resource.prlimit(os.getpid(), RLIMIT_LOCKS)[0] == labels_of("test").start
    except (OSError, ValueError):  # not permitted, or the hard limit is lower
        return False


def drop_own_label() -> None:
    """Leave the family of the process that started this one. Call this once, before starting anything."""
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(RLIMIT_LOCKS)[1]
        resource.setrlimit(RLIMIT_LOCKS, (hard, hard))


@contextmanager
def carrying(label: int) -> Iterator[None]:
    """Carry a label during the block: all processes that any thread forks meanwhile inherit it."""
    before = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (label, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(RLIMIT_LOCKS, before)


class _Turn:
    """The right to carry a label. `ended` is set when another process may be started."""

    current: _Turn | None = None

    def __init__(self, labels: range | None) -> None:
        self.began_at = trio.current_time()
        self.ended = trio.Event()
        self._carrying = nullcontext() if labels is None else carrying(labels.start)

    def begin(self) -> None:
        self._carrying.__enter__()
        _Turn.current = self

    def end(self) -> None:
        if _Turn.current is self:
            _Turn.current = None
            self._carrying.__exit__(None, None, None)
            self.ended.set()


async def start_process(command: Sequence[str], labels: range | None, **options: object) -> trio.Process:
    """Start a process with the first of these labels. `options` and errors are those of `open_process`.

    All processes of the daemon must be started here, with None for one that needs no label: otherwise they
    might inherit the label of a process that is started at the same time, and be killed with it.
    """
    if not are_supported():
        return await trio.lowlevel.open_process(command, **options)  # type: ignore[call-overload,no-any-return]
    await _wait_unlabelled()
    turn = _Turn(labels)
    turn.begin()
    try:
        return await trio.lowlevel.open_process(command, **options)  # type: ignore[call-overload,no-any-return]
    finally:
        turn.end()


async def _wait_unlabelled() -> None:
    while (other := _Turn.current) is not None:
        with trio.move_on_at(other.began_at + _FORK_TIMEOUT) as waiting:
            await other.ended.wait()
        if waiting.cancelled_caught:  # it has forked, but the disk with its program does not answer
            other.end()


async def fork_daemon() -> int:
    """Go on in two processes without a label; see `os.fork`. In the child, other threads do not go on."""
    await _wait_unlabelled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12, about threads
        return os.fork()


def find_marked(mark: str) -> list[int]:
    """Return the processes with a child's label, or all children of an instance and their descendants.

    This process, zombies and processes of other users are not included. Takes 3 to 7 µs for each process of
    the machine. Returns an empty list on systems without /proc.
    """
    return _search(find_children, mark)


def kill_marked(mark: str, *, timeout: float = _KILL_TIMEOUT) -> list[int]:
    """Send SIGKILL to all processes with `mark`, repeatedly, until none is left that could fork again.

    Blocks, usually for one or two sweeps of 20 ms, for at most `timeout` seconds. Returns the processes
    that did not die (stuck in the kernel, or setuid); normally none.
    """
    end = time.monotonic() + timeout
    while (found := send_kill(mark)) and time.monotonic() < end:
        time.sleep(_SWEEP_INTERVAL)
    return found


def send_kill(mark: str) -> list[int]:
    """Send SIGKILL once to all processes with `mark`, and return them. Call this until there are none."""
    return _search(kill_children, mark)


def _search(search: Callable[[str, int, int], list[int]], mark: str) -> list[int]:
    labels = labels_of(mark) if are_supported() else range(0)
    try:
        return search(mark, labels.start, labels.stop)
    except OSError:  # no /proc on this system, or no descriptor left to open it with
        return []
