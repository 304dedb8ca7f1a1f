"""The environment of a login shell.

A service runs without that environment, which is the most common cause of "works in my terminal".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

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
