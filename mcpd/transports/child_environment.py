"""What a child process is given of our environment, and where its program is found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

import attrs

from mcpd.model.server_spec import StdioSpec
from mcpd.support.orphans import INSTANCE_VARIABLE

INHERITED = frozenset(
    {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    # Where certificates are: no secrets, and without them nothing can be fetched behind a company's proxy.
    | {"CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"}
)
INHERITED_PREFIXES = ("LC_", "XDG_")
"""Proxy variables are not among them, as they may hold a password: `env` in the definition passes them on."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class CannotStart(Exception):
    """The definition cannot be started as it stands; trying again would not help."""


@attrs.frozen(kw_only=True)
class Launch:
    """Everything `execve` needs, found and checked before the fork."""

    executable: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    umask: int


def child_environment(spec: StdioSpec, ours: Mapping[str, str], mark: str) -> dict[str, str]:
    """The allow-listed part of our environment, the definition's own, and our mark."""
    base = {
        name: text for name, text in ours.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    return {"PATH": DEFAULT_PATH, **base, **spec.env, INSTANCE_VARIABLE: mark}


def prepare_launch(spec: StdioSpec, ours: Mapping[str, str], mark: str) -> Launch:
    """Find the program and check the directory. Raises CannotStart with what to do about it."""
    env = child_environment(spec, ours, mark)
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        wrong = "is a file" if os.path.exists(spec.cwd) else "does not exist"
        raise CannotStart(f"its directory {spec.cwd} {wrong} (`cwd` in its definition)")
    path = env["PATH"]
    command = os.path.expanduser(spec.command)
    if "/" in command:
        place = os.path.join(spec.cwd or os.getcwd(), command)
        if not os.path.exists(place):
            raise CannotStart(
                _whole_command_line_hint(command, path) or f"there is no file {place}; correct `command`"
            )
        if os.path.isdir(place):
            raise CannotStart(f"{place} is a directory; name a program in it as `command`")
        if not os.access(place, os.X_OK):
            raise CannotStart(
                f"{place} is not executable; `chmod +x` it, or name its interpreter as `command`"
            )
        found: str | None = place
    else:
        found = shutil.which(command, path=path)
    if found is None:
        if words := _whole_command_line_hint(command, path):
            raise CannotStart(words)
        searched = ":".join(dict.fromkeys(path.split(":")))
        raise CannotStart(
            f"command not found: {command} (give its full path as `command`, or set `env.PATH`); "
            f"looked in PATH={searched}"
        )
    return Launch(executable=found, argv=(spec.command, *spec.args), env=env, cwd=spec.cwd, umask=spec.umask)


def _whole_command_line_hint(command: str, path: str) -> str:
    """What to do where a whole command line was written as the name of its program; empty where none was."""
    program, *arguments = command.split() or [""]
    if not arguments or shutil.which(os.path.expanduser(program), path=path) is None:
        return ""
    return f"there is no program named {command!r}; for {program!r}, write the rest of it into `args`"
