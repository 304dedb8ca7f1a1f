"""The environment of a login shell, and how that of a server differs from it.

A service runs without the environment of a terminal, which is the most common cause of "works in my
terminal". Only names of variables are returned, because a value may be secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from mcpd.config.inherited_environment import withheld_variables

TIMEOUT = 5.0
"""Seconds. Some shells take two to start."""
_MARK = "__mcpd_environment__"
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")


def login_environment(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Start an interactive login shell and return its variables; None if it fails or takes longer than 5 s.

    The shell runs the user's startup files, as in every new terminal.
    """
    import signal
    import subprocess

    shell = environ.get("SHELL") or "/bin/sh"
    script = f"printf %s {_MARK}; env -0; printf %s {_MARK}"
    bare = {name: environ[name] for name in _KEPT if name in environ}
    try:
        process = subprocess.Popen(
            [shell, "-l", "-i", "-c", script],
            env={**bare, "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    with process:
        try:
            out, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as late:
            # The output may be complete: a background process of a startup file keeps the pipe open.
            out = late.output or b""
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    parts = out.decode("utf-8", "surrogateescape").split(_MARK)
    if len(parts) < 3:
        return None
    pairs = (entry.partition("=") for entry in parts[1].split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def missing_directories(login_path: str, path: str) -> list[str]:
    """Return existing directories of the shell's PATH that `path` lacks, except `sbin`."""
    known = set(path.split(":"))
    entries = dict.fromkeys(entry for entry in login_path.split(":") if os.path.isabs(entry))
    lacking = (entry for entry in entries if entry not in known and not entry.endswith("/sbin"))
    return [entry for entry in lacking if os.path.isdir(entry)]


_RARELY_MATTER = re.compile(
    r"LANG|LANGUAGE|LC_\w+|TZ|XDG_\w+|DBUS_\w+|SSH_\w+|DISPLAY|WAYLAND_DISPLAY|DESKTOP_SESSION|GPG_\w+"
    r"|EDITOR|VISUAL|PAGER|LESS\w*|HOSTNAME|HOME|USER|LOGNAME|SHELL|TMPDIR|HIST\w+|LS_\w+|BASH_FUNC.*"
    r"|_|SHLVL|PWD|OLDPWD|PS1|PS2|TERM|COLUMNS|LINES|MAIL|PATH"
)
"""Variables of the terminal and its session, which servers do not need."""


def missing_variables(shell: Mapping[str, str], server: Iterable[str], stderr: str) -> list[str]:
    """Return the names of variables of a login shell that a `server` lacks; first those that its stderr
    mentions."""
    return _mentioned_first(shell.keys() - {*server, *withheld_variables(shell)}, stderr)


def different_variables(shell: Mapping[str, str], inherited: Mapping[str, str], stderr: str) -> list[str]:
    """Return the names of variables that a server has inherited from mcpd with another value than a login
    shell has."""
    return _mentioned_first(
        (name for name, text in inherited.items() if shell.get(name, text) != text), stderr
    )


def _mentioned_first(names: Iterable[str], stderr: str) -> list[str]:
    mentioned = set(re.findall(r"\w+", stderr))
    return sorted(
        (name for name in names if not _RARELY_MATTER.fullmatch(name)),
        key=lambda name: (name not in mentioned, name),
    )
