"""Checks of `mcpctl doctor` outside the daemon: files, the service, the login shell, programs.

Each check returns its findings and never raises. None needs a daemon or starts one.
"""

from __future__ import annotations

import os
import shlex
import socket as sockets
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ctl.cli.errors import CtlError
from ctl.cli.text import count
from ctl.daemon import systemd
from ctl.daemon.client import Json
from ctl.daemon.process import daemon_command
from ctl.daemon.systemd import service_failure
from ctl.explain.environment import missing_directories
from ctl.explain.next_steps import this_shell
from mcpd.config import definition_view
from mcpd.config.check_document import LoadedConfig
from mcpd.config.next_step import missing_program_step, misspelling_note
from mcpd.config.secret_store import read_secrets, secrets_path
from mcpd.model.errors import BadSpec
from mcpd.support.find_programs import find_program
from mcpd.support.instance_lock import find_lock_holder

if TYPE_CHECKING:
    from ctl.api_types import ConfigView, DaemonStatus, VersionInfo

OK, WARN, FAIL, SKIP = "ok", "warning", "failure", "skipped"

RUNTIMES = ("node", "npx", "uvx", "python3", "docker")
_VERSION_TIMEOUT = 10.0


class Finding(NamedTuple):
    """The result of one check, with a one-line fix for a problem."""

    check: str
    result: str
    message: str
    fix: str = ""
    ms: float | None = None


class DoctorReport:
    """The findings, and the daemon's answers they are based on; None or empty if it is not running."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.loaded: LoadedConfig | None = None
        """The configuration file as this process reads it; None if it is invalid."""
        self.version: VersionInfo | None = None
        self.status: DaemonStatus | None = None
        self.config: ConfigView | None = None
        self.answers: dict[str, Json] = {}
        """All answers, by file name in the support bundle."""


def check_socket(path: str) -> Iterator[Finding]:
    """Check that the socket and its directory exist, belong to the user and are private."""
    directory = os.path.dirname(path)
    for what, location, loose in (("socket directory", directory, 0o022), ("socket", path, 0o077)):
        try:
            found = os.lstat(location)
        except FileNotFoundError:
            yield _missing_socket(what, location, path)
            return
        except OSError as error:
            yield Finding(what, FAIL, f"cannot access {location}: {error.strerror}", "check MCPD_SOCKET")
            return
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.getuid():
            fix = "set MCPD_SOCKET to a path in a directory that you own"
            yield Finding(what, FAIL, f"{location} belongs to user {found.st_uid}", fix)
        elif mode & loose:
            message = f"{location} is accessible to other users (mode {mode:04o})"
            yield Finding(what, FAIL, message, shlex.join(["chmod", "go-rwx", location]))
        elif what == "socket" and not stat.S_ISSOCK(found.st_mode):
            message = f"{location} is not a socket"
            yield Finding(what, FAIL, message, f"{shlex.join(['rm', location])}, then: mcpctl daemon start")
        elif what == "socket" and not _has_listener(path):
            message = f"{location} is left over: nothing listens on it"
            yield Finding(what, SKIP, message, "mcpctl daemon start")
        else:
            yield Finding(what, OK, f"{location} (mode {mode:04o})")


def _missing_socket(what: str, location: str, socket: str) -> Finding:
    """Judge a socket, or its directory, that does not exist."""
    if pid := find_lock_holder(socket):
        message = f"{location} was removed, but mcpd is running (pid {pid})"
        return Finding(what, FAIL, message, "mcpctl daemon restart")
    if systemd.manages_socket(socket) and systemd.socket_is_lost():
        message = f"{location} was removed, but systemd still listens on it (mcpd.socket)"
        return Finding(what, FAIL, message, "mcpctl daemon restart")
    return Finding(what, SKIP, f"{location} does not exist (mcpd has not been started)")


def _has_listener(path: str) -> bool:
    """Return whether a process listens on a socket, without starting a service."""
    if systemd.manages_socket(path) and systemd.socket_is_active():
        return True
    with suppress(OSError), sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def check_service(path: str) -> Iterator[Finding]:
    """Check the systemd units, and whether the service keeps running after logout."""
    if not systemd.is_available():
        message = "no systemd user manager; mcpd runs in the background"
        yield Finding("service", SKIP, message)
        return
    if other := systemd.foreign_unit():
        message = f"{other} belongs to another program named mcpd; this mcpd runs in the background"
        yield Finding("service", WARN, message, "rename that unit to install the service of this mcpd")
        return
    if not systemd.is_installed():
        message = "mcpd is not installed as a service, so it does not start at login"
        yield Finding("service", WARN, message, "mcpctl daemon install")
        return
    try:
        unit = systemd.service_properties()
    except CtlError as error:
        yield Finding("service", FAIL, error.message, error.hint or "systemctl --user status mcpd")
        return
    state = f"{unit.get('ActiveState')} ({unit.get('SubState')}), {unit.get('NRestarts', '0')} restarts"
    if failure := service_failure(unit):
        reason, step = failure
        yield Finding("service", FAIL, f"{state}: {reason}", step)
    elif unit.get("UnitFileState") != "enabled":
        yield Finding("service", WARN, f"{state}; does not start at login", "mcpctl daemon install")
    else:
        yield Finding("service", OK, state)
    if unit.get("NeedDaemonReload") == "yes":
        message = "the unit file has changed since systemd loaded it"
        yield Finding("service", WARN, message, "systemctl --user daemon-reload, then: mcpctl daemon restart")
    if stale := systemd.outdated_reason(daemon_command()):
        gone = stale.endswith("does not exist")
        yield Finding("unit", FAIL if gone else WARN, stale, "mcpctl daemon install")
    if not systemd.manages_socket(path):
        fix = "unset MCPD_SOCKET, or remove the service: mcpctl daemon uninstall"
        yield Finding("service", WARN, f"uses {systemd.socket_path()}, but mcpctl uses {path}", fix)
    yield _check_lingering()


def _check_lingering() -> Finding:
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
    if os.path.exists(os.path.join("/var/lib/systemd/linger", user)):
        return Finding("lingering", OK, "the service keeps running after you log out")
    message = "the service stops when you log out (fine for a desktop, not for a server)"
    return Finding("lingering", OK, message, f"loginctl enable-linger {user}")


def check_directories(directories: Mapping[str, str]) -> Iterator[Finding]:
    """Check that each directory is writable, private and on a disk with free space."""
    for what, location in directories.items():
        existing = Path(location)
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not os.access(existing, os.W_OK | os.X_OK):
            chown = shlex.join(["chown", str(os.getuid()), str(existing)])
            fix = f"{chown}, or set the XDG variables to other directories"
            yield Finding(what, FAIL, f"{existing} is not writable", fix)
            continue
        disk = os.statvfs(existing)
        free = disk.f_bavail * disk.f_frsize
        if free < 10_000_000:
            fix = f"free up space on the disk of {existing}; logs and history are being lost"
            yield Finding(what, FAIL, f"{location}: only {free // 1000} kB free", fix)
        elif existing == Path(location) and stat.S_IMODE(existing.stat().st_mode) & 0o077:
            yield Finding(
                what, FAIL, f"{location} is accessible to other users", shlex.join(["chmod", "700", location])
            )
        else:
            yield Finding(what, OK, location)


def check_secrets(
    environ: Mapping[str, str], definitions: Mapping[str, Mapping[str, object]]
) -> Iterator[Finding]:
    """Check that the secret store can be read, and has what the definitions of enabled servers need."""
    path = secrets_path(environ)
    try:
        stored = read_secrets(environ)
    except BadSpec as error:
        first = error.problems[0]
        yield Finding("secrets", FAIL, first.message, first.fix or "mcpctl secret list")
        return
    users: dict[str, list[str]] = {}
    for server, definition in definitions.items():
        for name in definition_view.required_secrets(definition):
            if name not in stored and definition_view.is_enabled(definition):
                users.setdefault(name, []).append(server)
    for name, servers in users.items():
        message = f"{name} is not stored, but needed by {', '.join(servers)}"
        yield Finding("secrets", FAIL, message, f"mcpctl secret set {name}")
    if not users and os.path.lexists(path):
        yield Finding("secrets", OK, f"{count(len(stored), 'secret')} in {path}")


def fix_for_logins(problem: str) -> str:
    """Return what helps if the logins cannot be stored."""
    if "is locked" in problem or "requires a prompt" in problem:
        return "unlock the keyring, then: mcpctl auth list"
    if "keyring" in problem or "session bus" in problem:
        return 'start a keyring, or set "loginStorage" to "credential" or "file": mcpctl edit'
    return "mcpctl auth list"


def check_file_permissions(path: str, secrets: Iterable[str]) -> Iterator[Finding]:
    """Check that other users cannot change or replace the configuration, or read `secrets` in it."""
    for directory in dict.fromkeys(os.path.dirname(each) for each in (path, os.path.realpath(path))):
        yield from _check_configuration_directory(directory)
    try:
        found = os.stat(path)
        text = Path(path).read_text("utf-8", "replace")
    except OSError:  # missing or unreadable, which is reported when it is loaded
        return
    others, mode = _bits_of_others(found), stat.S_IMODE(found.st_mode)
    if mode & others & 0o022:
        message = f"{path} is writable by other users, who could run any command as you (mode {mode:04o})"
        yield Finding("configuration", FAIL, message, shlex.join(["chmod", "go-w", path]))
    if mode & others & 0o044 and any(secret in text for secret in secrets):
        message = f"{path} contains secrets and is readable by other users (mode {mode:04o})"
        yield Finding("configuration", WARN, message, shlex.join(["chmod", "600", path]))


def _check_configuration_directory(directory: str) -> Iterator[Finding]:
    """Check that other users cannot replace the files in a directory."""
    try:
        found = os.stat(directory)
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    # The sticky bit, as in /tmp, protects the files of one user from all others.
    if mode & _bits_of_others(found) & 0o022 and not mode & stat.S_ISVTX:
        message = (
            f"{directory} is writable by other users, who could replace the configuration and run any "
            f"command as you (mode {mode:04o})"
        )
        yield Finding("configuration", FAIL, message, shlex.join(["chmod", "go-w", directory]))


def _bits_of_others(found: os.stat_result) -> int:
    """Return the permission bits that count for other users."""
    # A private group per user is common, and with it files that are writable by the group.
    return 0o007 if found.st_gid == os.getgid() else 0o077


def check_path(daemon_path: str | None, login: Mapping[str, str] | None) -> Iterator[Finding]:
    """Compare the PATH in which mcpd looks for commands with that of a terminal."""
    if login is None:
        message = f"your login shell ({os.environ.get('SHELL', '/bin/sh')}) did not start within 5 s"
        yield Finding("PATH", WARN, message, "speed up its startup files, or skip this check with --no-shell")
        return
    if daemon_path is None:
        yield Finding("PATH", SKIP, "not compared: mcpd is not running")
        return
    lacking = missing_directories(login.get("PATH", ""), daemon_path)
    if lacking:
        fix = "mcpctl daemon install" if systemd.is_installed() else "mcpctl daemon restart"
        message = f"directories of your shell's PATH that mcpd lacks: {':'.join(lacking)}"
        yield Finding("PATH", WARN, message, f"{fix}, from a terminal whose PATH mcpd should use")
    else:
        yield Finding("PATH", OK, "mcpd has all directories of your shell's PATH")


def check_programs(needed: set[str], path: str, login: Mapping[str, str] | None) -> Iterator[Finding]:
    """Check the interpreters and package runners that servers commonly need."""
    for name in dict.fromkeys((*RUNTIMES, *sorted(needed))):
        found = find_program(name, path)
        if found is not None:
            if name in RUNTIMES:
                yield _check_version(name, found, path, needed=name in needed)
            continue
        if name not in needed:
            yield Finding("program", SKIP, f"{name} is not installed (no server needs it)")
            continue
        step = missing_program_step(name, this_shell(login))
        message = "is required but not in the PATH of mcpd" if step else "is required but was not found"
        yield Finding(
            "program", FAIL, f"{name} {message}", step or f"install {name}{misspelling_note(name, path)}"
        )


def _check_version(name: str, found: str, path: str, *, needed: bool) -> Finding:
    import subprocess
    import time

    bad = FAIL if needed else WARN
    started = time.monotonic()
    try:
        done = subprocess.run(
            [found, "--version"],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"{found} --version did not finish within {_VERSION_TIMEOUT:g} s"
        return Finding("program", WARN, message, f"{found} --version")
    except OSError as error:
        return Finding("program", bad, f"{found} does not run: {error.strerror}", f"reinstall {name}")
    ms = round((time.monotonic() - started) * 1000, 1)
    output = (done.stdout or done.stderr).strip().splitlines()
    if done.returncode != 0:
        reason = output[-1] if output else f"exit status {done.returncode}"
        return Finding("program", bad, f"{found} does not run: {reason}", f"reinstall {name}", ms)
    return Finding("program", OK, f"{name} {output[0] if output else ''} ({found})", ms=ms)


def check_name(search_path: str) -> Iterator[Finding]:
    """Check that `mcpd` in the PATH of a terminal is this program: others have the same name."""
    found = find_program("mcpd", search_path)
    if found is None:
        return  # mcpctl finds the one it belongs to by itself
    (ours, *_) = daemon_command()
    if os.path.realpath(found) == os.path.realpath(ours):
        return
    try:
        head = Path(found).read_bytes()[:4096]
    except OSError:
        head = b""
    if b"from mcpd.main import" in head or b"mcpd.main" in head:
        message = f"{found} is another installation of this mcpd; mcpctl uses {ours}"
    else:
        message = f"{found} in your PATH is another program named mcpd; mcpctl uses {ours}"
    yield Finding("program", WARN, message, f"run this one as {ours}, or change the order of PATH")


def check_installation(started_at: float) -> Iterator[Finding]:
    """Check whether mcpd was reinstalled while the daemon was running."""
    import mcpd

    newest = 0.0
    for file in Path(mcpd.__file__).parent.rglob("*.py"):
        try:
            # ctime is when the file was installed; mtime may be when it was packaged.
            newest = max(newest, file.stat().st_ctime)
        except OSError:
            continue
    if newest > started_at:
        message = "mcpd was updated after the daemon started"
        yield Finding("installation", WARN, message, "mcpctl daemon restart")
    else:
        yield Finding("installation", OK, f"Python {sys.version.split()[0]}, {Path(mcpd.__file__).parent}")
