"""The daemon as a service of the user's systemd: its units, and what the journal has of it."""

from __future__ import annotations

import os
from pathlib import Path

from ctl import autostart, background, systemd_units
from ctl.context import CliContext
from ctl.errors import CtlError
from ctl.output import paint


def install(cli: CliContext) -> bool:
    """Write the units, enable and start them, and say so. Whether how it is now remains to be told."""
    command = autostart.daemon_command()
    search_path = systemd_units.service_path(os.environ.get("PATH", os.defpath))
    written = systemd_units.write_units(command, search_path)
    manager = systemd_units.is_available()
    if manager:
        systemd_units.systemctl("daemon-reload")
        systemd_units.systemctl("enable", systemd_units.SOCKET, systemd_units.SERVICE)
        if cli.may_start:
            _start_service(cli)
    started = manager and cli.may_start
    if cli.out.json:
        cli.out.json_value(
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
        cli.out.line("wrote ", str(path))
    cli.out.line("servers will be looked for in this shell's PATH: ", search_path)
    if not manager:
        cli.out.message(
            "no service manager of yours is reachable here, so nothing was enabled; after logging in: "
            "systemctl --user daemon-reload && systemctl --user enable --now mcpd.socket mcpd.service"
        )
    else:
        cli.out.line("enabled mcpd.socket and mcpd.service")
        cli.out.message("to keep it running after you log out: loginctl enable-linger")
    return started


def show_units(cli: CliContext) -> None:
    """What `install` would write."""
    command = autostart.daemon_command()
    search_path = systemd_units.service_path(os.environ.get("PATH", os.defpath))
    units = {
        str(Path(systemd_units.unit_directory(), name)): systemd_units.render_unit(name, command, search_path)
        for name in (systemd_units.SERVICE, systemd_units.SOCKET)
    }
    if cli.out.json:
        cli.out.json_value({"units": units})
        return
    for path, text in units.items():
        cli.out.line(paint(f"# {path}", "bold"))
        cli.out.block(text)


def uninstall(cli: CliContext) -> None:
    """Stop the service, remove its units, and say so."""
    found = [
        path
        for name in (systemd_units.SERVICE, systemd_units.SOCKET)
        if (path := systemd_units.unit_directory() / name).exists()
    ]
    if found and systemd_units.is_available():
        systemd_units.systemctl("disable", "--now", systemd_units.SOCKET, systemd_units.SERVICE)
    for path in found:
        path.unlink()
    if found and systemd_units.is_available():
        systemd_units.systemctl("daemon-reload")
    if cli.out.json:
        cli.out.json_value({"removed": [str(path) for path in found]})
        return
    for path in found:
        cli.out.line("removed ", str(path))
    if not found:
        cli.out.line("the service was not installed")


def journal(cli: CliContext, lines: int, follow: bool) -> int:
    """Show the end of it; the exit code."""
    import subprocess

    command = ["journalctl", "--user", "--no-pager", "--quiet", "-u", systemd_units.SERVICE, "-n", str(lines)]
    command += ["-o", "json" if cli.out.json and follow else "cat"] + ["-f"] * follow
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
        cli.out.message("the journal has nothing of it; is journald running? (systemctl --user status mcpd)")
    return done.returncode


def stop(cli: CliContext) -> bool:
    """Stop whichever daemon there is. Whether one was running."""
    if systemd_units.manages_socket(cli.socket):
        active = systemd_units.service_properties().get("ActiveState") in (
            "active",
            "activating",
            "reloading",
        )
        if active or socket_is_active():
            systemd_units.stop()
            return active
    return stop_background(cli)


def stop_background(cli: CliContext) -> bool:
    """Stop the daemon in the background, which would be in the way. Whether there was one."""
    if systemd_units.manages_socket(cli.socket) and socket_is_active():
        return False  # whoever answers there is the service; asking would start it
    return background.stop(cli.socket)


def socket_is_active() -> bool:
    """Whether connecting would start the service."""
    try:
        return systemd_units.systemctl("is-active", systemd_units.SOCKET).strip() == "active"
    except CtlError:
        return False


def _start_service(cli: CliContext) -> None:
    """Start the service; a daemon in the background would be in its way, and is stopped first."""
    if not systemd_units.manages_socket(cli.socket):
        cli.out.message(
            f"note: the service listens on {systemd_units.socket_path()}, and you chose {cli.socket}"
        )
    elif systemd_units.service_properties().get("ActiveState") == "active":
        systemd_units.systemctl("restart", systemd_units.SERVICE)
        return
    else:
        stop_background(cli)
    systemd_units.start()
