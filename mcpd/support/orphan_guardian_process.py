"""The program that kills the children of a dead daemon: `python -I -S -c PROGRAM INSTANCE FIRST END PGID...`.

Every process group gets SIGTERM, and 0.2 s later SIGKILL. After that, all processes with a label from FIRST
up to END (see `process_labels`) get SIGKILL. If END is 0, the system keeps no labels, and everything is
killed whose environment carries `MCPD_INSTANCE=INSTANCE` or `MCPD_INSTANCE=INSTANCE.something`. See
`orphan_guardian`, which starts it.

It imports almost nothing, so that it starts fast.
"""

import os
import resource
import sys
import time

TERM, KILL, RLIMIT_LOCKS = 15, 9, 10
GRACE = 0.2
SWEEP = 0.02
"""Seconds between two scans of /proc; a forking process may need several."""
PATIENCE = 5.0
"""Seconds after which a process that does not die (stuck in the kernel) is ignored."""


def main(instance: str, first: int, end: int, groups: list[int]) -> None:
    signal_groups(groups, TERM)
    time.sleep(GRACE)
    signal_groups(groups, KILL)
    deadline = time.monotonic() + PATIENCE
    while True:
        # A process that forks and exits all the time can be missed by one scan.
        found = find_children(instance, first, end) or find_children(instance, first, end)
        if not found or time.monotonic() > deadline:
            return
        for pid in found:
            try:
                os.kill(pid, KILL)
            except OSError:
                continue  # gone already, or a setuid program's
        time.sleep(SWEEP)


def signal_groups(groups: list[int], number: int) -> None:
    for group in groups:
        try:
            os.killpg(group, number)
        except OSError:
            continue  # gone already, or a setuid program's


def find_children(instance: str, first: int, end: int) -> list[int]:
    """Like `process_labels.find_marked`, which cannot be imported from an isolated interpreter."""
    needle, found, ourselves = b"\0MCPD_INSTANCE=" + instance.encode(), [], str(os.getpid())
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or entry == ourselves:
            continue
        try:
            if end:
                ours = first <= resource.prlimit(int(entry), RLIMIT_LOCKS)[0] < end
            else:
                environ = b"\0" + read(entry, "environ") + b"\0"
                ours = needle + b"\0" in environ or needle + b"." in environ
            if ours and read(entry, "stat").rpartition(b") ")[2][:1] not in (b"Z", b"X"):
                found.append(int(entry))
        except OSError:
            continue  # gone, or another user's
    return found


def read(pid: str, name: str) -> bytes:
    fd, data = os.open("/proc/" + pid + "/" + name, os.O_RDONLY), b""
    try:
        while portion := os.read(fd, 1 << 20):
            data += portion
    finally:
        os.close(fd)
    return data


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(group) for group in sys.argv[4:]])
