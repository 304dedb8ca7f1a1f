"""`mcpctl daemon`: install, start, stop and inspect mcpd, as a systemd user service or in the background."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click

from ctl.cli.errors import BadConfiguration, CtlError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import objects
from ctl.cli.output import paint
from ctl.cli.text import log_line
from ctl.daemon import process, systemd
from ctl.daemon.client import DaemonClient
from ctl.daemon.start_lock import start_lock
from ctl.daemon.systemd import SERVICE, SOCKET
from ctl.explain.daemon import report_daemon_status
from ctl.explain.next_steps import config_step
from mcpd import __version__
from mcpd.config.loader import default_path, load
from mcpd.model.errors import BadSpec
from mcpd.process.port_store import receiving_ports

_UPGRADE_TIMEOUT = 120.0
"""Seconds: the daemon waits half a minute for calls that cannot go over."""


@click.group(epilog="Examples:\n\n\b\n  mcpctl daemon install\n  mcpctl daemon status")
def daemon() -> None:
    """Install, start, stop and inspect the daemon.

    On systems with systemd, `install` sets up a user service. Elsewhere, `start` runs mcpd in the background.
    """


@daemon.command()
@click.pass_obj
def start(cli: CliContext) -> int:
    """Start the daemon and wait until it responds.

    Uses the systemd service if it is installed, otherwise runs the daemon in the background. Never restarts
    a daemon that is running.
    """
    with start_lock(cli.socket):
        if systemd.manages_socket(cli.socket):
            process.require_socket(cli.socket)
        _start(cli)
    return report_daemon_status(cli)


@daemon.command()
@click.pass_obj
def stop(cli: CliContext) -> int:
    """Stop the daemon and all servers.

    Succeeds if the daemon is not running. The next mcpctl command starts it again unless --no-start is given.
    """
    stopped = _stop(cli)
    cli.out.answer({"stopped": stopped}, "mcpd stopped" if stopped else "mcpd was not running")
    return 0


@daemon.command()
@click.pass_obj
def restart(cli: CliContext) -> int:
    """Stop the daemon if it is running, then start it.

    HTTP clients keep their sessions, and wait while no daemon runs. Validates the configuration first. If it
    has errors that the running daemon did not start with, exits with 2 and leaves the running daemon alone.
    """
    by_service = systemd.manages_socket(cli.socket)
    environ = systemd.service_environment() if by_service else dict(os.environ)
    config = _validate_before_restart(cli, environ)
    with start_lock(cli.socket):  # otherwise an editor could start the daemon in between, with its own PATH
        if by_service and _service_state() == "active":
            process.restart_service()
        else:
            with receiving_ports(cli.socket) as ports:
                _stop(cli)
                _start(cli, config, ports)
    return report_daemon_status(cli)


@daemon.command()
@click.pass_obj
def upgrade(cli: CliContext) -> int:
    """Replace the running daemon by the installed version, without an interruption.

    The process of the daemon, local servers, connections of clients and calls in progress stay. The installed
    version is tried out first: if it does not work, the running one goes on, and the error says why.
    """
    with DaemonClient(cli.socket) as client:
        result = client.call("mcpd/upgrade", timeout=_UPGRADE_TIMEOUT).value
    versions = f"mcpd {result['previous']} was replaced by {result['version']}"
    cli.out.answer(result, f"{versions}; clients waited {result['pause']} s")
    return 0


def _validate_before_restart(cli: CliContext, environ: Mapping[str, str]) -> str:
    """Raise BadConfiguration if a new daemon with the environment `environ` would find errors in the file
    that the running daemon did not start with.

    Returns the path of the file if the new daemon would not find it by itself; otherwise empty.
    """
    try:
        with DaemonClient(cli.socket) as client:
            config = client.call("mcpd/status", timeout=5.0).value["config"]
    except CtlError:  # not running, or stuck: there is nothing to protect
        return ""
    path = config["path"]
    try:
        other = path if path != str(default_path(environ)) else ""
    except BadSpec:  # there are several default files, and the running daemon uses one of them
        other = path
    try:
        load(Path(path) if other else None, environ)
    except BadSpec as error:
        problems = objects(error.data()["problems"])
        if config.get("rejected") is False and _places(problems) <= _places(config["problems"]):
            return other
        message = f"mcpd was not restarted: {path} is invalid"
        raise BadConfiguration(message, hint=config_step(problems), problems=problems) from None
    return other


def _places(problems: Iterable[Mapping[str, object]]) -> set[tuple[object, object]]:
    return {(problem.get("path"), problem.get("message")) for problem in problems}


@daemon.command()
@click.pass_obj
def status(cli: CliContext) -> int:
    """Show whether the daemon is running, what started it and where it logs.

    Never starts the daemon. Exits with 3 if it is not running, or does not respond.
    """
    return report_daemon_status(cli)


@daemon.command()
@click.option(
    "-n", "--lines", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Lines to show."
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.pass_obj
def logs(cli: CliContext, lines: int, follow: bool) -> int:
    """Show the log of the daemon itself.

    Reads the journal of the systemd service, or the log file of a background daemon. For the log of a server
    use `mcpctl logs SERVER`.
    """
    if systemd.manages_socket(cli.socket):
        return _show_journal(cli, lines, follow)
    path = process.log_path()
    if not os.path.exists(path):
        raise CtlError(f"log file not found: {path}", hint="a daemon started by hand logs to its terminal")
    shown = process.log_lines(path, lines, follow=follow)
    if cli.out.json and not follow:
        cli.out.json_value({"source": path, "lines": [*shown]})
        return 0
    for line in shown:
        if cli.out.json:
            cli.out.json_line({"line": line})
        else:
            cli.out.block(log_line(_format_record(line)))
        if follow:
            cli.out.flush()
    return 0


def _format_record(line: str) -> str:
    """Format a JSON log record for reading; return any other line unchanged."""
    try:
        record = json.loads(line)
        return f"{record['time']} {record['level']:7} {record['message']}"
    except (ValueError, KeyError, TypeError):
        return line


def _show_journal(cli: CliContext, lines: int, follow: bool) -> int:
    """Print the end of the service's journal. Returns journalctl's exit code."""
    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", SERVICE, "-n", str(lines)]
    # Under systemd, the daemon writes no timestamps, because the journal adds them.
    form = ("json" if follow else "cat") if cli.out.json else "short-iso"
    command += ["-o", form, "--no-hostname", *["-f"] * follow]
    cli.out.flush()
    try:
        if follow:
            return subprocess.run(command, check=False).returncode
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise CtlError("journalctl is not installed", hint="systemctl --user status mcpd") from None
    if cli.out.json:
        cli.out.json_value({"source": "journal", "lines": done.stdout.splitlines()})
    elif done.stdout:
        cli.out.block(done.stdout.rstrip("\n"))
    else:
        cli.out.message("no journal entries; is journald running? (systemctl --user status mcpd)")
    return done.returncode


@daemon.command(epilog="Examples:\n\n\b\n  mcpctl daemon install\n  mcpctl daemon install --dry-run")
@click.option("--dry-run", is_flag=True, help="Print the unit files without writing them.")
@click.pass_obj
def install(cli: CliContext, dry_run: bool) -> int:
    """Install the daemon as a systemd user service that starts at login.

    Writes and enables two systemd units and starts the service (not with --no-start). The service uses the
    PATH of this shell, because the service manager's own PATH often lacks ~/.local/bin, nvm and the like. No
    other environment variables are copied. Run it again after you change PATH or move mcpd; it restarts the
    service only if something has changed. Exits with 1 if no systemd user manager is running, so that the
    units were written but not enabled.
    """
    command = process.daemon_command()
    search_path = systemd.service_path(os.environ.get("PATH", os.defpath))
    if dry_run:
        _show_units(cli, command, search_path)
        return 0
    if not systemd.is_available():
        systemd.write_units(command, search_path)
        raise CtlError(
            f"the units were written, but not enabled or started: {systemd.unavailable_reason()}",
            hint="mcpctl daemon start   (works without systemd; or log in directly instead of with su or "
            "sudo, and repeat this command)",
        )
    keep = _is_up_to_date(cli, command, search_path)
    if not keep:
        systemd.write_units(command, search_path)
    systemd.systemctl("daemon-reload")
    systemd.systemctl("enable", SOCKET, SERVICE)
    if cli.may_start and not keep:
        _start_service(cli)
    units = [str(systemd.unit_directory() / name) for name in (SERVICE, SOCKET)]
    if cli.out.json:
        facts = {"units": units, "command": command, "path": search_path}
        cli.out.json_value({**facts, "enabled": True, "started": cli.may_start})
        return 0
    for path in units:
        cli.out.line("unchanged " if keep else "wrote ", path)
    cli.out.line("PATH of the service: ", search_path)
    cli.out.line("enabled mcpd.socket and mcpd.service")
    cli.out.message("to keep mcpd running after you log out: loginctl enable-linger")
    if keep:
        cli.out.message("the service already runs with these units, so it was not restarted")
    return report_daemon_status(cli) if cli.may_start else 0


def _is_up_to_date(cli: CliContext, command: Sequence[str], search_path: str) -> bool:
    """Return whether the service runs this version, with the units that would be written."""
    if not systemd.manages_socket(cli.socket) or _service_state() != "active":
        return False
    try:
        with DaemonClient(cli.socket) as client:
            running = client.call("mcpd/version", timeout=5.0).value["version"]
    except CtlError:  # stuck, so that only a restart helps
        return False
    return running == __version__ and systemd.units_are_current(command, search_path)


def _show_units(cli: CliContext, command: list[str], search_path: str) -> None:
    units = {
        str(systemd.unit_directory() / name): systemd.render_unit(name, command, search_path)
        for name in (SERVICE, SOCKET)
    }
    if cli.out.json:
        cli.out.json_value({"units": units})
        return
    for path, text in units.items():
        cli.out.line(paint(f"# {path}", "bold"))
        cli.out.block(text)


@daemon.command()
@click.pass_obj
def uninstall(cli: CliContext) -> int:
    """Stop the service and remove its units.

    Keeps configuration, logs and state, and drop-ins made with `systemctl --user edit`, which a later
    `mcpctl daemon install` uses again.
    """
    is_foreign = systemd.foreign_unit() is not None
    units = [systemd.unit_directory() / name for name in (SERVICE, SOCKET)]
    found = [path for path in units if path.exists() and not is_foreign]
    if found:
        _remove_units(found)
    if cli.out.json:
        cli.out.json_value({"removed": [str(path) for path in found]})
        return 0
    for path in found:
        cli.out.line("removed ", str(path))
    if not found:
        cli.out.line("the service was not installed")
    return 0


def _remove_units(units: Sequence[Path]) -> None:
    is_available = systemd.is_available()
    if is_available:
        systemd.systemctl("disable", "--now", SOCKET, SERVICE)
        systemd.remove_unused_socket()
    for path in units:
        path.unlink()
    for directory in (systemd.unit_directory(), systemd.unit_directory().parent):
        with suppress(OSError):  # it has other files
            directory.rmdir()
    if is_available:
        systemd.systemctl("daemon-reload")


def _service_state() -> str | None:
    return systemd.service_properties().get("ActiveState")


def _start(cli: CliContext, config: str = "", ports: int | None = None) -> None:
    if not systemd.manages_socket(cli.socket):
        process.start_in_background(cli.socket, config, ports)
    else:
        if _service_state() != "active":
            _stop_background(cli)
        process.start_units()


def _start_service(cli: CliContext) -> None:
    """Start the service, or restart it. A background daemon on the same socket is stopped first."""
    if not systemd.manages_socket(cli.socket):
        cli.out.message(f"note: the service uses {systemd.socket_path()}, but you chose {cli.socket}")
        process.start_units()
    elif _service_state() == "active":
        process.restart_service()
    else:
        with start_lock(cli.socket):
            _start(cli)


def _stop(cli: CliContext) -> bool:
    """Stop the service or the background daemon. Returns whether a daemon was running."""
    if systemd.manages_socket(cli.socket):
        active = _service_state() in ("active", "activating", "reloading")
        if active or systemd.socket_is_active():
            systemd.stop_units()
            return active
    return _stop_background(cli)


def _stop_background(cli: CliContext) -> bool:
    """Stop a background daemon. Returns whether one was running."""
    if systemd.manages_socket(cli.socket) and systemd.socket_is_active():
        return False  # systemd owns the socket; connecting to it would start the service
    return process.stop(cli.socket)
