"""The program that kills the children of a dead daemon: `python -I -S -c PROGRAM INSTANCE FIRST END PGID...`.

Every process group gets SIGTERM, and 0.2 s later SIGKILL. After that, all processes with a label from FIRST
up to END (see `labels`) get SIGKILL. If END is 0, the system keeps no labels, and everything is
killed whose environment carries `MCPD_INSTANCE=INSTANCE` or `MCPD_INSTANCE=INSTANCE.something`. See
`guardian`, which starts it. The daemon finds and kills processes with the same functions.

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
MOST_SCANS = 10
"""Scans in a row, if processes keep ending during them. One takes 3 to 7 µs for each process."""


def main(instance: str, first: int, end: int, groups: list[int]) -> None:
    signal_groups(groups, TERM)
    time.sleep(GRACE)
    signal_groups(groups, KILL)
    deadline = time.monotonic() + PATIENCE
    while kill_children(instance, first, end) and time.monotonic() < deadline:
        time.sleep(SWEEP)


def signal_groups(groups: list[int], number: int) -> None:
    for group in groups:
        try:
            os.killpg(group, number)
        except OSError:
            continue  # gone already, or a setuid program's


def kill_children(mark: str, first: int, end: int) -> list[int]:
    """Send SIGKILL to all children once, and return them. Call this until there are none."""
    return find_children(mark, first, end, KILL) or find_children(mark, first, end, KILL)


def find_children(mark: str, first: int, end: int, number: int = 0) -> list[int]:
    """Return all children except zombies and this process. Each gets the signal `number` when it is seen.

    A process that forks and exits all the time is always listed, because its children have higher process
    ids and /proc lists these last. But it may end before it is looked at. Therefore the newest processes
    are looked at first, and if one that was listed has ended, its children are looked for in another scan.
    """
    found: dict[int, None] = {}
    for _ in range(MOST_SCANS):
        ended = False
        for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
            try:
                if pid != os.getpid() and is_child(pid, mark, first, end):
                    os.kill(pid, number)
                    if read(pid, "stat").rpartition(b") ")[2][:1] not in (b"Z", b"X"):
                        found[pid] = None
            except (FileNotFoundError, ProcessLookupError):
                ended = True
            except OSError:
                continue  # another user's, or a setuid program's
        if not ended:
            break
    return sorted(found)


def is_child(pid: int, mark: str, first: int, end: int) -> bool:
    if end:
        return first <= resource.prlimit(pid, RLIMIT_LOCKS)[0] < end
    needle, environ = b"\0MCPD_INSTANCE=" + mark.encode(), b"\0" + read(pid, "environ") + b"\0"
    return needle + b"\0" in environ or needle + b"." in environ


def read(pid: int, name: str) -> bytes:
    fd, data = os.open(f"/proc/{pid}/{name}", os.O_RDONLY), b""
    try:
        while portion := os.read(fd, 1 << 20):
            data += portion
    finally:
        os.close(fd)
    return data


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(group) for group in sys.argv[4:]])
