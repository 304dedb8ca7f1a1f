"""Checks of `mcpctl doctor` outside the daemon: directories, secrets, permissions, PATH.

Each check returns its findings and never raises. None needs a daemon or starts one.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ctl.cli.text import count
from ctl.daemon import systemd
from ctl.explain.environment import missing_directories
from mcpd.config.secret_store import read_secrets, secrets_path
from mcpd.model.errors import BadSpec

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
            chown = shlex.join(["chown", str(os.getuid()), str(existing)])
            step = f"{chown}, or set the XDG variables to other directories"
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
