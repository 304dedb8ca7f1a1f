"""One daemon per socket, guaranteed by a lock that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket as sockets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CREDENTIALS = struct.Struct("3i")


class AlreadyRunning(Exception):
    """Another daemon serves this socket. `pid` is its process, if known."""

    def __init__(self, pid: int | None, socket: str) -> None:
        who = f"mcpd is already running as process {pid}" if pid else "mcpd is already running"
        super().__init__(f"{who}, on {socket}; stop it with: mcpctl daemon stop")
        self.pid = pid
        self.socket = socket


@contextmanager
def hold_instance_lock(socket: str, held: int | None = None) -> Iterator[int]:
    """Be the only daemon of `socket` during the block, or raise AlreadyRunning immediately. Yields the
    descriptor with the lock; `held` is that of the version before this one, which holds it already.

    The lock is `flock` on `<socket>.lock`, not the existence of the file, so nothing has to be cleaned up
    after SIGKILL. The number in the file is the process, for messages and `find_lock_holder`. The directory
    must exist and be writable, otherwise OSError is raised.
    """
    path = _lock_path(socket)
    fd = _open_and_lock(path, socket) if held is None else held
    try:
        with suppress(OSError):  # a full disk: the lock decides, not the number
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield fd
    finally:
        # Unlinked while we still hold the lock. A process that has opened it meanwhile notices and retries.
        with suppress(OSError):
            if is_same_file(fd, path):
                os.unlink(path)
        os.close(fd)


def find_lock_holder(socket: str) -> int | None:
    """Return the other process that holds the lock of `socket`, which may be unreachable, or None."""
    try:
        fd = os.open(_lock_path(socket), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pid = _parse_pid(os.pread(fd, 32, 0))
        # A killed daemon leaves the file behind, and its number may be another process by now.
        return pid if pid not in (None, os.getpid()) and _has_open(pid, fd) else None
    finally:
        os.close(fd)


def _has_open(pid: int | None, fd: int) -> bool:
    """Return whether a process has the file open that is `fd` here."""
    directory = f"/proc/{pid}/fd"
    with suppress(OSError):  # it has ended, or is not ours
        for number in os.listdir(directory):
            with suppress(OSError):  # closed in the meantime
                if os.path.samestat(os.stat(f"{directory}/{number}"), os.fstat(fd)):
                    return True
    return False


def _lock_path(socket: str) -> str:
    return socket + ".lock"


def remove_stale_socket(socket: str) -> None:
    """Remove the socket of a dead daemon. Call this only inside `hold_instance_lock`.

    Raises AlreadyRunning if a process still listens on it (the lock file may have been deleted), and
    FileExistsError if it is not a socket.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(socket).st_mode):
            raise FileExistsError(f"{socket} exists and is not a socket; move it away")
    except FileNotFoundError:
        return
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(socket)
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                os.unlink(socket)
            return
        except BlockingIOError:  # its accept queue is full: it is running, but busy
            raise AlreadyRunning(None, socket) from None
        raise AlreadyRunning(peer_credentials(probe)[0] or None, socket)


def _open_and_lock(path: str, socket: str) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _parse_pid(os.pread(fd, 32, 0))
            os.close(fd)
            raise AlreadyRunning(pid, socket) from None
        except BaseException:
            os.close(fd)
            raise
        if is_same_file(fd, path):
            return fd
        os.close(fd)  # its former holder removed it between our open and our lock


def is_same_file(fd: int, path: str) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _parse_pid(data: bytes) -> int | None:
    return int(data) if data.strip().isdigit() else None


def peer_credentials(connection: sockets.socket) -> tuple[int, int]:
    """Return the pid and uid of the process at the other end (SO_PEERCRED)."""
    data = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid
