"""What a fresh terminal of this user would have: a login shell's environment, and where it finds programs.

A service is started without it, and that is the commonest reason for "works in my terminal".
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress

TIMEOUT = 5.0
"""Seconds. Some people's shells take two."""
_MARK = "__mcpd_environment__"
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_SHELL_VARIABLES = "_ SHLVL PWD OLDPWD PS1 PS2 TERM LS_COLORS COLUMNS LINES HISTFILE MAIL PATH"
_IGNORED = frozenset(_SHELL_VARIABLES.split())
_PROGRAM_DIRECTORIES = (
    "~/.local/bin",
    "~/.nvm/versions/node/*/bin",
    "~/.local/share/fnm/node-versions/*/installation/bin",
    "~/.volta/bin",
    "~/.asdf/shims",
    "~/.local/share/mise/shims",
    "~/.pyenv/shims",
    "~/.cargo/bin",
    "~/.bun/bin",
    "~/.deno/bin",
    "~/.local/share/pnpm",
    "~/go/bin",
    "~/.nix-profile/bin",
    "/home/linuxbrew/.linuxbrew/bin",
    "/opt/homebrew/bin",
    "/usr/local/bin",
    "/snap/bin",
)


def login_environment(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The variables of an interactive login shell, made afresh; None when the shell does not say within 5 s.

    It runs the user's own start-up files, as every new terminal does.
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
            # It may have said all: what a start-up file leaves in the background keeps the pipe open.
            out = late.output or b""
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    parts = out.decode("utf-8", "surrogateescape").split(_MARK)
    if len(parts) < 3:
        return None
    pairs = (entry.partition("=") for entry in parts[1].split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def extra_variables(login: Mapping[str, str], names: set[str]) -> list[str]:
    """The variables, by name only, that the shell has and a server that is given `names` does not."""
    return sorted(name for name in login.keys() - names - _IGNORED if not name.startswith("BASH_FUNC"))


def missing_directories(login_path: str, path: str) -> list[str]:
    """Directories of the shell's PATH that exist and are not in the other one, `sbin` left out."""
    known = set(path.split(":"))
    entries = dict.fromkeys(entry for entry in login_path.split(":") if os.path.isabs(entry))
    lacking = (entry for entry in entries if entry not in known and not entry.endswith("/sbin"))
    return [entry for entry in lacking if os.path.isdir(entry)]


def find_elsewhere(command: str) -> list[str]:
    """Where version managers and installers put a program of that name, whatever any PATH says."""
    if "/" in command:
        return []
    found = []
    for place in _PROGRAM_DIRECTORIES:
        for directory in sorted(glob.glob(os.path.expanduser(place))):
            candidate = os.path.join(directory, command)
            if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
                found.append(candidate)
    return found


def find_program(command: str, path: str) -> str | None:
    """What a shell with that PATH would run."""
    return shutil.which(os.path.expanduser(command), path=path)
