"""The environment a child process receives, and finding its program."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

import attrs

from mcpd.model.server_spec import StdioSpec
from mcpd.support.orphans import INSTANCE_VARIABLE

INHERITED = frozenset(
    {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    # CA certificate locations: not secret, and needed for downloads behind a corporate proxy.
    | {"CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"}
)
INHERITED_PREFIXES = ("LC_", "XDG_")
"""Proxy variables are not inherited because they may contain a password; set them in `env`."""
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class CannotStart(Exception):
    """The definition cannot be started as it is; retrying would not help."""


@attrs.frozen(kw_only=True)
class Launch:
    """Everything needed for `execve`, checked before the fork."""

    executable: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    umask: int


def child_environment(spec: StdioSpec, ours: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the inherited variables, those of the definition, and mcpd's mark."""
    base = {
        name: text for name, text in ours.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    return {"PATH": DEFAULT_PATH, **base, **spec.env, INSTANCE_VARIABLE: mark}


def prepare_launch(spec: StdioSpec, ours: Mapping[str, str], mark: str) -> Launch:
    """Find the program and check the directory. Raises CannotStart with advice."""
    env = child_environment(spec, ours, mark)
    if spec.cwd is not None and not os.path.isdir(spec.cwd):
        wrong = "is a file" if os.path.exists(spec.cwd) else "does not exist"
        raise CannotStart(f"its directory {spec.cwd} {wrong} (see `cwd` in its definition)")
    path = env["PATH"]
    command = os.path.expanduser(spec.command)
    if "/" in command:
        place = os.path.join(spec.cwd or os.getcwd(), command)
        if not os.path.exists(place):
            raise CannotStart(
                _whole_command_line_hint(command, path) or f"there is no file {place}; correct `command`"
            )
        if os.path.isdir(place):
            raise CannotStart(f"{place} is a directory; set `command` to a program")
        if not os.access(place, os.X_OK):
            raise CannotStart(
                f"{place} is not executable; `chmod +x` it, or set `command` to its interpreter"
            )
        found: str | None = place
    else:
        found = shutil.which(command, path=path)
    if found is None:
        if words := _whole_command_line_hint(command, path):
            raise CannotStart(words)
        searched = ":".join(dict.fromkeys(path.split(":")))
        raise CannotStart(
            f"command not found: {command} (set `command` to its full path, or set `env.PATH`); "
            f"looked in PATH={searched}"
        )
    return Launch(executable=found, argv=(spec.command, *spec.args), env=env, cwd=spec.cwd, umask=spec.umask)


def _whole_command_line_hint(command: str, path: str) -> str:
    """Return advice if `command` contains a whole command line; otherwise an empty string."""
    program, *arguments = command.split() or [""]
    if not arguments or shutil.which(os.path.expanduser(program), path=path) is None:
        return ""
    return f"there is no program named {command!r}; to run {program!r}, move the rest to `args`"
