"""The systemd user units of mcpd: writing them, `systemctl --user`, and why the service is down."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ctl.cli.errors import CtlError
from mcpd.files.atomic import write_atomically

SERVICE, SOCKET = "mcpd.service", "mcpd.socket"
_PROPERTIES = (
    "LoadState,LoadError,ActiveState,SubState,MainPID,NRestarts,Result,ExecMainStatus,"
    "UnitFileState,NeedDaemonReload"
)
_OUR_MARKS = ("mcpctl daemon", "ListenStream=%t/mcpd/mcpd.sock")
"""Every version of our units has one of them."""
_PATH_LINES = ("Environment=PATH=", 'Environment="PATH=')


def unit_directory() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    config = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.config"))
    return config / "systemd" / "user"


def is_installed() -> bool:
    """Return whether the service is installed. Another program's unit of this name does not count."""
    return (unit_directory() / SERVICE).exists() and not foreign_unit()


def foreign_unit() -> Path | None:
    """Return an installed unit of the same name that belongs to another program; None if there is none."""
    for name in (SERVICE, SOCKET):
        path = unit_directory() / name
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            continue  # there is none, or it is a broken link
        if not any(mark in text for mark in _OUR_MARKS):
            return path
    return None


def is_available() -> bool:
    """Return whether the systemd user manager is running. Only tests for a file."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return bool(runtime) and os.path.exists(os.path.join(runtime, "systemd", "private"))


def unavailable_reason() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if not runtime:
        return "XDG_RUNTIME_DIR is not set, so the systemd user manager cannot be reached"
    return f"no systemd user manager is running (there is no {os.path.join(runtime, 'systemd', 'private')})"


def socket_path() -> str:
    """Return the socket of the unit, which is `%t/mcpd/mcpd.sock`."""
    return os.path.join(_runtime_directory(), "mcpd", "mcpd.sock")


def _runtime_directory() -> str:
    return os.environ.get("XDG_RUNTIME_DIR", "")


def manages_socket(socket: str) -> bool:
    return is_available() and is_installed() and os.path.abspath(socket) == socket_path()


def systemctl(*words: str) -> str:
    """Run `systemctl --user` and return its output. Raises CtlError with its message if it fails."""
    import subprocess

    try:
        done = subprocess.run(
            ["systemctl", "--user", "--no-pager", *words], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        raise CtlError("systemctl is not installed", hint="mcpctl daemon start works without it") from None
    except subprocess.TimeoutExpired:
        raise CtlError(f"systemctl --user {' '.join(words)} timed out") from None
    if done.returncode != 0:
        message = f"systemctl --user {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        raise CtlError(message, hint="systemctl --user status mcpd")
    return done.stdout


def service_properties() -> dict[str, str]:
    lines = systemctl("show", SERVICE, f"--property={_PROPERTIES}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def service_is_active() -> bool:
    """Return whether the service runs, or is about to."""
    return service_properties().get("ActiveState") in ("active", "activating", "reloading")


def service_environment() -> dict[str, str]:
    """Return the environment that the service gets when it starts: that of the service manager, and what the
    unit adds to it. Control characters in values are escaped.
    """
    import shlex

    lines = systemctl("show-environment").splitlines()
    shown = systemctl("show", SERVICE, "--property=Environment,EnvironmentFiles").splitlines()
    for key, _, value in (line.partition("=") for line in shown):
        if key == "Environment":
            with suppress(ValueError):
                lines += shlex.split(value)
        elif key == "EnvironmentFiles":  # PATH (ignore_errors=no)
            with suppress(OSError):
                lines += Path(value.rpartition(" (")[0]).read_text("utf-8", "replace").splitlines()
    pairs = (line.strip().partition("=") for line in lines if not line.strip().startswith(("#", ";")))
    return {name.strip(): _unquote(value.strip()) for name, equals, value in pairs if equals}


def _unquote(value: str) -> str:
    """Remove the quotation marks around a value in the environment of the service manager or in a file."""
    value = value.removeprefix("$") if value.startswith("$'") else value
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def stop_units() -> None:
    """Stop service and socket: with the socket active, the next client would start the service again."""
    systemctl("stop", SOCKET, SERVICE)


def socket_is_active() -> bool:
    """Return whether systemd listens on the socket, so that connecting would start the service."""
    try:
        return systemctl("is-active", SOCKET).strip() == "active"
    except CtlError:
        return False


def would_start_service(socket: str) -> bool:
    """Return whether connecting to this socket would start the service."""
    if not (manages_socket(socket) and socket_is_active()):
        return False
    try:
        return service_properties().get("ActiveState") != "active"
    except CtlError:
        return True


def remove_unused_socket() -> None:
    """Remove the socket that systemd leaves behind when it stops to listen, and its directory if that is
    empty then. Never raises."""
    import socket

    path = socket_path()
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
    with suppress(OSError):  # it has other files, or is in use by a background daemon
        os.rmdir(os.path.dirname(path))


def socket_is_lost() -> bool:
    """Return whether systemd listens on a socket whose path was removed, so that no client finds it.

    Systemd does not notice this. The socket unit has to be stopped, together with the service, and started.
    """
    return not os.path.exists(socket_path()) and socket_is_active()


def units_are_current(command: Sequence[str], search_path: str) -> bool:
    try:
        return all(
            (unit_directory() / name).read_bytes() == render_unit(name, command, search_path).encode()
            for name in (SERVICE, SOCKET)
        )
    except OSError:
        return False


def write_units(command: Sequence[str], search_path: str) -> list[Path]:
    """Write both unit files atomically and return their paths. Raises CtlError if one is not ours."""
    if other := foreign_unit():
        message = f"{other} belongs to another program named mcpd, so it was not changed"
        hint = "rename that unit, or run this mcpd without systemd: mcpctl daemon start"
        raise CtlError(message, hint=hint)
    target = unit_directory()
    target.mkdir(parents=True, exist_ok=True)
    written = [target / SERVICE, target / SOCKET]
    for path in written:
        write_atomically(path, render_unit(path.name, command, search_path).encode(), 0o644)
    return written


def is_outdated(command: Sequence[str]) -> bool:
    """Return whether the installed units are not those that start `command`, with any PATH."""
    for name in (SERVICE, SOCKET):
        try:
            found = (unit_directory() / name).read_text("utf-8", "replace")
        except OSError:
            return True
        if _without_path(found) != _without_path(render_unit(name, command, "/")):
            return True
    return False


def _without_path(unit: str) -> list[str]:
    return [line for line in unit.splitlines() if not line.startswith(_PATH_LINES)]


def render_unit(name: str, command: Sequence[str], search_path: str) -> str:
    """Return the text of a unit with the path of mcpd and the PATH for servers filled in."""
    text = _unit_template(name)
    if name == SERVICE:
        program = " ".join(quote_for_systemd(word) for word in command)
        text = _replace_line(text, "ExecStart=", f"ExecStart={program}")
        control = " ".join(quote_for_systemd(word) for word in _control_command(command))
        text = text.replace("ExecReload=/usr/bin/env mcpctl ", f"ExecReload={control} ")
        text = text.replace("# (install) the absolute path of mcpctl\n", "")
        text = _replace_line(
            text,
            "# (install) Environment=PATH=",
            "# The search path of the shell that installed the service: the service manager's own often\n"
            "# lacks ~/.local/bin, nvm and the like. `mcpctl daemon install` updates it.\n"
            f"Environment={quote_for_systemd('PATH=' + search_path, variables=False)}",
        )
        text = text.replace("# (install) the absolute path of mcpd\n", "")
    return text


def _control_command(command: Sequence[str]) -> list[str]:
    """Return the command that runs mcpctl: the one installed with the mcpd of `command`, or this one."""
    import sys

    beside = os.path.join(os.path.dirname(command[0]), "mcpctl")
    return [beside] if os.access(beside, os.X_OK) else [sys.executable, "-m", "ctl"]


def service_path(value: str) -> str:
    """Return PATH without duplicates and without relative and empty entries, which a service cannot use."""
    entries = dict.fromkeys(entry for entry in value.split(":") if os.path.isabs(entry))
    return ":".join(entry for entry in entries if entry.isprintable())


def quote_for_systemd(word: str, *, variables: bool = True) -> str:
    """Quote a word for a unit file. Doubles `%` and, in a command line, `$`."""
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
    here = Path(__file__).resolve().parent.parent
    for path in (here / "units" / name, here.parent / "systemd" / name):  # installed, or a checkout
        with suppress(FileNotFoundError):
            return path.read_text()
    raise CtlError(f"the unit file {name} is missing from this installation", hint="reinstall mcpd")


_CONFIGURATION_REFUSED = "2"
"""The exit status of a daemon whose command line or configuration is unusable."""
_FIRST_MANAGER_STATUS = 200
"""From here on, exit statuses are those of systemd itself, which could not prepare the process."""
_JOURNAL_TIMEOUT = 5.0


def has_refused_configuration(unit: Mapping[str, str]) -> bool:
    """Return whether the service is down because of its configuration, by its properties."""
    is_down = unit.get("ActiveState") not in ("active", "reloading")
    return is_down and unit.get("ExecMainStatus") == _CONFIGURATION_REFUSED


def could_not_run(unit: Mapping[str, str]) -> bool:
    """Return whether systemd could not run the daemon's program at all, so that no request has reached it."""
    status = int(unit.get("ExecMainStatus") or 0)
    return (
        unit.get("LoadState", "loaded") not in ("loaded", "not-found")
        or unit.get("Result") == "resources"
        or (unit.get("Result") == "exit-code" and status >= _FIRST_MANAGER_STATUS)
    )


def service_failure(unit: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why the service has failed, by its properties, and what to do; None if it has not failed."""
    if unit.get("LoadState", "loaded") not in ("loaded", "not-found"):
        if unit["LoadState"] == "masked":
            return "its unit is masked", "systemctl --user unmask mcpd.service, then: mcpctl daemon start"
        reason = unit.get("LoadError", "").partition(" ")[2].strip('"') or unit["LoadState"]
        return reason, "systemd-analyze --user verify mcpd.service   (names the setting), then correct it"
    result = unit.get("Result") or "success"
    if unit.get("ActiveState") != "failed" and result == "success":
        return None
    if has_refused_configuration(unit):
        return "it refused its configuration", "mcpctl edit, then: mcpctl daemon start"
    reason = f"{result}, exit status {unit.get('ExecMainStatus')}" if result == "exit-code" else result
    if line := _last_words(result):
        reason = f"{reason}: {line}"
    if could_not_run(unit):
        step = "systemctl --user cat mcpd   (correct the setting that it names)"
        return reason, f"{step}, then: mcpctl daemon restart"
    return reason, "mcpctl daemon logs, then: mcpctl daemon restart"


def _last_words(result: str) -> str:
    """Return the last line of the daemon, or of systemd about it, that says more than that it has ended."""
    for line in reversed(journal(30).splitlines()):
        text = line.removeprefix(f"{SERVICE}: ")
        if not text.startswith(_WITHOUT_CAUSE) and not (result == "exit-code" and text.startswith(_EXITED)):
            return text
    return ""


_WITHOUT_CAUSE = (
    *("Starting ", "Started ", "Stopping ", "Stopped ", "Failed to start ", "Failed to run ", "Failed with "),
    *("Scheduled restart", "Start request repeated", "Consumed ", "Killing process"),
)
"""How lines of systemd start that only follow from others."""
_EXITED = "Main process exited"


def journal(lines: int, form: str = "cat") -> str:
    """Return the end of the service's journal; empty if it cannot be read."""
    import subprocess

    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", SERVICE, "-n", str(lines), "-o", form]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_JOURNAL_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip()
