"""Checks of `mcpctl doctor`: socket, daemon, service, directories, secrets, permissions, PATH.

Each check returns its findings and never raises. None needs a daemon or starts one.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ctl.cli.errors import CtlError, DaemonUnreachable
from ctl.cli.text import count
from ctl.daemon import process, systemd
from ctl.explain.daemon import RESTART, UPGRADE, DaemonFacts
from ctl.explain.environment import missing_directories
from mcpd import __version__
from mcpd.config import definition_view
from mcpd.config.next_step import install_step, missing_program_step
from mcpd.config.secret_store import read_secrets, secrets_path
from mcpd.files.programs import find_program
from mcpd.model.errors import BadSpec

if TYPE_CHECKING:
    from ctl.api_types import VersionInfo

OK, WARN, FAIL, SKIP = "ok", "warning", "failure", "skipped"


class Finding(NamedTuple):
    """The result of one check, with the next step for a problem."""

    check: str
    result: str
    message: str
    next: str = ""
    ms: float | None = None


def check_directories(directories: Mapping[str, str]) -> Iterator[Finding]:
    """Check that each directory is writable, private and on a disk with free space."""
    for what, location in directories.items():
        existing = Path(location)
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not os.access(existing, os.W_OK | os.X_OK):
            is_own = existing.stat().st_uid == os.getuid()
            fix = ["chmod", "700"] if is_own else ["chown", str(os.getuid())]
            change = shlex.join([*fix, str(existing)])
            if os.statvfs(existing).f_flag & os.ST_RDONLY:
                change = "mount its file system with write access"
            step = f"{change}, or set the XDG variables to other directories"
            yield Finding(what, FAIL, f"{existing} is not writable", step)
            continue
        disk = os.statvfs(existing)
        free = disk.f_bavail * disk.f_frsize
        if free < 10_000_000:
            step = f"free up space on the disk of {existing}; logs and history are being lost"
            yield Finding(what, FAIL, f"{location}: only {free // 1000} kB free", step)
        elif existing == Path(location) and stat.S_IMODE(existing.stat().st_mode) & 0o077:
            yield Finding(
                what, FAIL, f"{location} is accessible to other users", shlex.join(["chmod", "700", location])
            )
        else:
            yield Finding(what, OK, location)


def check_secrets(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the secret store can be read. A server without its secrets says so itself."""
    path = secrets_path(environ)
    try:
        stored = read_secrets(environ)
    except BadSpec as error:
        first = error.problems[0]
        yield Finding("secrets", FAIL, first.message, first.fix or "mcpctl secret list")
        return
    if os.path.lexists(path):
        yield Finding("secrets", OK, f"{count(len(stored), 'secret')} in {path}")


def login_step(problem: str) -> str:
    if "is locked" in problem or "requires a prompt" in problem:
        return "unlock the keyring, then: mcpctl login --list"
    if "keyring" in problem or "session bus" in problem:
        return 'start a keyring, or set "loginStorage" to "credential" or "file": mcpctl edit'
    return "mcpctl login --list"


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
    # A private group per user is common, and with it files that are writable by the group.
    return 0o007 if found.st_gid == os.getgid() else 0o077


def check_path(daemon_path: str | None, login: Mapping[str, str] | None) -> Finding:
    if login is None:
        message = f"your login shell ({os.environ.get('SHELL', '/bin/sh')}) did not start within 5 s"
        return Finding(
            "PATH", WARN, message, "speed up its startup files, or skip this check with --no-shell"
        )
    if daemon_path is None:
        return Finding("PATH", SKIP, "not compared: mcpd is not running")
    if lacking := missing_directories(login.get("PATH", ""), daemon_path):
        step = "mcpctl daemon install" if systemd.is_installed() else "mcpctl daemon restart"
        message = f"directories of your shell's PATH that mcpd lacks: {':'.join(lacking)}"
        return Finding("PATH", WARN, message, f"{step}, from a terminal whose PATH mcpd should use")
    return Finding("PATH", OK, "mcpd has all directories of your shell's PATH")


def check_programs(definitions: Mapping[str, Mapping[str, object]], path: str) -> Iterator[Finding]:
    """Check that the programs of enabled servers are in the PATH of mcpd."""
    found = 0
    for name, definition in definitions.items():
        program = next(iter(definition_view.command(definition)), "")
        own = definition_view.environment(definition).get("PATH", path)
        is_known = "$" not in f"{program}{own}" and ("/" not in program or program.startswith(("/", "~")))
        if not program or not is_known or not definition_view.is_enabled(definition):
            continue
        if find_program(program, str(own)):
            found += 1
            continue
        step = missing_program_step(program, None) or install_step(program, name)
        yield Finding("programs", WARN, f"{name}: there is no program {program} in the PATH of mcpd", step)
    if found:
        yield Finding("programs", OK, f"{count(found, 'server')} with a program that exists")


def check_socket(path: str) -> Iterator[Finding]:
    """Check that the socket and its directory exist, belong to the user and are private."""
    for what, location, loose in (
        ("socket directory", os.path.dirname(path), 0o022),
        ("socket", path, 0o077),
    ):
        try:
            found = os.lstat(location)
        except FileNotFoundError:
            yield Finding(what, SKIP, f"{location} does not exist")
            return
        except OSError as error:
            yield Finding(what, FAIL, f"cannot access {location}: {error.strerror}", "check MCPD_SOCKET")
            return
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.getuid():
            step = "set MCPD_SOCKET to a path in a directory that you own"
            yield Finding(what, FAIL, f"{location} belongs to user {found.st_uid}", step)
        elif mode & loose:
            message = f"{location} is accessible to other users (mode {mode:04o})"
            yield Finding(what, FAIL, message, shlex.join(["chmod", "go-rwx", location]))
        else:
            yield Finding(what, OK, f"{location} (mode {mode:04o})")


def check_daemon(facts: DaemonFacts, *, has_bad_socket: bool) -> Iterator[Finding]:
    """Check that the daemon responds, and that it runs what is installed with this mcpctl."""
    if facts.version is None:
        yield _unresponsive(facts.error, has_bad_socket=has_bad_socket)
        return
    running = facts.version["version"]
    if running != __version__:
        yield Finding(
            "daemon", FAIL, f"the running mcpd is version {running}, mcpctl is {__version__}", UPGRADE
        )
    elif _is_older_than_installation(facts.version):
        message = f"mcpd was installed again after this one was started (pid {facts.pid})"
        yield Finding("daemon", WARN, message, UPGRADE)
    else:
        yield Finding("daemon", OK, f"mcpd {running} responds (pid {facts.pid})")
    for warning in facts.status["daemon"].get("warnings", ()) if facts.status else ():
        message, _, step = warning.rpartition("; ")
        yield Finding("daemon", WARN, message, step)


def _is_older_than_installation(running: VersionInfo) -> bool:
    """Return whether the code of a running daemon was replaced. Another commit may have the same version."""
    from importlib import metadata

    with suppress(OSError, ValueError, StopIteration, metadata.PackageNotFoundError):
        with open(f"/proc/{running['pid']}/cmdline", "rb") as file:
            interpreter = os.fsdecode(file.read().partition(b"\0")[0])
        files = metadata.files("mcp-connection-daemon") or ()
        installed = os.stat(next(each for each in files if each.name == "RECORD").locate()).st_mtime
        is_same = os.path.dirname(interpreter) == os.path.dirname(sys.executable)
        return is_same and installed > datetime.fromisoformat(running["started_at"]).timestamp()
    return False


def _unresponsive(error: CtlError | None, *, has_bad_socket: bool) -> Finding:
    if error is None:
        return Finding("daemon", SKIP, "not running; systemd starts it on demand")
    if not isinstance(error, DaemonUnreachable):
        return Finding("daemon", FAIL, f"does not respond: {error.message}", RESTART)
    if has_bad_socket:
        return Finding("daemon", SKIP, "not checked: the socket cannot be used")
    is_missing = error.message.startswith("mcpd is not running")
    return Finding("daemon", SKIP if is_missing else FAIL, error.message, error.hint)


def check_service(path: str) -> Iterator[Finding]:
    """Check the systemd units, and whether the service keeps running after logout."""
    if not systemd.is_available():
        yield Finding("service", SKIP, "no systemd user manager; mcpd runs in the background")
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
    if failure := systemd.service_failure(unit):
        yield Finding("service", FAIL, f"{state}: {failure[0]}", failure[1])
    elif unit.get("UnitFileState") != "enabled":
        yield Finding("service", WARN, f"{state}; does not start at login", "mcpctl daemon install")
    else:
        yield Finding("service", OK, state)
    if unit.get("NeedDaemonReload") == "yes":
        step = f"systemctl --user daemon-reload, then: {RESTART}"
        yield Finding("service", WARN, "the unit file has changed since systemd loaded it", step)
    if systemd.is_outdated(process.daemon_command()):
        message = "the units start another mcpd, are from another version, or were edited"
        yield Finding("unit", WARN, message, "mcpctl daemon install")
    if not systemd.manages_socket(path):
        step = "unset MCPD_SOCKET, or remove the service: mcpctl daemon uninstall"
        yield Finding("service", WARN, f"uses {systemd.socket_path()}, but mcpctl uses {path}", step)
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
    if not os.path.exists(os.path.join("/var/lib/systemd/linger", user)):
        message = "the service stops when you log out (fine for a desktop, not for a server)"
        yield Finding(
            "lingering", OK, message, f"loginctl enable-linger {user}   (without polkit: with sudo)"
        )
