"""The daemon as a service of the user's systemd: its units, and what the journal has of it."""

from __future__ import annotations

import os
from pathlib import Path

from ctl import autostart, background, systemd_units
from ctl.context import Session
from ctl.errors import CtlError
from ctl.output import paint


def install(session: Session) -> bool:
    """Write the units, enable and start them, and say so. Whether how it is now remains to be told."""
    command = autostart.daemon_command()
    search_path = systemd_units.usable_path(os.environ.get("PATH", os.defpath))
    written = systemd_units.write(command, search_path)
    manager = systemd_units.reachable()
    if manager:
        systemd_units.systemctl("daemon-reload")
        systemd_units.systemctl("enable", systemd_units.SOCKET, systemd_units.SERVICE)
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
        return False
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
    return started


def show_units(session: Session) -> None:
    """What `install` would write."""
    command = autostart.daemon_command()
    search_path = systemd_units.usable_path(os.environ.get("PATH", os.defpath))
    units = {
        str(Path(systemd_units.directory(), name)): systemd_units.filled(name, command, search_path)
        for name in (systemd_units.SERVICE, systemd_units.SOCKET)
    }
    if session.out.json:
        session.out.value({"units": units})
        return
    for path, text in units.items():
        session.out.line(paint(f"# {path}", "bold"))
        session.out.block(text)


def uninstall(session: Session) -> None:
    """Stop the service, remove its units, and say so."""
    found = [
        path
        for name in (systemd_units.SERVICE, systemd_units.SOCKET)
        if (path := systemd_units.directory() / name).exists()
    ]
    if found and systemd_units.reachable():
        systemd_units.systemctl("disable", "--now", systemd_units.SOCKET, systemd_units.SERVICE)
    for path in found:
        path.unlink()
    if found and systemd_units.reachable():
        systemd_units.systemctl("daemon-reload")
    if session.out.json:
        session.out.value({"removed": [str(path) for path in found]})
        return
    for path in found:
        session.out.line("removed ", str(path))
    if not found:
        session.out.line("the service was not installed")


def journal(session: Session, lines: int, follow: bool) -> int:
    """Show the end of it; the exit code."""
    import subprocess

    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", systemd_units.SERVICE, "-n", str(lines)]
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


def stop(session: Session) -> bool:
    """Stop whichever daemon there is. Whether one was running."""
    if systemd_units.serves(session.socket):
        active = systemd_units.properties().get("ActiveState") in ("active", "activating", "reloading")
        if active or socket_listens():
            systemd_units.stop()
            return active
    return stop_background(session)


def stop_background(session: Session) -> bool:
    """Stop the daemon in the background, which would be in the way. Whether there was one."""
    if systemd_units.serves(session.socket) and socket_listens():
        return False  # whoever answers there is the service; asking would start it
    return background.stop(session.socket)


def socket_listens() -> bool:
    """Whether connecting would start the service."""
    try:
        return systemd_units.systemctl("is-active", systemd_units.SOCKET).strip() == "active"
    except CtlError:
        return False


def _start_installed(session: Session) -> None:
    """Start the service; a daemon in the background would be in its way, and is stopped first."""
    if not systemd_units.serves(session.socket):
        session.out.talk(
            f"note: the service listens on {systemd_units.socket_path()}, and you chose {session.socket}"
        )
    elif systemd_units.properties().get("ActiveState") == "active":
        systemd_units.systemctl("restart", systemd_units.SERVICE)
        return
    else:
        stop_background(session)
    systemd_units.start()
