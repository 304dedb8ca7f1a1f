"""The program that kills the children of a dead daemon: `python -I -S -c PROGRAM INSTANCE PGID...`.

Every process group gets SIGTERM, 0.2 s later SIGKILL, and after that everything whose environment carries
`MCPD_INSTANCE=INSTANCE` or `MCPD_INSTANCE=INSTANCE.something`. See `orphan_guardian`, which starts it.

It imports almost nothing, so that it starts fast.
"""

import os
import sys
import time

TERM, KILL = 15, 9
GRACE = 0.2
SWEEP = 0.02
"""Seconds between two scans of /proc; a forking process may need several."""
PATIENCE = 5.0
"""Seconds after which a process that does not die (stuck in the kernel) is ignored."""


def main(instance: str, groups: list[int]) -> None:
    signal_groups(groups, TERM)
    time.sleep(GRACE)
    signal_groups(groups, KILL)
    end = time.monotonic() + PATIENCE
    while True:
        found = find_marked(instance.encode())
        if not found or time.monotonic() > end:
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


def find_marked(instance: bytes) -> list[int]:
    """Like `processes.find_marked`, which cannot be imported from an isolated interpreter."""
    needle, found, ourselves = b"\0MCPD_INSTANCE=" + instance, [], os.getpid()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == ourselves:
            continue
        try:
            fd = os.open("/proc/" + entry + "/environ", os.O_RDONLY)
        except OSError:
            continue
        try:
            environ = b"\0"
            while data := os.read(fd, 1 << 20):
                environ += data
        except OSError:
            continue
        finally:
            os.close(fd)
        environ += b"\0"
        if needle + b"\0" in environ or needle + b"." in environ:
            found.append(int(entry))
    return found


if __name__ == "__main__":
    main(sys.argv[1], [int(group) for group in sys.argv[2:]])
