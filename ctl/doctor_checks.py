"""What `mcpctl doctor` looks at outside of the daemon: files, the service, the login shell, programs.

Each check returns its findings and never raises. Nothing here needs a daemon, or starts one.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ctl import login_shell, systemd_units
from ctl.autostart import daemon_command
from ctl.errors import CtlError
from ctl.status_view import shell_join
from ctl.terminal_text import count
from mcpd.config.secret_store import read_secrets, secrets_path
from mcpd.model.errors import BadSpec

OK, WARN, FAIL, SKIP = "ok", "warning", "failure", "skipped"

RUNTIMES = ("node", "npx", "uvx", "python3", "docker")
_VERSION_TIMEOUT = 10.0


class Finding:
    """One thing that was looked at: how it is, and one line that mends it where it is not well."""

    __slots__ = ("check", "fix", "message", "ms", "result")

    def __init__(self, check: str, result: str, message: str, fix: str = "", ms: float | None = None) -> None:
        self.check = check
        self.result = result
        self.message = message
        self.fix = fix
        self.ms = ms

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("check", "result", "message", "fix", "ms")}


def check_socket(path: str) -> Iterator[Finding]:
    """The socket and its directory: there, ours, and closed to others."""
    directory = os.path.dirname(path)
    for what, place, loose in (("socket directory", directory, 0o022), ("socket", path, 0o077)):
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            yield Finding(what, SKIP, f"{place} is not there (no daemon has been started)")
            return
        except OSError as error:
            yield Finding(what, FAIL, f"cannot look at {place}: {error.strerror}", "check MCPD_SOCKET")
            return
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid != os.getuid():
            fix = "set MCPD_SOCKET to a path in a directory of your own"
            yield Finding(what, FAIL, f"{place} belongs to user {found.st_uid}", fix)
        elif mode & loose:
            yield Finding(
                what,
                FAIL,
                f"{place} is open to others (mode {mode:04o})",
                shell_join(["chmod", "go-rwx", place]),
            )
        elif what == "socket" and not stat.S_ISSOCK(found.st_mode):
            yield Finding(
                what, FAIL, f"{place} is no socket", f"{shell_join(['rm', place])}, then: mcpctl daemon start"
            )
        else:
            yield Finding(what, OK, f"{place} (mode {mode:04o})")


def check_service(path: str) -> Iterator[Finding]:
    """The unit, and whether it may go on when nobody is logged in."""
    if not systemd_units.is_available():
        words = "no service manager of this user runs here: mcpd runs in the background"
        yield Finding("service", SKIP, words)
        return
    if not systemd_units.is_installed():
        yield Finding(
            "service", WARN, "mcpd is no service, so it does not start at login", "mcpctl daemon install"
        )
        return
    try:
        unit = systemd_units.service_properties()
    except CtlError as error:
        yield Finding("service", FAIL, error.message, error.hint or "systemctl --user status mcpd")
        return
    told = f"{unit.get('ActiveState')} ({unit.get('SubState')}), {unit.get('NRestarts', '0')} restarts"
    if unit.get("ActiveState") == "failed" or unit.get("Result") not in ("success", "", None):
        yield Finding(
            "service",
            FAIL,
            f"{told}: {unit.get('Result')}",
            "mcpctl daemon logs, then: mcpctl daemon restart",
        )
    elif unit.get("UnitFileState") != "enabled":
        yield Finding("service", WARN, f"{told}; it does not start at login", "mcpctl daemon install")
    else:
        yield Finding("service", OK, told)
    if unit.get("NeedDaemonReload") == "yes":
        words = "its unit has changed since the service manager read it"
        yield Finding("service", WARN, words, "systemctl --user daemon-reload, then: mcpctl daemon restart")
    if stale := systemd_units.outdated_reason(daemon_command()):
        gone = stale.endswith("not there")
        yield Finding("unit", FAIL if gone else WARN, stale, "mcpctl daemon install")
    if not systemd_units.manages_socket(path):
        fix = "unset MCPD_SOCKET, or stop the service: mcpctl daemon uninstall"
        yield Finding(
            "service", WARN, f"it listens on {systemd_units.socket_path()}, and {path} is used here", fix
        )
    yield _check_lingering()


def _check_lingering() -> Finding:
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
    if os.path.exists(os.path.join("/var/lib/systemd/linger", user)):
        return Finding("lingering", OK, "the service goes on after you log out")
    words = "the service ends when you log out (right for a desktop, not for a server)"
    return Finding("lingering", OK, words, f"loginctl enable-linger {user}")


def check_directories(places: Mapping[str, str]) -> Iterator[Finding]:
    """State and cache: there or makeable, writable, closed to others, on a disk with room."""
    for what, place in places.items():
        existing = Path(place)
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not os.access(existing, os.W_OK | os.X_OK):
            chown = shell_join(["chown", str(os.getuid()), str(existing)])
            fix = f"{chown}, or set the XDG variables to another place"
            yield Finding(what, FAIL, f"{existing} cannot be written to", fix)
            continue
        room = os.statvfs(existing)
        free = room.f_bavail * room.f_frsize
        if free < 10_000_000:
            fix = f"make room on the disk of {existing}: logs and history are being dropped"
            yield Finding(what, FAIL, f"{place}: only {free // 1000} kB are free", fix)
        elif existing == Path(place) and stat.S_IMODE(existing.stat().st_mode) & 0o077:
            yield Finding(what, FAIL, f"{place} is open to others", shell_join(["chmod", "700", place]))
        else:
            yield Finding(what, OK, place)


def check_secrets(environ: Mapping[str, str]) -> Iterator[Finding]:
    """The store of secrets, where there is one: what is wrong with it is the trouble of many servers."""
    path = secrets_path(environ)
    if not os.path.lexists(path):
        return
    try:
        yield Finding("secrets", OK, f"{count(len(read_secrets(environ)), 'secret')} in {path}")
    except BadSpec as error:
        first = error.problems[0]
        yield Finding("secrets", FAIL, first.message, first.fix or "mcpctl secret list")


def check_file_permissions(path: str, secrets: Iterable[str]) -> Iterator[Finding]:
    """Whether others may write what is started as us, or read what of `secrets` stands in it."""
    try:
        found = os.stat(path)
        text = Path(path).read_text("utf-8", "replace")
    except OSError:  # there is none, or what reads it says why it cannot
        return
    # A group of one's own is usual, and with it files that it may write.
    others = 0o007 if found.st_gid == os.getgid() else 0o077
    mode = stat.S_IMODE(found.st_mode)
    if mode & others & 0o022:
        words = f"{path} can be written by others, who could have you start anything (mode {mode:04o})"
        yield Finding("configuration", FAIL, words, shell_join(["chmod", "go-w", path]))
    if mode & others & 0o044 and any(secret in text for secret in secrets):
        words = f"{path} has secrets in it, and others may read it (mode {mode:04o})"
        yield Finding("configuration", WARN, words, shell_join(["chmod", "600", path]))


def check_path(daemon_path: str | None, login: Mapping[str, str] | None) -> Iterator[Finding]:
    """The PATH that servers' commands are looked for in, against that of a terminal."""
    if login is None:
        words = (
            f"your login shell ({os.environ.get('SHELL', '/bin/sh')}) does not say its environment within 5 s"
        )
        yield Finding("PATH", WARN, words, "make its start-up files quicker, or skip this with --no-shell")
        return
    if daemon_path is None:
        yield Finding("PATH", SKIP, "no daemon runs whose PATH could be compared")
        return
    lacking = login_shell.missing_directories(login.get("PATH", ""), daemon_path)
    if lacking:
        fix = "mcpctl daemon install" if systemd_units.is_installed() else "mcpctl daemon restart"
        words = f"the daemon does not look in {':'.join(lacking)}, and your shell does"
        yield Finding("PATH", WARN, words, f"{fix}, from a terminal: the daemon takes over its PATH")
    else:
        yield Finding("PATH", OK, "the daemon looks wherever your shell does")


def check_programs(needed: set[str], path: str, login: Mapping[str, str] | None) -> Iterator[Finding]:
    """The interpreters and package runners that servers are usually started with."""
    for name in dict.fromkeys((*RUNTIMES, *sorted(needed))):
        found = login_shell.find_program(name, path)
        if found is not None:
            if name in RUNTIMES:
                yield _check_version(name, found, path, needed=name in needed)
            continue
        if name not in needed:
            yield Finding("program", SKIP, f"{name} is not installed, and no server needs it")
            continue
        in_shell = None if login is None else login_shell.find_program(name, login.get("PATH", ""))
        places = [in_shell] if in_shell else login_shell.find_elsewhere(name)
        if places:
            fix = f"write {places[0]} as the command, or mcpctl daemon install from a terminal that finds it"
            yield Finding(
                "program", FAIL, f"{name} is needed and not found by the daemon; it is at {places[0]}", fix
            )
        else:
            yield Finding("program", FAIL, f"{name} is needed and not found anywhere", f"install {name}")


def _check_version(name: str, found: str, path: str, *, needed: bool) -> Finding:
    import subprocess
    import time

    bad = FAIL if needed else WARN
    began = time.monotonic()
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
        words = f"{found} has not said its version within {_VERSION_TIMEOUT:g} s"
        return Finding("program", WARN, words, f"{found} --version")
    except OSError as error:
        return Finding("program", bad, f"{found} does not run: {error.strerror}", f"reinstall {name}")
    ms = round((time.monotonic() - began) * 1000, 1)
    said = (done.stdout or done.stderr).strip().splitlines()
    if done.returncode != 0:
        words = said[-1] if said else f"exit {done.returncode}"
        return Finding("program", bad, f"{found} does not run: {words}", f"reinstall {name}", ms)
    return Finding("program", OK, f"{name} {said[0] if said else ''} ({found})", ms=ms)


def check_installation(started_at: float) -> Iterator[Finding]:
    """Whether mcpd was installed anew under a daemon that still runs the old one."""
    import mcpd

    newest = 0.0
    for file in Path(mcpd.__file__).parent.rglob("*.py"):
        try:
            # Not its own time, which may be that of its packing: that of its being put there.
            newest = max(newest, file.stat().st_ctime)
        except OSError:
            continue
    if newest > started_at:
        yield Finding(
            "installation",
            WARN,
            "mcpd's files are newer than the daemon that runs",
            "mcpctl daemon restart",
        )
    else:
        yield Finding("installation", OK, f"Python {sys.version.split()[0]}, {Path(mcpd.__file__).parent}")


def path_commands(servers: Sequence[str]) -> set[str]:
    """The programs, of those named by servers, that are looked for in PATH."""
    return {command for command in servers if command and "/" not in command}
