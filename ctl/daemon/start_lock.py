"""The lock that a process holds while it starts or restarts the daemon of a socket.

Other clients wait for it, so that they use the daemon that it starts instead of starting one with their own
environment. The kernel releases the lock if the process dies; the next client then starts a daemon.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ctl.cli.errors import DaemonUnreachable
from mcpd.files import paths

LOCK_TIMEOUT = 40.0
"""Seconds to wait for another process. A restart takes at most 35: 15 to stop, and 20 to start."""
STOP_TIMEOUT = 15.0
"""Seconds. The daemon allows its servers at most ten to stop."""
SUCCESSOR_TIME = 2.0
"""Seconds that a client waits after a daemon has stopped, before it starts one. In this time, the script or
service manager that stopped the daemon can start the next one."""
_POLL = 0.01


@contextmanager
def start_lock(socket: str) -> Iterator[None]:
    """Be the only process that starts the daemon of `socket`. Not reentrant.

    Locks the directory of the socket, which leaves no file behind. Raises DaemonUnreachable if that cannot be
    used, or after LOCK_TIMEOUT.
    """
    try:
        directory = _open_directory(paths.socket_directory(socket))
    except paths.UnusablePath as error:
        raise DaemonUnreachable(str(error)) from None
    except OSError as error:
        raise DaemonUnreachable(f"cannot open the directory of {socket}: {error.strerror}") from None
    try:
        end = time.monotonic() + LOCK_TIMEOUT
        while not _try_lock(directory, fcntl.LOCK_EX):
            if time.monotonic() > end:
                log = os.path.join(paths.state_dir(os.environ), "daemon.log")
                raise DaemonUnreachable(
                    f"another mcpctl is still starting mcpd; gave up after {LOCK_TIMEOUT:.0f} s",
                    hint=f"see {log}, and mcpctl daemon status",
                )
            time.sleep(_POLL)
        yield
    finally:
        os.close(directory)


def is_being_started(socket: str) -> bool:
    """Return whether another process holds the lock. Never blocks and never raises."""
    try:
        directory = _open_directory(os.path.dirname(os.path.abspath(socket)))
    except OSError:
        return False
    try:
        # Shared, so that bridges that ask at the same time do not take each other for a starting process.
        return not _try_lock(directory, fcntl.LOCK_SH)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(directory)


def _open_directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _try_lock(directory: int, kind: int) -> bool:
    try:
        fcntl.flock(directory, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
