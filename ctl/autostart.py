"""Starting the daemon: by the user's service manager where it is installed there, else in the background.

Imported only when nobody answers on the socket, or for `mcpctl daemon`.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from ctl import systemd_units
from ctl.daemon_client import DaemonClient
from ctl.errors import CtlError, DaemonUnreachable
from mcpd.support import paths

START_TIMEOUT = 20.0
"""Seconds for a new daemon to answer. It takes a third of one; a cold disk and a busy machine take more."""
_ANSWER_TIMEOUT = 5.0
"""Seconds for whoever listens on the socket to say who it is."""
_LOCK_TIMEOUT = 40.0
"""How long to wait for another client that is starting the daemon."""
_POLL = 0.01
_EXCERPT_LINES = 10
"""Lines of the log that are told when a daemon does not come up."""
_EXIT_BAD_CONFIGURATION = 2
"""What mcpd exits with for its configuration; or its command line, which is ours."""
_LOG_LIMIT = 5 * 1024 * 1024
"""Bytes of daemon.log at which a start puts it aside as daemon.log.1."""
_REMOVED_VARIABLES = (
    "MCPD_INSTANCE",  # set when a server's own child starts us: its end would be the new daemon's end
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
)


def ensure_daemon(socket: str | os.PathLike[str]) -> None:
    """Return once a daemon answers on `socket`, starting it if none does; one line on stderr says so.

    Any number of clients may do this at once: one starts it, the others wait for it. Raises
    DaemonUnreachable when `MCPD_NO_START` forbids it, or when the daemon does not come up, with the last
    lines of its log.
    """
    path = os.fspath(socket)
    if _is_listening(path):
        return
    if os.environ.get("MCPD_NO_START", "") not in ("", "0"):
        raise DaemonUnreachable(
            f"no mcpd is running at {path}, and MCPD_NO_START forbids starting it",
            hint="start it with: mcpctl daemon start",
        )
    with _start_lock(path):
        if _is_listening(path):
            return
        if systemd_units.manages_socket(path):
            print("mcpctl: starting mcpd (systemctl --user start mcpd)", file=sys.stderr)
            systemd_units.start()
        else:
            print(f"mcpctl: starting mcpd in the background (log: {log_path()})", file=sys.stderr)
            _spawn(path)


def start_in_background(socket: str) -> int:
    """Start the daemon as a process of its own session and return its pid once it answers.

    If another one answers already, or first, that one's pid. Raises DaemonUnreachable like `ensure_daemon`.
    """
    with _start_lock(socket):
        if not _is_listening(socket):
            return _spawn(socket)
        if (pid := daemon_pid(socket)) is not None:
            return pid
    raise DaemonUnreachable(
        f"something listens on {socket} and does not answer, so no daemon was started",
        hint="if it is mcpd: mcpctl daemon stop, or kill it; else choose another socket with MCPD_SOCKET",
    )


def daemon_pid(socket: str, timeout: float = _ANSWER_TIMEOUT) -> int | None:
    """The process that answers on `socket`; None when nobody does."""
    try:
        with DaemonClient(socket) as client:
            pid = client.call("mcpd/version", timeout=timeout).value.get("pid")
    except CtlError:
        return None
    return pid if isinstance(pid, int) else None


def _is_listening(socket: str) -> bool:
    try:
        DaemonClient(socket).close()
    except DaemonUnreachable:
        return False
    return True


def log_path() -> str:
    """What a daemon in the background prints goes here."""
    return os.path.join(paths.state_dir(os.environ), "daemon.log")


def tail(file: BinaryIO, count: int) -> list[str]:
    """The last lines of an open log, of 64 KiB at most; reading goes on behind them."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
    return file.read().decode("utf-8", "replace").splitlines()[-count:]


def daemon_command() -> list[str]:
    """How to run mcpd: the one that was installed together with this mcpctl, if that can be found."""
    import shutil

    for directory in (os.path.dirname(os.path.abspath(sys.argv[0])), os.path.join(sys.prefix, "bin")):
        candidate = os.path.join(directory, "mcpd")
        # Not resolved: a link in ~/.local/bin stays right when the package behind it is upgraded.
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return [candidate]
    found = shutil.which("mcpd")
    return [os.path.abspath(found)] if found else [sys.executable, "-m", "mcpd"]


@contextmanager
def _start_lock(socket: str) -> Iterator[None]:
    """Hold the lock on the socket's directory, so that of many clients only one starts a daemon.

    The directory itself is locked: there is no file to be left behind, and the kernel frees it when we die.
    """
    try:
        directory = os.open(paths.socket_directory(socket), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except paths.UnusablePath as error:
        raise DaemonUnreachable(str(error)) from None
    except OSError as error:
        raise DaemonUnreachable(f"cannot use the directory of {socket}: {error.strerror}") from None
    try:
        end = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise DaemonUnreachable(
                        "another mcpctl has been starting mcpd for too long",
                        hint=f"see {log_path()}, and mcpctl daemon status",
                    ) from None
                time.sleep(_POLL)
        yield
    finally:
        os.close(directory)


def _spawn(socket: str) -> int:
    import subprocess

    command, log = daemon_command(), log_path()
    environ = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    try:
        with _open_log(log) as output:
            before = os.fstat(output).st_size
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environ, "MCPD_SOCKET": socket},
                cwd="/",  # so that no file system is kept busy by us
                umask=0o077,
                start_new_session=True,  # so that it outlives this terminal and its Ctrl-C
            )
    except OSError as error:
        raise DaemonUnreachable(
            f"cannot start {command[0]}: {error.strerror}", hint="is mcpd installed beside mcpctl?"
        ) from None
    pid = _wait_ready(process, socket)
    if pid is None:
        status = process.poll()
        what = "does not answer yet" if status is None else f"exited with status {status}"
        hint = "mcpctl daemon logs, or run `mcpd` here to see it"
        if status == _EXIT_BAD_CONFIGURATION:
            hint = "mcpctl config validate   (shows every mistake; mcpctl edit mends them)"
        words = f"mcpd was started and {what}{_log_excerpt(log, before)}"
        raise DaemonUnreachable(words, hint=hint, log=log)
    process.returncode = 0  # nobody here waits for it: it is to outlive us
    return pid


def _log_excerpt(log: str, before: int) -> str:
    """What it has written since its log was `before` bytes long, as half a sentence."""
    with open(log, "rb") as file:
        file.seek(max(before, os.fstat(file.fileno()).st_size - 65536))
        lines = file.read().decode("utf-8", "replace").splitlines()
    words = " ".join(log_message(line).strip() for line in lines[-_EXCERPT_LINES:])
    return f": {words.removeprefix('mcpd: ')}" if words else f", and said nothing; its log is {log}"


def log_message(line: str) -> str:
    """What a record of the log says; anything else as it is."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line


def _wait_ready(process: object, socket: str) -> int | None:
    import subprocess

    assert isinstance(process, subprocess.Popen)
    end = time.monotonic() + START_TIMEOUT
    while (left := end - time.monotonic()) > 0:
        if (pid := daemon_pid(socket, timeout=left)) is not None:
            return pid
        if process.poll() is not None:
            # Ended at once: a fault, or it met a daemon that another program started just before.
            end = min(end, time.monotonic() + 0.5)
        time.sleep(_POLL)
    return None


@contextmanager
def _open_log(path: str) -> Iterator[int]:
    try:
        paths.private_directory(os.path.dirname(path))
    except paths.UnusablePath as error:
        raise DaemonUnreachable(str(error)) from None
    if os.path.exists(path) and os.path.getsize(path) > _LOG_LIMIT:
        os.replace(path, path + ".1")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
