"""`mcpctl daemon`: run mcpd as a service or in the background, and see how it is."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import click

from ctl import autostart, userunit
from ctl.client import LocalClient
from ctl.errors import CtlError, DaemonUnreachable
from ctl.render import paint
from ctl.session import Session

STOP_WITHIN = 15.0
"""Seconds. The daemon gives its servers at most ten."""
_FOLLOW = 0.25


@click.group(epilog="Examples:\n\n\b\n  mcpctl daemon install\n  mcpctl daemon status")
def daemon() -> None:
    """Install, start, stop and inspect the daemon.

    With systemd, `install` makes it a service of your user; without, `start` runs it in the background.
    """


@daemon.command()
@click.pass_obj
def start(session: Session) -> int:
    """Start the daemon, and wait until it answers.

    Through the service manager when the service is installed, else in the background.
    """
    if userunit.serves(session.socket):
        if userunit.properties().get("ActiveState") != "active":
            _stop_background(session)
        userunit.start()
    else:
        autostart.start_in_background(session.socket)
    return _report(session)


@daemon.command()
@click.pass_obj
def stop(session: Session) -> int:
    """Stop the daemon and every server; nothing of them is left.

    Succeeds when nothing is running. The next command of mcpctl would start it again: see --no-start.
    """
    stopped = _stop(session)
    if session.out.json:
        session.out.value({"stopped": stopped})
    else:
        session.out.line("mcpd is stopped" if stopped else "mcpd was not running")
    return 0


@daemon.command()
@click.pass_obj
def restart(session: Session) -> int:
    """Stop the daemon if it runs, and start it."""
    if userunit.serves(session.socket) and userunit.properties().get("ActiveState") == "active":
        userunit.systemctl("restart", userunit.SERVICE)
    else:
        _stop(session)
        if userunit.serves(session.socket):
            userunit.start()
        else:
            autostart.start_in_background(session.socket)
    return _report(session)


@daemon.command()
@click.pass_obj
def status(session: Session) -> int:
    """Whether the daemon runs, by whom it was started, and where it writes.

    Never starts it. Exit 3 when it does not run.
    """
    return _report(session)


@daemon.command()
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.pass_obj
def logs(session: Session, lines: int, follow: bool) -> int:
    """What the daemon itself wrote: the journal of the service, or the log of the one in the background.

    A server's log is `mcpctl logs SERVER`.
    """
    if userunit.serves(session.socket):
        return _journal(session, lines, follow)
    path = autostart.log_path()
    if not os.path.exists(path):
        raise CtlError(
            f"there is no log at {path}", hint="a daemon started by hand writes to its own terminal"
        )
    if session.out.json and not follow:
        session.out.value({"source": path, "lines": autostart.last_lines(path, lines)})
        return 0
    for line in autostart.last_lines(path, lines):
        _log_line(session, line)
    if follow:
        session.out.flush()
        for line in _appended(path):
            _log_line(session, line)
            session.out.flush()
    return 0


@daemon.command(epilog="Examples:\n\n\b\n  mcpctl daemon install\n  mcpctl daemon install --dry-run")
@click.option("--dry-run", is_flag=True, help="Show the units and write nothing.")
@click.pass_obj
def install(session: Session, dry_run: bool) -> int:
    """Make the daemon a service of your user, start it now and at every login.

    Writes two systemd units and enables them (--no-start: without starting it now). The PATH of this shell
    goes into the service, because the service manager's own often lacks ~/.local/bin, nvm and the like;
    nothing else of the environment does. Run it again after PATH or the place of mcpd has changed.
    """
    command = autostart.daemon_command()
    search_path = userunit.usable_path(os.environ.get("PATH", os.defpath))
    if dry_run:
        return _show_units(session, command, search_path)
    written = userunit.write(command, search_path)
    manager = userunit.reachable()
    if manager:
        userunit.systemctl("daemon-reload")
        userunit.systemctl("enable", userunit.SOCKET, userunit.SERVICE)
        if session.may_start:
            _start_installed(session)
    started = manager and session.may_start
    if session.out.json:
        session.out.value(
            {
                "units": [str(path) for path in written],
                "command": command,
                "path": search_path,
                "enabled": manager,
                "started": started,
            }
        )
        return 0
    for path in written:
        session.out.line("wrote ", str(path))
    session.out.line("servers will be looked for in this shell's PATH: ", search_path)
    if not manager:
        session.out.talk(
            "no service manager of yours is reachable here, so nothing was enabled; after logging in: "
            "systemctl --user daemon-reload && systemctl --user enable --now mcpd.socket mcpd.service"
        )
    else:
        session.out.line("enabled mcpd.socket and mcpd.service")
        session.out.talk("to keep it running after you log out: loginctl enable-linger")
    if session.out.json or not started:
        return 0
    return _report(session)


@daemon.command()
@click.pass_obj
def uninstall(session: Session) -> int:
    """Stop the service and remove its units.

    Configuration, logs and state stay, as do drop-ins made with `systemctl --user edit`.
    """
    found = [
        path for name in (userunit.SERVICE, userunit.SOCKET) if (path := userunit.directory() / name).exists()
    ]
    if found and userunit.reachable():
        userunit.systemctl("disable", "--now", userunit.SOCKET, userunit.SERVICE)
    for path in found:
        path.unlink()
    if found and userunit.reachable():
        userunit.systemctl("daemon-reload")
    if session.out.json:
        session.out.value({"removed": [str(path) for path in found]})
        return 0
    for path in found:
        session.out.line("removed ", str(path))
    if not found:
        session.out.line("the service was not installed")
    return 0


# ---- how it is -----------------------------------------------------------------------------------


def _report(session: Session) -> int:
    facts = _facts(session)
    if session.out.json:
        session.out.value(facts)
    else:
        _describe(session, facts)
    return 0 if facts["running"] else DaemonUnreachable.exit


def _facts(session: Session) -> dict[str, object]:
    """How the daemon is. Takes care not to connect where connecting would start it."""
    socket = session.socket
    unit = userunit.properties() if userunit.serves(socket) else None
    by_manager = unit is not None and unit.get("ActiveState") in ("active", "reloading", "deactivating")
    facts: dict[str, object] = {
        "running": False,
        "pid": None,
        "version": None,
        "socket": socket,
        "started_by": None,
        "log": "journalctl --user -u mcpd" if unit is not None else autostart.log_path(),
        "installed": userunit.installed(),
        "unit": None if unit is None else _unit_facts(unit),
    }
    if unit is not None and not by_manager and _socket_unit_listens():
        return facts
    try:
        with LocalClient(socket) as client:
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


def _unit_facts(unit: dict[str, str]) -> dict[str, object]:
    return {
        "state": unit.get("ActiveState", ""),
        "sub_state": unit.get("SubState", ""),
        "status": unit.get("StatusText", ""),
        "restarts": int(unit.get("NRestarts", "0") or 0),
        "result": unit.get("Result", ""),
        "enabled": unit.get("UnitFileState", "") == "enabled",
    }


def _describe(session: Session, facts: dict[str, object]) -> None:
    out, unit = session.out, facts["unit"]
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
        out.talk("next: mcpctl daemon start")


def _socket_unit_listens() -> bool:
    try:
        return userunit.systemctl("is-active", userunit.SOCKET).strip() == "active"
    except CtlError:
        return False


# ---- start and stop ------------------------------------------------------------------------------


def _start_installed(session: Session) -> None:
    """Start the service; a daemon in the background would be in its way, and is stopped first."""
    if not userunit.serves(session.socket):
        session.out.talk(
            f"note: the service listens on {userunit.socket_path()}, and you chose {session.socket}"
        )
    elif userunit.properties().get("ActiveState") == "active":
        userunit.systemctl("restart", userunit.SERVICE)
        return
    else:
        _stop_background(session)
    userunit.start()


def _stop(session: Session) -> bool:
    if userunit.serves(session.socket):
        active = userunit.properties().get("ActiveState") in ("active", "activating", "reloading")
        if active or _socket_unit_listens():
            userunit.stop()
            return active
    return _stop_background(session)


def _stop_background(session: Session) -> bool:
    """Ask the daemon on the socket to end, and wait until its process has. False when there is none."""
    if userunit.serves(session.socket) and _socket_unit_listens():
        return False  # whoever answers there is the service; asking would start it
    try:
        with LocalClient(session.socket) as client:
            pid = client.call("mcpd/version", timeout=5.0).value.get("pid")
            handle = os.pidfd_open(pid) if isinstance(pid, int) else -1
            try:
                _shut_down(client)
                if handle >= 0 and not select.select([handle], [], [], STOP_WITHIN)[0]:
                    raise CtlError(
                        f"mcpd (pid {pid}) did not stop within {STOP_WITHIN:.0f} s",
                        hint=f"kill -9 {pid} ends it, and its servers end with it",
                    )
            finally:
                if handle >= 0:
                    os.close(handle)
    except DaemonUnreachable:
        return False
    return True


def _shut_down(client: LocalClient) -> None:
    try:
        client.call("mcpd/shutdown", timeout=5.0)
    except DaemonUnreachable:
        return  # it closed the connection before it answered: on its way out


# ---- logs and units ------------------------------------------------------------------------------


def _journal(session: Session, lines: int, follow: bool) -> int:
    import subprocess

    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", userunit.SERVICE, "-n", str(lines)]
    command += ["-o", "json" if session.out.json and follow else "cat"] + ["-f"] * follow
    session.out.flush()
    try:
        if follow:
            return subprocess.run(command, check=False).returncode
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise CtlError("journalctl is not installed", hint="systemctl --user status mcpd") from None
    if session.out.json:
        session.out.value({"source": "journal", "lines": done.stdout.splitlines()})
    elif done.stdout:
        session.out.block(done.stdout.rstrip("\n"))
    else:
        session.out.talk("the journal has nothing of it; is journald running? (systemctl --user status mcpd)")
    return done.returncode


def _log_line(session: Session, line: str) -> None:
    if session.out.json:
        session.out.stream_value({"line": line})
    else:
        session.out.block(line)


def _appended(path: str) -> Iterator[str]:
    """Lines as they are written, across a change of the file."""
    while True:
        with open(path, encoding="utf-8", errors="replace") as file:
            file.seek(0, os.SEEK_END)
            rest = ""
            while os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                *whole, rest = (rest + file.read()).split("\n")
                yield from whole
                time.sleep(_FOLLOW)
        while not os.path.exists(path):
            time.sleep(_FOLLOW)


def _show_units(session: Session, command: list[str], search_path: str) -> int:
    units = {
        str(Path(userunit.directory(), name)): userunit.filled(name, command, search_path)
        for name in (userunit.SERVICE, userunit.SOCKET)
    }
    if session.out.json:
        session.out.value({"units": units})
        return 0
    for path, text in units.items():
        session.out.line(paint(f"# {path}", "bold"))
        session.out.block(text)
    return 0
