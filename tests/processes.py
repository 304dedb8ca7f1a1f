"""Whether a process lives, by /proc; and waiting for what no event tells, where there is no trio."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def state(pid: int) -> str:
    """R, S, Z, …; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Running: a zombie is dead (its parent may be this machine's init, which is slow to collect it)."""
    return state(pid) not in ("", "Z")


def gone(pid: int) -> bool:
    return not alive(pid)


def wait_until(condition: Callable[[], bool], patience: float = 60.0) -> None:
    """Raises AssertionError after so many seconds."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
