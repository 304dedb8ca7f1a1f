"""The daemon: whether it runs and responds, why not, and what to do: `mcpctl daemon status`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ctl.cli.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint
from ctl.cli.text import count
from ctl.daemon import process, systemd
from ctl.daemon.client import DaemonClient, Json
from ctl.show.status import config_problem_lines, config_warning_lines
from mcpd.process.instance_lock import find_lock_holder

if TYPE_CHECKING:
    from ctl.api_types import ConfigView, DaemonStatus, VersionInfo

_ANSWER_TIMEOUT = 5.0
"""Seconds after which the daemon counts as one that does not respond."""
RESTART, UPGRADE = "mcpctl daemon restart", "mcpctl daemon upgrade"


class DaemonFacts:
    """What is known about the daemon of a socket, found without starting it by socket activation."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.version: VersionInfo | None = None
        """None if it does not respond."""
        self.status: DaemonStatus | None = None
        self.config: ConfigView | None = None
        self.answers: dict[str, Json] = {}
        """All answers, by file name in the support bundle."""
        self.error: CtlError | None = None
        """Why it does not respond; None also if systemd would start it on demand."""
        self.unit: dict[str, str] | None = None
        """The properties of the service that systemd starts for this socket; None if there is none."""
        if systemd.manages_socket(socket):
            self.unit = {}
            with suppress(CtlError):  # systemctl does not answer
                self.unit = systemd.service_properties()
        state = (self.unit or {}).get("ActiveState", "")
        self.is_service = state in ("active", "reloading", "deactivating")
        if self.unit is None or self.is_service or not systemd.socket_is_active():
            self._ask()

    def _ask(self) -> None:
        try:
            with DaemonClient(self.socket) as client:
                self.version = client.call("mcpd/version", timeout=_ANSWER_TIMEOUT).value
                self.answers["version"] = self.version
                with suppress(DaemonError):  # an older daemon; its version shows it
                    self.status = client.call("mcpd/status", timeout=_ANSWER_TIMEOUT).value
                    self.config = client.call("mcpd/config", timeout=_ANSWER_TIMEOUT).value
                    self.answers |= {"status": self.status, "config": self.config}
        except CtlError as error:
            self.error = error

    @property
    def pid(self) -> int | None:
        """The process, also of one that does not respond."""
        if self.version is not None:
            return self.version["pid"]
        if self.error is None:
            return None
        main = int(self.unit.get("MainPID", "0")) if self.unit is not None else 0
        return find_lock_holder(self.socket) or main or None  # the lock may be removed, too

    def failure(self) -> tuple[str | None, str]:
        """Return why it does not run, if that is known, and the next step."""
        if self.pid is not None:
            return None, RESTART
        return (self.unit and systemd.service_failure(self.unit)) or (None, "mcpctl daemon start")


def report_daemon_status(cli: CliContext) -> int:
    """Print the report. Returns 0 if the daemon responds, otherwise the exit code of DaemonUnreachable."""
    facts = DaemonFacts(cli.socket)
    reason, step = (None, None) if facts.version else facts.failure()
    if cli.out.json:
        cli.out.json_value(_as_json(facts, reason, step))
    else:
        cli.out.lines(_status_lines(facts, reason))
        if facts.status is not None:
            config = facts.status["config"]
            cli.out.lines(config_problem_lines(config, facts.status["servers"]))
            cli.out.lines(config_warning_lines(config))
        if step:
            cli.out.next_step(step)
    return 0 if facts.version else DaemonUnreachable.exit


def _as_json(facts: DaemonFacts, reason: str | None, step: str | None) -> dict[str, object]:
    running, unit = facts.pid is not None, facts.unit
    config = facts.status["config"] if facts.status is not None else None
    return {
        "running": running,
        "responds": facts.version is not None,
        "pid": facts.pid,
        "version": facts.version["version"] if facts.version else None,
        "socket": facts.socket,
        "started_by": ("systemd" if facts.is_service else "background") if running else None,
        "log": _log(facts),
        "installed": systemd.is_installed(),
        "unit": unit
        and {
            "state": unit.get("ActiveState", ""),
            "sub_state": unit.get("SubState", ""),
            "restarts": int(unit.get("NRestarts", "0") or 0),
            "result": unit.get("Result", ""),
            "enabled": unit.get("UnitFileState", "") == "enabled",
        },
        "reason": reason,
        "problems": config.get("problems", []) if config else [],
        "warnings": config.get("warnings", []) if config else [],
        "next": step,
    }


def _log(facts: DaemonFacts) -> str:
    if facts.unit is not None:
        return "journalctl --user -u mcpd"
    with suppress(OSError):  # it does not run, or something else has started it
        target = os.readlink(f"/proc/{facts.pid}/fd/2")
        if target != process.log_path():
            return target if os.path.isfile(target) else "its stderr, which what started mcpd reads"
    return process.log_path()


def _status_lines(facts: DaemonFacts, reason: str | None) -> list[Line]:
    unit = facts.unit
    head: Line = [paint("○ ", "dim"), "mcpd is not running"]
    if facts.version is not None:
        about = f"mcpd {facts.version['version']} is running (pid {facts.pid})"
        head = [paint("● ", "green"), about]
    elif facts.pid is not None:
        is_there = os.path.lexists(facts.socket)
        why = "does not respond" if is_there else "cannot be reached: its socket was removed"
        head = [paint("● ", "red"), f"mcpd is running (pid {facts.pid}), but {why}"]
    rows: list[tuple[str, str | Line]] = [("socket", facts.socket)]
    if unit is not None:
        enabled = "starts at login" if unit.get("UnitFileState") == "enabled" else "not enabled"
        restarts = count(int(unit.get("NRestarts", "0") or 0), "restart")
        rows.append(("service", f"{unit.get('ActiveState')} ({unit.get('SubState')}), {enabled}, {restarts}"))
        if reason:
            rows.append(("failure", [paint(reason, "red")]))
    elif facts.pid is not None:
        rows.append(("service", "none; running in the background (mcpctl daemon install creates a service)"))
    return [head, *labelled_lines([*rows, ("log", _log(facts))])]
