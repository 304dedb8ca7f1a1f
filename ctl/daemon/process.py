"""Start the daemon, stop it, and read its log.

With an installed systemd service the daemon is started by the service manager, otherwise in the background.
Imported only when no daemon answers, or for `mcpctl daemon`.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO

from ctl.cli.errors import BadConfiguration, CtlError, DaemonUnreachable
from ctl.daemon import systemd
from ctl.daemon.client import DaemonClient
from ctl.daemon.start_lock import STOP_TIMEOUT, SUCCESSOR_TIME, is_being_started, start_lock
from ctl.daemon.systemd import could_not_run, has_refused_configuration, service_failure
from mcpd.files import paths
from mcpd.process.instance_lock import find_lock_holder

START_TIMEOUT = 20.0
"""Seconds. A daemon usually responds within 0.3 s; a cold disk or a busy machine takes longer."""
_ANSWER_TIMEOUT = 5.0
"""Seconds for a listening process to answer `mcpd/version`."""
_POLL, _STOP_POLL = 0.01, 0.05
_EXCERPT_LINES = 10
"""Lines of the log to show when a daemon fails to start."""
EXIT_BAD_CONFIGURATION = 2
"""Exit status of mcpd for an invalid configuration."""
_LOG_LIMIT = 5 * 1024 * 1024
"""Size of daemon.log in bytes at which a start renames it to daemon.log.1."""
_REMOVED_VARIABLES = (
    "MCPD_INSTANCE",  # set for children of a server, which mcpd kills with the server
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
)


def ensure_daemon(socket: str | os.PathLike[str], *, with_login_path: bool = False) -> None:
    """Start a daemon on `socket` unless one is running, and wait until it responds. Prints a line on stderr.

    Any number of clients may call this concurrently: one starts the daemon, the others wait. They also wait
    for `mcpctl daemon restart`. Raises DaemonUnreachable if `MCPD_NO_START` is set, or with the end of the
    log if the daemon fails to start.

    `with_login_path`: a daemon in the background also gets the directories of the login shell's PATH. Set
    this if the current process may not have been started from a terminal.
    """
    path = os.fspath(socket)
    if _is_listening(path):
        return
    if os.environ.get("MCPD_NO_START", "") not in ("", "0"):
        message = f"mcpd is not running at {path}, and MCPD_NO_START prevents starting it"
        raise DaemonUnreachable(message, hint="start it with: mcpctl daemon start")
    if not systemd.manages_socket(path) and _wait_successor(path):
        return
    with start_lock(path):
        if _is_listening(path):
            return
        if systemd.manages_socket(path):
            require_socket(path)
            print("mcpctl: starting mcpd (systemctl --user start mcpd)", file=sys.stderr)
            start_units()
        else:
            print(f"mcpctl: starting mcpd in the background (log: {log_path()})", file=sys.stderr)
            if with_login_path:
                _extend_path()
            _spawn(path)


def _extend_path() -> None:
    """Append the directories that only the login shell has to the PATH of this process."""
    from ctl.explain.environment import login_environment

    login = login_environment(os.environ) or {}
    own = [directory for directory in os.environ.get("PATH", "").split(os.pathsep) if directory]
    more = [each for each in login.get("PATH", "").split(os.pathsep) if each and each not in own]
    os.environ["PATH"] = os.pathsep.join(own + more)


def start_in_background(socket: str, config: str = "", ports: int | None = None) -> int:
    """Start the daemon in a new session and return its pid once it responds.

    `config` is the configuration file to use; empty for the usual one. `ports`: see `receiving_ports`.
    Returns the pid of a daemon that is already running, if there is one. Raises DaemonUnreachable like
    `ensure_daemon`. Call this only inside `start_lock`.
    """
    if not _is_listening(socket):
        _wait_stopped(socket)
        return _spawn(socket, config, ports)
    if (pid := daemon_pid(socket)) is not None:
        return pid
    raise DaemonUnreachable(
        f"the process listening on {socket} does not respond, so mcpd was not started",
        hint="stop it (mcpctl daemon stop, or kill), or choose another socket with MCPD_SOCKET",
    )


def daemon_pid(socket: str, timeout: float = _ANSWER_TIMEOUT) -> int | None:
    """Return the pid of the daemon on `socket`; None if it does not respond."""
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


def _wait_stopped(socket: str) -> None:
    """Wait until a daemon that does not listen has exited: it is stopping, and a new one would exit at once.

    Waits no longer than STOP_TIMEOUT.
    """
    if (pid := find_lock_holder(socket)) is None:
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([process], [], [], STOP_TIMEOUT)
    finally:
        os.close(process)


def _wait_successor(socket: str) -> bool:
    """If a daemon is stopping, wait until it has exited, and then SUCCESSOR_TIME for the next one.

    Returns whether a daemon listens.
    """
    if find_lock_holder(socket) is None:
        return False
    _wait_stopped(socket)
    end = time.monotonic() + SUCCESSOR_TIME
    while time.monotonic() < end and not is_being_started(socket):
        if _is_listening(socket):
            return True
        time.sleep(_STOP_POLL)
    return False


def log_path() -> str:
    return os.path.join(paths.state_dir(os.environ), "daemon.log")


def tail(file: BinaryIO, count: int, start: int = 0) -> list[str]:
    """Return the last lines after `start`, at most 64 KiB. Leaves the file position at the end."""
    file.seek(max(start, os.fstat(file.fileno()).st_size - 65536))
    return file.read().decode("utf-8", "replace").splitlines()[-count:]


def daemon_command() -> list[str]:
    """Return the command that runs mcpd, preferably the one installed with this mcpctl."""
    for directory in (os.path.dirname(os.path.abspath(sys.argv[0])), os.path.join(sys.prefix, "bin")):
        candidate = os.path.join(directory, "mcpd")
        # Not resolved: a link in ~/.local/bin stays valid when its package is upgraded.
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return [candidate]
    found = shutil.which("mcpd")
    return [os.path.abspath(found)] if found else [sys.executable, "-m", "mcpd"]


def _spawn(socket: str, config: str = "", ports: int | None = None) -> int:
    command, log = daemon_command(), log_path()
    environ = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    if config:
        environ["MCPD_CONFIG"] = config
    try:
        with _open_log(log) as output:
            before = os.fstat(output).st_size
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if ports is None else ports,
                stdout=output,
                stderr=output,
                env={**environ, "MCPD_SOCKET": socket},
                cwd="/",  # so that it keeps no file system busy
                umask=0o077,
                start_new_session=True,  # so that it outlives this terminal
            )
    except OSError as error:
        message = f"cannot start {command[0]}: {error.strerror}"
        raise DaemonUnreachable(message, hint="install mcpd in the same environment as mcpctl") from None
    pid = _wait_ready(process, socket)
    if pid is None:
        status = process.poll()
        if status == EXIT_BAD_CONFIGURATION:
            raise bad_configuration(f"mcpd was not started{_log_excerpt(log, before)}")
        what = "does not respond" if status is None else f"exited with status {status}"
        hint = "mcpctl daemon logs, or run `mcpd` in this terminal"
        raise DaemonUnreachable(f"mcpd was started but {what}{_log_excerpt(log, before)}", hint=hint, log=log)
    process.returncode = 0  # it outlives this process: do not wait for it
    return pid


def start_units() -> None:
    """Start socket and service and wait until the daemon is ready. Raises DaemonUnreachable.

    If the socket was removed, both are restarted.
    """
    if systemd.socket_is_lost():
        systemd.stop_units()
    _reset_failures()
    try:
        systemd.systemctl("start", systemd.SOCKET, systemd.SERVICE)
    except CtlError as error:
        raise _start_error(error) from None


def require_socket(path: str) -> None:
    """Raise DaemonUnreachable if the service runs, but its socket was removed.

    Starting its units would restart it, and only a person may end the calls of clients that are connected.
    """
    if systemd.socket_is_lost() and systemd.service_is_active():
        message = f"mcpd is running, but its socket {path} was removed"
        raise DaemonUnreachable(message, hint="mcpctl daemon restart")


def restart_service() -> None:
    """Restart the service and wait until the daemon is ready. Raises DaemonUnreachable.

    If the socket was removed, the socket unit is restarted as well.
    """
    if systemd.socket_is_lost():
        start_units()
        return
    _reset_failures()
    try:
        systemd.systemctl("restart", systemd.SERVICE)
    except CtlError as error:
        raise _start_error(error) from None


def _reset_failures() -> None:
    """Forget earlier failures and starts, because systemd limits the number of starts per minute."""
    with suppress(CtlError):  # not loaded yet: nothing to reset
        systemd.systemctl("reset-failed", systemd.SERVICE, systemd.SOCKET)


def _start_error(error: CtlError) -> DaemonUnreachable:
    """Return why the service did not start: systemctl reports only that it failed."""
    with suppress(CtlError):
        if (found := _service_error(systemd.service_properties())) is not None:
            return found
    return DaemonUnreachable(error.message, hint="mcpctl daemon logs")


def service_error(socket: str) -> DaemonUnreachable | None:
    """Return why the service of this socket closed a connection: the client started it through the socket
    unit, and it could not run, or refused its configuration. None if there is no such service, or another
    reason, after which a request may have run.
    """
    with suppress(CtlError):
        if systemd.manages_socket(socket):
            unit = systemd.service_properties()
            if has_refused_configuration(unit) or could_not_run(unit):
                return _service_error(unit)
    return None


def _service_error(unit: Mapping[str, str]) -> DaemonUnreachable | None:
    if has_refused_configuration(unit):
        return bad_configuration("mcpd was not started: its configuration is invalid")
    if failure := service_failure(unit):
        reason, step = failure
        return DaemonUnreachable(f"mcpd was not started: the service failed: {reason}", hint=step)
    return None


def bad_configuration(message: str) -> BadConfiguration:
    """Return the error for a daemon that refused its configuration, with all problems if they are found here.

    `message` is used if the configuration is valid for this process, whose environment may differ.
    """
    from ctl.explain.next_steps import config_step
    from mcpd.config.loader import load
    from mcpd.model.errors import BadSpec

    try:
        load(None, os.environ)
    except BadSpec as error:
        problems = [{"path": each.path, "message": each.message, "fix": each.fix} for each in error.problems]
        message = f"mcpd was not started: {error.source or 'the configuration'} is invalid"
        return BadConfiguration(message, hint=config_step(problems), problems=problems)
    return BadConfiguration(message, hint="mcpctl daemon logs")


def _log_excerpt(log: str, before: int) -> str:
    """Return what was logged after the first `before` bytes, as the end of a sentence."""
    with open(log, "rb") as file:
        lines = tail(file, _EXCERPT_LINES, before)
    text = " ".join(log_message(line).strip() for line in lines)
    return f": {text.removeprefix('mcpd: ')}" if text else f" without output; its log is {log}"


def log_message(line: str) -> str:
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line


def _wait_ready(process: subprocess.Popen[bytes], socket: str) -> int | None:
    end = time.monotonic() + START_TIMEOUT
    while (left := end - time.monotonic()) > 0:
        if (pid := daemon_pid(socket, timeout=left)) is not None:
            return pid
        if process.poll() is not None:
            # It failed, or another program has just started a daemon.
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


_POLL_SECONDS = 0.25


def stop(socket: str) -> bool:
    """Stop the daemon on the socket and wait until its process has exited. Returns False if there is none.

    A daemon that cannot be reached, or does not respond, is found by its lock. It is killed if it does not
    stop within STOP_TIMEOUT; its guardian then kills the servers. Raises CtlError if a daemon that responds
    does not stop in this time.
    """
    pid, responds = daemon_pid(socket), True
    if pid is None:
        pid, responds = find_lock_holder(socket), False
    if pid is None:
        return False
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:  # already stopped in the meantime
        return False
    try:
        if responds:
            with suppress(CtlError), DaemonClient(socket) as client:  # it may exit before it answers
                client.call("mcpd/shutdown", timeout=5.0)
        else:
            signal.pidfd_send_signal(process, signal.SIGTERM)
        if select.select([process], [], [], STOP_TIMEOUT)[0]:
            return True
        if responds:
            message = f"mcpd (pid {pid}) did not stop within {STOP_TIMEOUT:.0f} s"
            raise CtlError(message, hint=f"kill -9 {pid} (its servers are stopped too)")
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], STOP_TIMEOUT)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)
    return True


def log_lines(path: str, count: int, *, follow: bool) -> Generator[str]:
    """Yield the last lines of the log and, with `follow`, all later ones. Raises OSError."""
    with open(path, "rb") as file:
        yield from tail(file, count)
        rest = b""
        while follow:
            *whole, rest = (rest + file.read()).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
            time.sleep(_POLL_SECONDS)
