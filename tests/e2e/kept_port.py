"""A service manager that keeps the HTTP port of the daemon in its descriptor store, like systemd."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs

from tests.e2e.harness import (
    BOUND,
    Daemon,
    Json,
    assert_gone,
    instance_marks,
    private_environment,
    wait_for_socket,
    wait_until,
)

_RUN = (
    "import os, sys; descriptor = int(sys.argv[1]); descriptor < 0 or os.dup2(descriptor, 3);"
    "os.environ['LISTEN_PID'] = str(os.getpid());"
    "os.execv(sys.executable, [sys.executable, '-m', 'mcpd', *sys.argv[2:]])"
)


@attrs.define(eq=False)
class Manager:
    """Runs one daemon after the other, which listens at the address in the setting `http`."""

    home: Path
    config: Path
    _notified: socket.socket
    _stored: int = -1
    daemon: Daemon | None = None

    def start(self) -> Daemon:
        """Start the daemon with the port that the last one has stored, and wait until it listens."""
        environ = private_environment(self.home) | {"NOTIFY_SOCKET": str(self.home / "notify")}
        passed = () if self._stored < 0 else (self._stored,)
        listening = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "stored-http"} if passed else {}
        with (self.home / "daemon.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(self._stored), "--config", str(self.config)],
                env={**environ, **listening},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=passed,
            )
        path = str(self.home / "run" / "mcpd" / "mcpd.sock")
        self.daemon = Daemon(process, self.home, path, self.config, environ)
        wait_for_socket(self.daemon)
        self._receive()
        return self.daemon

    def _receive(self) -> None:
        """Take what the daemon stores."""
        with suppress(TimeoutError):
            while True:
                text, found, _, _ = socket.recv_fds(self._notified, 4096, 4)
                if found:
                    assert text == b"FDSTORE=1\nFDNAME=stored-http"
                    if self._stored >= 0:
                        os.close(self._stored)
                    self._stored = found[0]
                if text == b"READY=1":
                    return

    def kill(self) -> None:
        """End the daemon as a crash does, and wait until nothing of it is left."""
        assert self.daemon is not None
        marks = instance_marks(self.daemon)
        self.daemon.process.kill()
        self.daemon.process.wait(BOUND)
        assert_gone(marks)

    def wait_kept(self, *uris: str, sessions: int = 1) -> None:
        """Wait until the file has so many sessions that are subscribed to these resources."""
        path = self.home / "state" / "mcpd" / "http-sessions.jsonl"

        def kept() -> list[list[str]]:
            lines = path.read_text().splitlines() if path.exists() else []
            return [json.loads(line)["subscribed"] for line in lines]

        wait_until(lambda: kept() == [list(uris)] * sessions, lambda: f"kept: {kept()}")

    def close(self) -> None:
        if self.daemon is not None:
            for client in self.daemon._clients:
                client.close()
            if self.daemon.process.poll() is None:
                self.daemon.stop()
        if self._stored >= 0:
            os.close(self._stored)


@contextmanager
def managing(home: Path, servers: Mapping[str, Json], port: int) -> Iterator[Manager]:
    config = home / "config.json"
    settings = {"http": f"127.0.0.1:{port}"}
    config.write_text(json.dumps({"mcpServers": servers, "settings": settings}))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(home / "notify"))
        notified.settimeout(BOUND)
        manager = Manager(home, config, notified)
        try:
            yield manager
        finally:
            manager.close()
