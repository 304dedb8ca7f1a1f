"""Finding and ending processes that left their group, by the mark that every child of ours inherits."""

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
"""The environment variable. Its value is the instance's id, and may go on with `.` and more."""

MIN_REAP_AGE = 2.0
"""Seconds for which a child may be one that is being started and is not known yet."""
_SWEEP_INTERVAL = 0.02
_KILL_TIMEOUT = 2.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def find_marked(mark: str) -> list[int]:
    """The processes whose environment carries `mark`, or `mark` followed by a dot and more.

    Never ourselves, never zombies (they have no environment any more), and only processes of this user.
    What a process sets for itself later does not show: the mark must be given to it when it is started.
    About 7 µs for each process of the machine. Empty on systems without /proc.
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
    """SIGKILL whatever carries `mark`, again and again until nothing is left that could fork anew.

    Blocks for as long as that takes, usually one or two sweeps of 20 ms, at most `patience` seconds.
    Returns the processes that would not die (stuck in the kernel, or setuid); normally none.
    """
    end = time.monotonic() + timeout
    while (found := find_marked(mark)) and time.monotonic() < end:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_SWEEP_INTERVAL)
    return found


def become_subreaper() -> bool:
    """From now on, descendants whose parent dies become our children. False where there is no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def disable_core_dumps() -> bool:
    """No core dumps, and no reading of our memory by other processes of this user. Children are unaffected.

    Side effect: /proc/<us>/* belongs to root from here on, so that another process of the same ordinary
    user cannot read our environ, smaps or fd any more (status, stat, statm and cmdline stay readable, and
    we can still read our own fd and smaps). False where there is no such thing.
    """
    return _prctl(_PR_SET_DUMPABLE, 0)


def reap_orphans(owned: Container[int], *, min_age: float = MIN_REAP_AGE) -> int:
    """Collect the exit status of dead children that nobody waits for; return how many there were.

    For a subreaper, to be called on SIGCHLD or every now and then. Each is waited for by its number:
    waiting for just any child would steal exit statuses from those who own them. `known` are the children
    that have an owner. A child younger than `min_age` seconds is left for the next call, as it may be one
    that is being started and is not known yet. Costs 1 µs when nothing has died.
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
    """Leave word that `instance` runs, for `sweep_dead_instances` of a later daemon to find.

    The file is locked while we live. `directory` must exist and be private.
    """
    path = os.path.join(directory, instance)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_same_file(fd, path):
            break
        os.close(fd)  # a sweep took it for a dead one's between our open and our lock
    try:
        fields = read_stat(os.getpid())
        started = fields[19].decode() if fields else "?"
        with suppress(OSError):  # a full disk: it is for a person who looks; the lock decides
            os.pwrite(fd, f"{os.getpid()} {started}\n".encode(), 0)
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(fd)


def sweep_dead_instances(directory: str) -> dict[str, int]:
    """End what daemons left behind that died together with their guardian.

    Blocking (thread or start-up). Returns, for each dead instance, how many processes were found.
    Nothing to do, and no error, when `directory` is missing.
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
            continue  # removed meanwhile, or nothing of ours
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            swept[name] = len(find_marked(name))
            if not kill_marked(name):  # else it stays, for the next start to try again
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
    """The fields of /proc/<pid>/stat from the state on: [0] state, [1] parent, [19] start time in ticks."""
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
