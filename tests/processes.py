"""Process states from /proc, and polling waits for tests without trio."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def state(pid: int) -> str:
    """Return R, S, Z and so on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie is dead: its parent may be an init that reaps it late."""
    return state(pid) not in ("", "Z")


def gone(pid: int) -> bool:
    return not alive(pid)


def wait_until(condition: Callable[[], bool], patience: float = 60.0) -> None:
    """Wait until the condition holds. Raises AssertionError after `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
