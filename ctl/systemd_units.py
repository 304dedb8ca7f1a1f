"""mcpd as a unit of the user's service manager: the two unit files, and `systemctl --user`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ctl.errors import CtlError, DaemonUnreachable
from mcpd.support.atomic_files import write_atomically

SERVICE, SOCKET = "mcpd.service", "mcpd.socket"
_PROPERTIES = (
    "LoadState,ActiveState,SubState,MainPID,StatusText,NRestarts,Result,ExecMainStatus,UnitFileState,"
    "NeedDaemonReload"
)
_INSTALLATION_SPECIFIC = ("ExecStart=", "Environment=PATH=", 'Environment="PATH=')
"""How the lines begin that differ from user to user."""


def unit_directory() -> Path:
    """Where the user's own units are."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    config = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.config"))
    return config / "systemd" / "user"


def is_installed() -> bool:
    return (unit_directory() / SERVICE).exists()


def is_available() -> bool:
    """Whether a service manager of this user runs and can be talked to. A file test: costs nothing."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return bool(runtime) and os.path.exists(os.path.join(runtime, "systemd", "private"))


def socket_path() -> str:
    """The socket that the unit listens on, which is `%t/mcpd/mcpd.sock`."""
    return os.path.join(os.environ.get("XDG_RUNTIME_DIR", ""), "mcpd", "mcpd.sock")


def manages_socket(socket: str) -> bool:
    """Whether the service manager is the one to start the daemon of this socket."""
    return is_available() and is_installed() and os.path.abspath(socket) == socket_path()


def systemctl(*words: str) -> str:
    """Run `systemctl --user` and return its output. Raises CtlError with its words when it fails."""
    import subprocess

    try:
        done = subprocess.run(
            ["systemctl", "--user", "--no-pager", *words], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        raise CtlError("systemctl is not installed", hint="mcpd runs without systemd too") from None
    except subprocess.TimeoutExpired:
        raise CtlError(f"systemctl --user {' '.join(words)} takes longer than a minute") from None
    if done.returncode != 0:
        raise CtlError(
            f"systemctl --user {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}",
            hint="systemctl --user status mcpd",
        )
    return done.stdout


def service_properties() -> dict[str, str]:
    """What the manager says of the service."""
    lines = systemctl("show", SERVICE, f"--property={_PROPERTIES}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def start() -> None:
    """Start socket and service, and wait until the daemon is ready. Raises DaemonUnreachable."""
    with suppress(CtlError):  # not loaded yet, so there is nothing to reset
        systemctl("reset-failed", SERVICE, SOCKET)
    try:
        systemctl("start", SOCKET, SERVICE)
    except CtlError as error:
        raise DaemonUnreachable(error.message, hint="mcpctl daemon logs") from None


def stop() -> None:
    """Stop both: with the socket alone left, the next client would start the service again."""
    systemctl("stop", SOCKET, SERVICE)


def write_units(command: Sequence[str], search_path: str) -> list[Path]:
    """Write both unit files, complete or not at all, and return their paths."""
    target = unit_directory()
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name in (SERVICE, SOCKET):
        path = target / name
        write_atomically(path, render_unit(name, command, search_path).encode(), 0o644)
        written.append(path)
    return written


def outdated_reason(command: Sequence[str]) -> str:
    """What is wrong with the installed units, so that they have to be written anew; empty when nothing is.

    `command` is what they should start. Whichever PATH they have is well.
    """
    for name in (SERVICE, SOCKET):
        path = unit_directory() / name
        try:
            found, meant = (text.splitlines() for text in (path.read_text(), render_unit(name, command, "/")))
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        starts, ours = (
            next((line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")), "")
            for lines in (found, meant)
        )
        program = _program(starts)
        if starts != ours and not os.access(program, os.X_OK):
            return f"{name} starts {program}, which is not there"
        if starts != ours:
            return f"{name} starts {starts}, and this mcpctl belongs to {ours}"
        if _common_lines(found) != _common_lines(meant):
            return f"{path} is of another version of mcpd, or was edited"
    return ""


def _program(command: str) -> str:
    """The first word of a command line as `quoted` writes it."""
    import shlex

    try:
        return next(iter(shlex.split(command)), "").replace("%%", "%").replace("$$", "$")
    except ValueError:
        return command


def _common_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not line.startswith(_INSTALLATION_SPECIFIC)]


def render_unit(name: str, command: Sequence[str], search_path: str) -> str:
    """A unit as it is to be installed: our own path in it, and the PATH that the servers will need."""
    text = _unit_template(name)
    if name == SERVICE:
        program = " ".join(quote_for_systemd(word) for word in command)
        text = _replace_line(text, "ExecStart=", f"ExecStart={program}")
        text = _replace_line(
            text,
            "# (install) Environment=PATH=",
            "# The search path of the shell that installed the service: the service manager's own often\n"
            "# lacks ~/.local/bin, nvm and the like. `mcpctl daemon install` writes it anew.\n"
            f"Environment={quote_for_systemd('PATH=' + search_path, variables=False)}",
        )
        text = text.replace("# (install) the absolute path of mcpd\n", "")
    return text


def service_path(value: str) -> str:
    """PATH without what means something else in a service: relative and empty entries, and repetitions."""
    entries = dict.fromkeys(entry for entry in value.split(":") if os.path.isabs(entry))
    return ":".join(entry for entry in entries if entry.isprintable())


def quote_for_systemd(word: str, *, variables: bool = True) -> str:
    """A word as systemd reads it back: `%` and (in a command line) `$` doubled, in quotes where needed."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if variables:
        word = word.replace("$", "$$")
    return f'"{word}"' if not word or any(c.isspace() or c in "\"'\\;" for c in word) else word


def _replace_line(text: str, start: str, line: str) -> str:
    lines = text.splitlines()
    (index,) = (number for number, old in enumerate(lines) if old.startswith(start))
    lines[index] = line
    return "\n".join(lines) + "\n"


def _unit_template(name: str) -> str:
    here = Path(__file__).resolve().parent
    for path in (here / "units" / name, here.parent / "systemd" / name):  # installed, or a checkout
        with suppress(FileNotFoundError):
            return path.read_text()
    raise CtlError(f"this installation lacks its unit file {name}", hint="install it again")
