"""The process that kills the children of a dead daemon: `python -I -S orphan_guardian_process.py INSTANCE`.

It reads lines from standard input: `+PGID` to guard a process group, `-PGID` to forget it, `.` when the
daemon stops in order. End of file means that the daemon died. Then, and after a `.` with
groups still registered, every registered group gets SIGTERM, 0.2 s later SIGKILL, and after that everything
whose environment carries `MCPD_INSTANCE=INSTANCE` or `MCPD_INSTANCE=INSTANCE.something`.

It imports almost nothing, to use little memory.
"""

# `signal` itself brings enum, functools and collections with it, which cost 0.9 MB.
import _signal  # type: ignore[import-not-found]
import os
import sys
import time

TERM, KILL = 15, 9
GRACE = 0.2
SWEEP = 0.02
"""Seconds between two scans of /proc; a forking process may need several."""
PATIENCE = 5.0
"""Seconds after which a process that does not die (stuck in the kernel) is ignored."""


def main(instance: str) -> None:
    for number in range(1, 65):  # signals that end the daemon must not end this process
        try:
            _signal.signal(number, _signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    groups, orderly = listen()
    if orderly and not groups:
        return
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


def listen() -> tuple[set[int], bool]:
    """Return the groups registered when the daemon exited, and whether it stopped in order."""
    groups: set[int] = set()
    rest = b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line == b".":
                return groups, True
            if line[1:].isdigit() and int(line[1:]) > 1:
                (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    return groups, False


def signal_groups(groups: set[int], number: int) -> None:
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
    main(sys.argv[1])
