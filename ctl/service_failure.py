"""Why the systemd service of mcpd is down, and the next command: systemctl reports only that a job failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ctl import systemd_units
from ctl.errors import CtlError

_CONFIGURATION_REFUSED = "2"
"""The exit status of a daemon whose command line or configuration is unusable."""
_MANAGER_STATUSES = {
    "200": "its WorkingDirectory cannot be entered",
    "203": "its program cannot be run",
    "208": "its StandardInput cannot be opened",
    "209": "its StandardOutput cannot be opened",
    "222": "its StandardError cannot be opened",
    "226": "its namespaces cannot be set up",
    "228": "its system call filter cannot be set up",
}
"""Exit statuses with which systemd itself ends a process that it could not prepare (systemd.exec(5))."""
_JOURNAL_TIMEOUT = 5.0


def has_refused_configuration(unit: Mapping[str, str]) -> bool:
    """Return whether the service is down because of its configuration, by its properties."""
    is_down = unit.get("ActiveState") not in ("active", "reloading")
    return is_down and unit.get("ExecMainStatus") == _CONFIGURATION_REFUSED


def could_not_run(unit: Mapping[str, str]) -> bool:
    """Return whether systemd could not run the daemon's program at all, so that no request has reached it."""
    if unit.get("LoadState", "loaded") not in ("loaded", "not-found"):
        return True
    result = unit.get("Result")
    return result == "resources" or (
        result == "exit-code" and unit.get("ExecMainStatus") in _MANAGER_STATUSES
    )


def service_failure(unit: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why the service has failed, by its properties, and what to do; None if it has not failed."""
    if unit.get("LoadState", "loaded") not in ("loaded", "not-found"):
        _, _, quoted = unit.get("LoadError", "").partition(" ")
        reason = quoted.strip('"') or f"systemd cannot load its unit ({unit['LoadState']})"
        if unit["LoadState"] == "masked":
            return "its unit is masked", "systemctl --user unmask mcpd.service, then: mcpctl daemon start"
        return reason, "systemd-analyze --user verify mcpd.service   (names the setting), then correct it"
    result = unit.get("Result") or "success"
    if unit.get("ActiveState") != "failed" and result == "success":
        return None
    if has_refused_configuration(unit):
        return "it refused its configuration", "mcpctl edit, then: mcpctl daemon start"
    if result == "resources" and (missing := _unreadable_environment_file()):
        return missing, "systemctl --user edit mcpd   (correct EnvironmentFile), then: mcpctl daemon start"
    status = unit.get("ExecMainStatus", "0")
    if result == "exit-code" and (cause := _MANAGER_STATUSES.get(status)):
        step = "systemctl --user cat mcpd   (correct that setting), then: mcpctl daemon install"
        return f"{cause} (exit status {status})", step
    reason = f"{result}, exit status {status}" if result == "exit-code" else result
    if line := _last_journal_line():
        reason = f"{reason}: {line}"
    return reason, "mcpctl daemon logs, then: mcpctl daemon restart"


def _unreadable_environment_file() -> str:
    """Return which EnvironmentFile the service manager cannot read, and why; empty if it can read all."""
    with suppress(CtlError):
        shown = systemd_units.systemctl("show", systemd_units.SERVICE, "--property=EnvironmentFiles")
        for line in shown.splitlines():  # EnvironmentFiles=PATH (ignore_errors=no)
            path, _, how = line.partition("=")[2].rpartition(" (")
            if how != "ignore_errors=no)" or any(char in path for char in "*?["):
                continue
            try:
                Path(path).read_bytes()
            except OSError as error:
                return f"its EnvironmentFile {path} cannot be read: {os.strerror(error.errno or 0)}"
    return ""


def _last_journal_line() -> str:
    """Return the last line that the service, or systemd about it, wrote to the journal; empty if unknown."""
    import subprocess

    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", systemd_units.SERVICE, "-n", "1"]
    try:
        done = subprocess.run(
            [*command, "-o", "cat"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JOURNAL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
