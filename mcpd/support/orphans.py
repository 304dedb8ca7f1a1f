"""Finds and kills child processes that left their process group, by an inherited environment variable."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress

from mcpd.support.instance_lock import is_same_file

INSTANCE_VARIABLE = "MCPD_INSTANCE"
"""Its value is the id of the daemon instance, optionally followed by `.` and more."""

MIN_REAP_AGE = 2.0
"""Seconds. A younger child may be one that is being started and is not registered yet."""
_SWEEP_INTERVAL = 0.02
_KILL_TIMEOUT = 2.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def find_marked(mark: str) -> list[int]:
    """Return the processes whose environment contains `mark`, or `mark` followed by a dot and more.

    This process, zombies (they have no environment) and processes of other users are not included. Only the
    environment at the start of a process counts. Takes about 7 µs for each process of the machine. Returns
    an empty list on systems without /proc.
    """
    needle = f"\0{INSTANCE_VARIABLE}={mark}".encode()
    exact, prefix = needle + b"\0", needle + b"."
    found = []
    ourselves = os.getpid()
    for pid in list_pids():
        if pid != ourselves:
            environ = _read_environ(pid)
            if needle in environ and (exact in environ or prefix in environ):
                found.append(pid)
    return found


def kill_marked(mark: str, *, timeout: float = _KILL_TIMEOUT) -> list[int]:
    """Send SIGKILL to all processes with `mark`, repeatedly, until none is left that could fork again.

    Blocks, usually for one or two sweeps of 20 ms, for at most `timeout` seconds. Returns the processes
    that did not die (stuck in the kernel, or setuid); normally none.
    """
    end = time.monotonic() + timeout
    while (found := find_marked(mark)) and time.monotonic() < end:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_SWEEP_INTERVAL)
    return found


def become_subreaper() -> bool:
    """Adopt descendants whose parent dies. Returns False if the system does not support it."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def disable_core_dumps() -> bool:
    """Disable core dumps and access to this process's memory by the user's other processes.

    Children are not affected. As a side effect, /proc/<pid>/* belongs to root, so other processes of the user
    cannot read its environ, smaps or fd (status, stat, statm and cmdline stay readable, and the process can
    still read its own). Returns False if the system does not support it.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def reap_orphans(owned: Container[int], *, min_age: float = MIN_REAP_AGE) -> int:
    """Reap dead children that nobody waits for, and return their number.

    For a subreaper, on SIGCHLD or periodically. Children are waited for by process id, since waiting for any
    child would steal the exit status of `owned` ones. Children younger than `min_age` seconds are left for
    the next call: they may be starting and not registered yet. Costs 1 µs if nothing has died.
    """
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return 0
    except ChildProcessError:
        return 0
    reaped, ourselves = 0, os.getpid()
    for pid in list_pids():
        if pid in owned:
            continue
        fields = read_stat(pid)
        if fields is None or fields[0] != b"Z" or int(fields[1]) != ourselves or _age(fields) < min_age:
            continue
        with suppress(ChildProcessError):
            reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped


@contextmanager
def record_instance(directory: str, instance: str) -> Iterator[None]:
    """Record that `instance` runs, in a file that stays locked until this process ends.

    `sweep_dead_instances` of a later daemon finds it. `directory` must exist and be private.
    """
    path = os.path.join(directory, instance)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_same_file(fd, path):
            break
        os.close(fd)  # a sweep removed it between our open and our lock
    try:
        fields = read_stat(os.getpid())
        started = fields[19].decode() if fields else "?"
        with suppress(OSError):  # a full disk does not matter: the content is for people, the lock decides
            os.pwrite(fd, f"{os.getpid()} {started}\n".encode(), 0)
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(fd)


def sweep_dead_instances(directory: str) -> dict[str, int]:
    """Kill the processes of daemons that died together with their guardian.

    Blocks. Returns the number of processes found for each dead instance; empty if `directory` is missing.
    """
    swept: dict[str, int] = {}
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return swept
    for name in names:
        path = os.path.join(directory, name)
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # removed in the meantime, or not a record
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            swept[name] = len(find_marked(name))
            if not kill_marked(name):  # otherwise the next start tries again
                os.unlink(path)
        except OSError:
            continue  # locked: that daemon is alive
        finally:
            os.close(fd)
    return swept


def list_pids() -> Iterator[int]:
    try:
        entries = os.listdir("/proc")
    except OSError:  # no /proc on this system, or no descriptor left to open it with
        return
    for entry in entries:
        if entry.isdigit():
            yield int(entry)


def _read_environ(pid: int) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""  # gone, or another user's
    parts = [b"\0"]
    try:
        while data := os.read(fd, 1 << 18):
            parts.append(data)
    except OSError:
        return b""  # died while we were reading
    finally:
        os.close(fd)
    parts.append(b"\0")
    return b"".join(parts)


def read_stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat from the state: [0] state, [1] parent, [19] start in ticks."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return None


def _age(fields: list[bytes]) -> float:
    ticks: int = os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / ticks


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
