"""Containers end with the server whose command started them, however that ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import FAKE, fake
from tests.processes import wait_until

CLIENT = """
import json, os, signal, socket, sys
words = sys.argv[1:]
if "run" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is forwarded to the container, which ignores it
engine = socket.socket(socket.AF_UNIX)
engine.connect(os.environ["DOCKER_HOST"])
socket.send_fds(engine, [json.dumps(words).encode()], [0, 1])
id = engine.recv(100).decode()
files = [word.split("=")[1] for word in words if word.startswith("--cidfile=")]
for path in files:
    with open(path, "x") as file:
        file.write(id)
if "-d" in words:
    print(id)
else:
    engine.recv(100)
"""


class Engine:
    """An engine like Docker's: containers are its own children, and outlive their clients."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "engine.sock")
        self.containers: dict[str, subprocess.Popen[bytes]] = {}
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen(100)
        self.started = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            request, files, _, _ = socket.recv_fds(client, 1 << 16, 2)
            words = json.loads(request)
            if "run" in words:
                self.started += 1
                names = [word.split("=")[1] for word in words if word.startswith("--name=mcpd-")]
                id = names[0] if "compose" in words else f"{self.started:064x}"
                container = self.containers[id] = subprocess.Popen(
                    ["/bin/sh", "-c", f"{sys.executable} -I -S {FAKE}; exec sleep 999"],
                    stdin=files[0],
                    stdout=files[1],
                    start_new_session=True,
                )
                for each in files:
                    os.close(each)
                client.sendall(id.encode())
                container.wait()
                return
            for each in files:
                os.close(each)
            client.sendall(b"-")
            if (found := self.containers.get(words[-1])) is not None and found.poll() is None:
                os.killpg(found.pid, signal.SIGKILL)

    def running(self) -> int:
        return sum(container.poll() is None for container in self.containers.values())

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for container in self.containers.values():
            if container.poll() is None:
                os.killpg(container.pid, signal.SIGKILL)
            container.wait()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    for name in ("docker", "podman"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\n{CLIENT}")
        program.chmod(0o700)
    engine = Engine(tmp_path)
    yield engine
    engine.close()


def definitions(directory: Path, engine: Engine) -> dict[str, Any]:
    """Return the same server, with commands as people write them."""
    tools = directory / "bin"
    more = {"env": {"PATH": f"{tools}:{os.environ['PATH']}", "DOCKER_HOST": engine.path}, "era": "legacy"}
    return {
        "plain": {"command": "docker", "args": ["run", "-i", "--rm", "-e", "A=run", "image"], **more},
        "named": {
            "command": str(tools / "podman"),
            "args": ["--log-level", "info", "container", "run", "--name", "it", "-i", "image"],
            **more,
        },
        "shell": {"command": "sh", "args": ["-c", "cd / && exec docker -D run -i --rm image"], **more},
        "compose": {
            "command": "docker",
            "args": ["compose", "-f", "x.yaml", "run", "--rm", "-T", "service"],
            **more,
        },
        "own": {
            "command": "env",
            "args": ["B=1", "docker", "run", f"--cidfile={directory}/own.id", "-i", "image"],
            **more,
        },
    }


def test_containers_end_with_their_server(start: Start, engine: Engine, tmp_path: Path) -> None:
    servers = definitions(tmp_path, engine)
    daemon = start(servers)
    daemon.wait_connected(*servers)
    first = next(iter(engine.containers))
    assert engine.running() == len(servers)
    assert f"docker {first[:12]}" in {name for each in servers for name in daemon.status(each)["containers"]}
    assert "container" in daemon.mcpctl("why", "plain").stdout

    client = daemon.client()
    for server in servers:
        client.request("mcpd/reconnect", server=server, wait=30)
    assert (engine.running(), engine.started) == (len(servers), 2 * len(servers))
    client.request("mcpd/disable", server="named", wait=30)
    assert engine.running() == len(servers) - 1
    assert daemon.stop() == 0
    assert engine.running() == 0


@pytest.mark.parametrize("kill", [lambda daemon: None, lambda daemon: os.kill(daemon.guardian(), 9)])
def test_containers_end_after_the_daemon_was_killed(
    start: Start, engine: Engine, tmp_path: Path, kill: Callable[[Any], None]
) -> None:
    """The guardian ends them. If that was killed, too, the next daemon does."""
    servers = definitions(tmp_path, engine)
    daemon = start(servers)
    daemon.wait_connected(*servers)
    os.kill(daemon.pid, signal.SIGSTOP)  # so that it cannot replace the guardian
    kill(daemon)
    daemon.process.kill()
    daemon.process.wait()
    start({})
    wait_until(lambda: engine.running() == 0)


def test_a_detached_container_ends_with_its_failed_server(
    start: Start, engine: Engine, tmp_path: Path
) -> None:
    """With `-d`, the client prints the ID instead of connecting the container, and exits."""
    server = definitions(tmp_path, engine)["plain"]
    server["args"] = ["run", "-d", "image"]
    daemon = start({"it": server})
    daemon.wait_status("it", lambda status: status["status"] == "failed")
    wait_until(lambda: engine.started > 0 and engine.running() == 0)


def test_an_id_file_that_is_a_pipe_is_not_read(start: Start, engine: Engine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.id")
    daemon = start({"own": definitions(tmp_path, engine)["own"], "fake": fake()})
    daemon.wait_connected("fake")
    daemon.wait_status("own", lambda status: status["status"] == "failed")
    assert daemon.stop() == 0
