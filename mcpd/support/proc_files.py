"""Reading the process table from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator


def list_pids() -> Iterator[int]:
    try:
        entries = os.listdir("/proc")
    except OSError:  # no /proc on this system, or no descriptor left to open it with
        return
    for entry in entries:
        if entry.isdigit():
            yield int(entry)


def read_stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat from the state: [0] state, [1] parent, [19] start in ticks."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
