"""The report of `mcpctl daemon status`: whether the daemon runs and responds, and what to do otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from ctl.cli.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint
from ctl.daemon import process, systemd
from ctl.daemon.client import DaemonClient
from ctl.daemon.systemd import service_failure
from ctl.show.status import config_problem_lines, config_warning_lines
from mcpd.support.instance_lock import find_lock_holder

ANSWER_TIMEOUT = 5.0
"""Seconds after which the daemon counts as one that does not respond."""


def report_daemon_status(cli: CliContext) -> int:
    """Print the report. Returns 0 if the daemon responds, otherwise the exit code of DaemonUnreachable."""
    facts = _daemon_status(cli)
    lines = facts.pop("lines", [])
    if cli.out.json:
        cli.out.json_value(facts)
    else:
        _print_status(cli, facts)
        cli.out.lines(cast("list[Line]", lines))
    return 0 if facts["responds"] else DaemonUnreachable.exit


def _daemon_status(cli: CliContext) -> dict[str, object]:
    """Collect the daemon's status without starting it by socket activation."""
    socket = cli.socket
    unit = systemd.service_properties() if systemd.manages_socket(socket) else None
    by_manager = unit is not None and unit.get("ActiveState") in ("active", "reloading", "deactivating")
    journal = "journalctl --user -u mcpd"
    facts: dict[str, object] = {
        "running": False,
        "responds": False,
        "pid": None,
        "version": None,
        "socket": socket,
        "started_by": None,
        "log": process.log_path() if unit is None else systemd.log_file(unit) or journal,
        "installed": systemd.is_installed(),
        "unit": None if unit is None else _unit_status(unit),
        "reason": None,
        "problems": [],
        "warnings": [],
        "next": None,
    }
    starter = {"running": True, "started_by": "systemd" if by_manager else "background"}
    if unit is None or by_manager or not systemd.socket_is_active():  # connecting would start it
        try:
            with DaemonClient(socket) as client:
                answer = client.call("mcpd/version", timeout=ANSWER_TIMEOUT).value
                facts |= _configuration_status(client)
            return {
                **facts,
                **starter,
                "responds": True,
                "pid": answer.get("pid"),
                "version": answer.get("version"),
            }
        except CtlError:
            main = int(unit.get("MainPID", "0")) if unit is not None else 0  # the lock may be removed, too
            if pid := find_lock_holder(socket) or main:
                return {**facts, **starter, "pid": pid, "next": "mcpctl daemon restart"}
    failure = service_failure(unit) if unit is not None else None
    if failure is None:
        return {**facts, "next": "mcpctl daemon start"}
    reason, step = failure
    return {**facts, "reason": reason, "next": step}


def _configuration_status(client: DaemonClient) -> dict[str, object]:
    """Return the errors and warnings that the daemon has about its configuration, and the lines to print."""
    try:
        answer = client.call("mcpd/status", timeout=ANSWER_TIMEOUT).value
    except DaemonError:  # an older daemon
        return {}
    config = answer["config"]
    lines = config_problem_lines(config, answer.get("servers", []))
    lines += config_warning_lines(config)
    return {
        "problems": config.get("problems", []),
        "warnings": config.get("warnings", []),
        "lines": lines,
    }


def _unit_status(unit: dict[str, str]) -> dict[str, object]:
    return {
        "state": unit.get("ActiveState", ""),
        "sub_state": unit.get("SubState", ""),
        "status": unit.get("StatusText", ""),
        "restarts": int(unit.get("NRestarts", "0") or 0),
        "result": unit.get("Result", ""),
        "enabled": unit.get("UnitFileState", "") == "enabled",
    }


def _print_status(cli: CliContext, facts: Mapping[str, object]) -> None:
    out, unit = cli.out, facts["unit"]
    if facts["responds"]:
        out.line(paint("● ", "green"), f"mcpd {facts['version']} is running (pid {facts['pid']})")
    elif facts["running"]:
        is_there = os.path.lexists(str(facts["socket"]))
        why = "does not respond" if is_there else "cannot be reached: its socket was removed"
        out.line(paint("● ", "red"), f"mcpd is running (pid {facts['pid']}), but {why}")
    else:
        out.line(paint("○ ", "dim"), "mcpd is not running")
    out.line("  socket   ", str(facts["socket"]))
    if isinstance(unit, dict):
        enabled = "starts at login" if unit["enabled"] else "not enabled"
        restarts = "1 restart" if unit["restarts"] == 1 else f"{unit['restarts']} restarts"
        out.line("  service  ", f"{unit['state']} ({unit['sub_state']}), {enabled}, {restarts}")
        if unit["status"] and facts["running"]:
            out.line("  status   ", str(unit["status"]))
        if facts["reason"]:
            out.line("  failure  ", paint(str(facts["reason"]), "red"))
    elif facts["running"]:
        out.line("  service  ", "none; running in the background (mcpctl daemon install creates a service)")
    out.line("  log      ", str(facts["log"]))
    if facts["next"]:
        out.next_step(str(facts["next"]))
