"""`mcpctl daemon`: install, start, stop and inspect mcpd, as a systemd user service or in the background."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from ctl.cli.arguments import utc_option
from ctl.cli.errors import BadConfiguration, CtlError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects
from ctl.cli.output import paint
from ctl.cli.text import log_line, timestamp
from ctl.daemon import process, systemd
from ctl.daemon.client import DaemonClient
from ctl.daemon.start_lock import start_lock
from ctl.daemon.systemd import SERVICE, SOCKET
from ctl.explain.daemon import report_daemon_status
from ctl.explain.next_steps import config_step
from mcpd import __version__
from mcpd.config.loader import default_path, load
from mcpd.model.errors import BadSpec


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

    Validates the configuration first. If it has errors that the running daemon did not start with, exits with
    2 and leaves the running daemon alone.
    """
    by_service = systemd.manages_socket(cli.socket)
    environ = systemd.service_environment() if by_service else dict(os.environ)
    config = _validate_before_restart(cli, environ)
    with start_lock(cli.socket):  # otherwise an editor could start the daemon in between, with its own PATH
        if by_service and _service_state() == "active":
            process.restart_service()
        else:
            _stop(cli)
            _start(cli, config)
    return report_daemon_status(cli)


def _validate_before_restart(cli: CliContext, environ: Mapping[str, str]) -> str:
    """Raise BadConfiguration if a new daemon with the environment `environ` would find errors in the file.

    The running daemon may have found errors that the new one will not: a variable may be set by now. Returns
    the path of the file if the new daemon would not find it by itself; empty if it does, or if no daemon is
    running.
    """
    try:
        with DaemonClient(cli.socket) as client:
            config = mapping(client.request("mcpd/status", timeout=5.0).value.get("config"))
    except CtlError:  # not running, or stuck: there is nothing to protect
        return ""
    path = str(config.get("path") or "")
    try:
        usual = str(default_path(environ))
    except BadSpec:  # There are several default files. The running daemon may have been started with one.
        usual = path if config.get("problems") else ""
    other = path if path != usual else ""
    try:
        load(Path(other) if other else None, environ)
    except BadSpec as error:
        problems = objects(error.data()["problems"])
        if config.get("rejected") is False and _places(problems) <= _places(objects(config.get("problems"))):
            return other  # it would run with no other errors than the running one does
        message = f"mcpd was not restarted: {path or 'the configuration'} is invalid"
        raise BadConfiguration(message, hint=config_step(problems, path), problems=problems) from None
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
@utc_option
@click.pass_obj
def logs(cli: CliContext, lines: int, follow: bool, utc: bool) -> int:
    """Show the log of the daemon itself.

    Reads the journal of the systemd service, or the log file of a background daemon. For the log of a server
    use `mcpctl logs SERVER`.
    """
    path = process.log_path()
    if systemd.manages_socket(cli.socket):
        path = systemd.log_file(systemd.service_properties())
        if not path:
            return _show_journal(cli, lines, follow, utc=utc)
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
            cli.out.block(log_line(_format_record(line), utc=utc))
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


def _show_journal(cli: CliContext, lines: int, follow: bool, *, utc: bool) -> int:
    """Print the end of the service's journal. Returns journalctl's exit code."""
    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", SERVICE, "-n", str(lines)]
    # Under systemd, the daemon writes no timestamps, because the journal adds them.
    form = ("json" if follow else "cat") if cli.out.json else "short-iso"
    command += ["-o", form, "--no-hostname", *["-f"] * follow, *["--utc"] * utc]
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
    enabled = systemd.is_available()
    keep = enabled and _is_up_to_date(cli, command, search_path)
    units = [systemd.unit_directory() / name for name in (SERVICE, SOCKET)]
    if not keep:
        systemd.write_units(command, search_path)
    if enabled:
        systemd.systemctl("daemon-reload")
        systemd.systemctl("enable", SOCKET, SERVICE)
        if cli.may_start and not keep:
            _start_service(cli)
    started = enabled and cli.may_start
    if cli.out.json:
        facts = {"units": [str(path) for path in units], "command": command, "path": search_path}
        failed = {} if enabled else {"error": _no_user_manager().to_json()}
        cli.out.json_value({**facts, "enabled": enabled, "started": started, **failed})
        return 0 if enabled else CtlError.exit
    for path in units:
        cli.out.line("unchanged " if keep else "wrote ", str(path))
    cli.out.line("PATH of the service: ", search_path)
    for path in systemd.drop_in_directories():
        cli.out.message(paint("note: ", "dim"), f"your own settings in {path} apply too")
    if not enabled:
        raise _no_user_manager()
    cli.out.line("enabled mcpd.socket and mcpd.service")
    cli.out.message("to keep mcpd running after you log out: loginctl enable-linger")
    if keep:
        cli.out.message("the service already runs with these units, so it was not restarted")
    return report_daemon_status(cli) if started else 0


def _is_up_to_date(cli: CliContext, command: Sequence[str], search_path: str) -> bool:
    """Return whether the service runs, from this installation, with the units that would be written."""
    from ctl.explain.checks import OK, check_installation

    if not systemd.manages_socket(cli.socket) or _service_state() != "active":
        return False
    try:
        with DaemonClient(cli.socket) as client:
            version = client.call("mcpd/version", timeout=5.0).value
    except CtlError:  # stuck, so that only a restart helps
        return False
    started_at = timestamp(version["started_at"])
    if started_at is None or version["version"] != __version__:
        return False
    is_new = all(finding.result == OK for finding in check_installation(started_at))
    return is_new and systemd.units_are_current(command, search_path, started_at)


def _no_user_manager() -> CtlError:
    """Return why the units that were written are not enabled."""
    why = systemd.unavailable_reason()
    return CtlError(
        f"the units were written, but not enabled or started: {why}",
        hint="mcpctl daemon start   (works without systemd; or log in directly instead of with su or sudo, "
        "and repeat this command)",
    )


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
    `mcpctl daemon install` uses again. Prints their directories.
    """
    units = [systemd.unit_directory() / name for name in (SERVICE, SOCKET)]
    found = [path for path in units if path.exists() and not systemd.foreign_unit()]
    if found and systemd.is_available():
        systemd.systemctl("disable", "--now", SOCKET, SERVICE)
        systemd.remove_unused_socket()
    for path in found:
        path.unlink()
    if found and systemd.is_available():
        systemd.systemctl("daemon-reload")
    kept = [] if systemd.foreign_unit() else systemd.drop_in_directories()
    if cli.out.json:
        cli.out.json_value({"removed": [str(path) for path in found], "kept": [str(path) for path in kept]})
        return 0
    for path in found:
        cli.out.line("removed ", str(path))
    if not found:
        cli.out.line("the service was not installed")
    for path in kept:
        remark = "your own settings, which `mcpctl daemon install` would use again"
        cli.out.message(paint("note: ", "dim"), f"kept {path}   ({remark})")
    if kept:
        cli.out.next_step(shlex.join(["rm", "-r", *map(str, kept)]))
    return 0


def _service_state() -> str | None:
    return systemd.service_properties().get("ActiveState")


def _start(cli: CliContext, config: str = "") -> None:
    if not systemd.manages_socket(cli.socket):
        process.start_in_background(cli.socket, config)
    else:
        if _service_state() != "active":
            _stop_background(cli)
        process.start_units()


def _start_service(cli: CliContext) -> None:
    """Start the service. A background daemon on the same socket is stopped first."""
    if not systemd.manages_socket(cli.socket):
        cli.out.message(f"note: the service uses {systemd.socket_path()}, but you chose {cli.socket}")
        process.start_units()
    elif _service_state() == "active":
        process.restart_service()
    else:
        with start_lock(cli.socket):
            _stop_background(cli)
            process.start_units()


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
