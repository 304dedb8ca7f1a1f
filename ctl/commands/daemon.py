"""`mcpctl daemon`: run mcpd as a service or in the background, and see how it is."""

from __future__ import annotations

import json
import os

import click

from ctl import autostart, background, service, systemd_units
from ctl.context import CliContext
from ctl.daemon_client import DaemonClient
from ctl.errors import CtlError, DaemonUnreachable
from ctl.output import paint


@click.group(epilog="Examples:\n\n\b\n  mcpctl daemon install\n  mcpctl daemon status")
def daemon() -> None:
    """Install, start, stop and inspect the daemon.

    With systemd, `install` makes it a service of your user; without, `start` runs it in the background.
    """


@daemon.command()
@click.pass_obj
def start(cli: CliContext) -> int:
    """Start the daemon, and wait until it answers.

    Through the service manager when the service is installed, else in the background.
    """
    if systemd_units.manages_socket(cli.socket):
        if systemd_units.service_properties().get("ActiveState") != "active":
            service.stop_background(cli)
        systemd_units.start()
    else:
        autostart.start_in_background(cli.socket)
    return _report(cli)


@daemon.command()
@click.pass_obj
def stop(cli: CliContext) -> int:
    """Stop the daemon and every server; nothing of them is left.

    Succeeds when nothing is running. The next command of mcpctl would start it again: see --no-start.
    """
    stopped = service.stop(cli)
    if cli.out.json:
        cli.out.json_value({"stopped": stopped})
    else:
        cli.out.line("mcpd is stopped" if stopped else "mcpd was not running")
    return 0


@daemon.command()
@click.pass_obj
def restart(cli: CliContext) -> int:
    """Stop the daemon if it runs, and start it."""
    if (
        systemd_units.manages_socket(cli.socket)
        and systemd_units.service_properties().get("ActiveState") == "active"
    ):
        systemd_units.systemctl("restart", systemd_units.SERVICE)
    else:
        service.stop(cli)
        if systemd_units.manages_socket(cli.socket):
            systemd_units.start()
        else:
            autostart.start_in_background(cli.socket)
    return _report(cli)


@daemon.command()
@click.pass_obj
def status(cli: CliContext) -> int:
    """Whether it runs, who started it, and where it writes.

    Never starts it. Exit 3 when it does not run.
    """
    return _report(cli)


@daemon.command()
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.pass_obj
def logs(cli: CliContext, lines: int, follow: bool) -> int:
    """What the daemon itself wrote.

    The journal of the service, or the log of the one in the background. A server's log is
    `mcpctl logs SERVER`.
    """
    if systemd_units.manages_socket(cli.socket):
        return service.journal(cli, lines, follow)
    path = autostart.log_path()
    if not os.path.exists(path):
        raise CtlError(
            f"there is no log at {path}", hint="a daemon started by hand writes to its own terminal"
        )
    shown = background.log_lines(path, lines, follow=follow)
    if cli.out.json and not follow:
        cli.out.json_value({"source": path, "lines": [*shown]})
        return 0
    for line in shown:
        if cli.out.json:
            cli.out.json_line({"line": line})
        else:
            cli.out.block(_format_record(line))
        if follow:
            cli.out.flush()
    return 0


def _format_record(line: str) -> str:
    """A record of the log as a person reads it; anything else as it is."""
    try:
        record = json.loads(line)
        return f"{record['time']} {record['level']:7} {record['message']}"
    except (ValueError, KeyError, TypeError):
        return line


@daemon.command(epilog="Examples:\n\n\b\n  mcpctl daemon install\n  mcpctl daemon install --dry-run")
@click.option("--dry-run", is_flag=True, help="Show the units and write nothing.")
@click.pass_obj
def install(cli: CliContext, dry_run: bool) -> int:
    """Make the daemon a service, now and at every login.

    Writes two systemd units and enables them (--no-start: without starting it now). The PATH of this shell
    goes into the service, because the service manager's own often lacks ~/.local/bin, nvm and the like;
    nothing else of the environment does. Run it again after PATH or the place of mcpd has changed.
    """
    if dry_run:
        service.show_units(cli)
        return 0
    return _report(cli) if service.install(cli) else 0


@daemon.command()
@click.pass_obj
def uninstall(cli: CliContext) -> int:
    """Stop the service and remove its units.

    Configuration, logs and state stay, as do drop-ins made with `systemctl --user edit`.
    """
    service.uninstall(cli)
    return 0


# ---- how it is -----------------------------------------------------------------------------------


def _report(cli: CliContext) -> int:
    facts = _daemon_status(cli)
    if cli.out.json:
        cli.out.json_value(facts)
    else:
        _print_status(cli, facts)
    return 0 if facts["running"] else DaemonUnreachable.exit


def _daemon_status(cli: CliContext) -> dict[str, object]:
    """How the daemon is. Takes care not to connect where connecting would start it."""
    socket = cli.socket
    unit = systemd_units.service_properties() if systemd_units.manages_socket(socket) else None
    by_manager = unit is not None and unit.get("ActiveState") in ("active", "reloading", "deactivating")
    facts: dict[str, object] = {
        "running": False,
        "pid": None,
        "version": None,
        "socket": socket,
        "started_by": None,
        "log": "journalctl --user -u mcpd" if unit is not None else autostart.log_path(),
        "installed": systemd_units.is_installed(),
        "unit": None if unit is None else _unit_status(unit),
    }
    if unit is not None and not by_manager and service.socket_is_active():
        return facts
    try:
        with DaemonClient(socket) as client:
            answer = client.call("mcpd/version", timeout=5.0).value
    except DaemonUnreachable:
        return facts
    started_by = "systemd" if by_manager else "background"
    return {
        **facts,
        "running": True,
        "started_by": started_by,
        "pid": answer.get("pid"),
        "version": answer.get("version"),
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


def _print_status(cli: CliContext, facts: dict[str, object]) -> None:
    out, unit = cli.out, facts["unit"]
    if facts["running"]:
        out.line(paint("● ", "green"), f"mcpd {facts['version']} is running (pid {facts['pid']})")
    else:
        out.line(paint("○ ", "dim"), "mcpd is not running")
    out.line("  socket   ", str(facts["socket"]))
    if isinstance(unit, dict):
        enabled = "starts at login" if unit["enabled"] else "not enabled"
        out.line(
            "  service  ", f"{unit['state']} ({unit['sub_state']}), {enabled}, {unit['restarts']} restarts"
        )
        if unit["status"] and facts["running"]:
            out.line("  says     ", str(unit["status"]))
        if unit["result"] not in ("", "success"):
            out.line("  result   ", paint(str(unit["result"]), "red"))
    elif facts["running"]:
        out.line("  service  ", "none: it runs in the background (mcpctl daemon install makes one)")
    out.line("  log      ", str(facts["log"]))
    if not facts["running"]:
        out.message("next: mcpctl daemon start")
