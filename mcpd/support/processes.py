"""What process trees cost: memory and processor time of a process and of all that came from it.

Read from /proc by hand: one look at all processes of the machine, and only when somebody asks. psutil
would say the same in twice the time, and costs 17 ms to import (both measured).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import attrs

from mcpd.support import orphans

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class ProcessInfo:
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    seconds: float
    """Processor time, user and system."""
    inherited: float
    """That of its children that have ended and been waited for, and of theirs."""
    resident: int
    """Bytes of memory that it holds, pages shared with others among them."""
    is_zombie: bool


@attrs.frozen(kw_only=True)
class TreeUsage:
    """A tree's. Memory counts pages that processes of the tree share once for each of them."""

    processes: int = 0
    memory: int = 0
    """Bytes."""
    cpu_seconds: float = 0.0
    """Of its processes, and of those of them that have ended."""


def process_table() -> dict[int, ProcessInfo]:
    """Every process that can be seen. Blocks for some 50 µs each. Empty where there is no /proc."""
    found: dict[int, ProcessInfo] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:
        return found
    for entry in entries:
        if entry.isdigit() and (process := _read(int(entry))) is not None:
            found[process.pid] = process
    return found


def _read(pid: int) -> ProcessInfo | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        state, parent, session = fields[0], int(fields[1]), int(fields[3])
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        inherited = (int(fields[13]) + int(fields[14])) / _TICKS
        resident = int(fields[21]) * _PAGE
    except (OSError, ValueError, IndexError):  # it has just ended
        return None
    return ProcessInfo(pid, parent, session, seconds, inherited, resident, state == b"Z")


def measure_trees(roots: Mapping[str, tuple[int, str]]) -> dict[str, TreeUsage]:
    """What each tree costs; a root is its first process and the mark that all of it carries.

    To a tree belongs what descends from its root, what is in the root's session, and what carries its mark
    although it left both. Blocks: call it in a thread.
    """
    everything = process_table()
    children: dict[int, list[int]] = {}
    sessions: dict[int, list[int]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process.pid)
        sessions.setdefault(process.session, []).append(process.pid)
    found: dict[str, set[int]] = {}
    taken: set[int] = set()
    for name, (root, _) in roots.items():
        members = found[name] = set()
        waiting = [root, *sessions.get(root, ())]
        while waiting:
            pid = waiting.pop()
            if pid in everything and pid not in members:
                members.add(pid)
                waiting += children.get(pid, ())
        taken |= members
    strays = [pid for pid in children.get(os.getpid(), ()) if pid not in taken]
    if strays:  # we are the subreaper: what lost its parent is our child
        for name, (_, mark) in roots.items():
            for pid in set(orphans.find_marked(mark)) & everything.keys():
                found[name].add(pid)
    return {name: _sum_usage(everything[pid] for pid in members) for name, members in found.items()}


def measure_self() -> TreeUsage:
    """What this process itself costs."""
    process = _read(os.getpid())
    return TreeUsage() if process is None else _sum_usage([attrs.evolve(process, inherited=0.0)])


def _sum_usage(processes: Iterable[ProcessInfo]) -> TreeUsage:
    tree = list(processes)
    return TreeUsage(
        processes=sum(not process.is_zombie for process in tree),
        memory=sum(process.resident for process in tree),
        cpu_seconds=round(sum(process.seconds + process.inherited for process in tree), 2),
    )


class CpuTimeTotal:
    """Processor time of all trees that there have been, one after the other: a sum that never gets less.

    What a tree has used since it was last looked at is missing when it ends.
    """

    def __init__(self) -> None:
        self._ended = 0.0
        self._running: dict[str, float] = {}

    def update(self, trees: Mapping[str, float]) -> None:
        """The seconds of those that run now, by their marks."""
        self._ended += sum(seconds for mark, seconds in self._running.items() if mark not in trees)
        self._running = {mark: max(seconds, self._running.get(mark, 0.0)) for mark, seconds in trees.items()}

    @property
    def seconds(self) -> float:
        return round(self._ended + sum(self._running.values()), 2)
