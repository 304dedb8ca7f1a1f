"""Another machine: an OpenSSH server on loopback with its own keys, home directory and mcpd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.harness import BOUND, Json, private_environment

ROOT = Path(__file__).resolve().parents[2]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
_PRIVILEGE_SEPARATION = Path("/run/sshd")
"""An empty directory that sshd demands of root. Debian's service creates it."""


class Laptop:
    """The machine and the way to it. Each connection has an sshd of its own, as with inetd."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "pc"  # short, because a socket is in it
        (self.home / ".local/bin").mkdir(parents=True)
        self.environ = private_environment(self.home)
        self.is_down = False
        """Whether connections end at once, as if the machine were unreachable."""
        self.tries = 0
        """Connections that were tried."""
        self._connections: list[subprocess.Popen[bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._write_configuration(directory, self._listener.getsockname()[1])
        self.here = private_environment(directory) | {"PATH": f"{directory}/bin:{os.environ['PATH']}"}
        """The environment of this machine, whose `ssh` knows the host `laptop`."""
        self.install_mcpctl()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _write_configuration(self, directory: Path, port: int) -> None:
        for name in ("host_key", "key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(command, check=True, timeout=BOUND)
        theirs = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        theirs |= {name: text for name, text in self.environ.items() if name.startswith(("XDG_", "HOME"))}
        (directory / "sshd_config").write_text(
            f"HostKey {directory}/host_key\nAuthorizedKeysFile {directory}/key.pub\nStrictModes no\n"
            "UsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"SetEnv {' '.join(f'{name}={text}' for name, text in theirs.items())}\n"
        )
        (directory / "ssh_config").write_text(
            f"Host laptop\n HostName 127.0.0.1\n Port {port}\n IdentityFile {directory}/key\n"
            f" IdentitiesOnly yes\n IdentityAgent none\n UserKnownHostsFile {directory}/known_hosts\n"
            " StrictHostKeyChecking accept-new\n"
        )
        (self.home / ".bashrc").write_text("echo Welcome to this laptop\n")
        (directory / "bin").mkdir()
        _make_program(directory / "bin/ssh", f'exec {shutil.which("ssh")} -F {directory}/ssh_config "$@"')
        self._command = [str(SSHD), "-i", "-e", "-f", str(directory / "sshd_config")]

    def install_mcpctl(self, before: str = "") -> None:
        """Install mcpctl where a shell that runs one command does not look. `before` is Python code."""
        program = self.home / ".local/bin/mcpctl"
        program.write_text(f"#!{sys.executable}\n{before}\nfrom ctl.main import main\nmain()\n")
        program.chmod(0o755)

    def configure(self, servers: Mapping[str, Json]) -> None:
        (self.home / "config/mcpd").mkdir(parents=True, exist_ok=True)
        (self.home / "config/mcpd/config.json").write_text(json.dumps({"mcpServers": servers}))

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection:
                self.tries += 1
                if not self.is_down:
                    sshd = subprocess.Popen(
                        self._command,
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                        stderr=subprocess.DEVNULL,
                    )
                    self._connections.append(sshd)

    def has_connections(self) -> bool:
        return any(sshd.poll() is None for sshd in self._connections)

    def signal_connections(self, number: signal.Signals) -> None:
        """Send a signal to the sshd of each connection: SIGKILL cuts it, SIGSTOP silences it."""
        for sshd in self._connections:
            if sshd.poll() is None:
                sshd.send_signal(number)

    def cut(self) -> None:
        """Cut all connections."""
        self.signal_connections(signal.SIGKILL)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(BOUND)
        self.cut()
        for sshd in self._connections:
            sshd.wait(BOUND)
        environ = {**self.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "ctl", "daemon", "stop"]
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=BOUND)


def _make_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@contextmanager
def other_machine(directory: Path) -> Iterator[Laptop]:
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("sshd or ssh is not installed: the packages openssh-server and openssh-client")
    if os.getuid() == 0:
        _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    laptop = Laptop(directory)
    try:
        yield laptop
    finally:
        laptop.close()
