"""Clients on the official SDKs keep their session, and their subscription, when the daemon is restarted."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import BOUND, Json, private_environment
from tests.e2e.kept_port import managing
from tests.interop import peers
from tests.interop.clients.drivers import HERE, environment, http, modules, node

ROOT = Path(__file__).parent.parent.parent
URI = "demo://resource/static/document/architecture.md"
RESTARTS = 3


class Telling:
    """A client program that stays connected, and is told what to call."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._told: queue.Queue[Json] = queue.Queue()
        self.updates = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.put(json.loads(line))

    def call(self, tool: str, **arguments: Any) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([tool, arguments]) + "\n")
        self._process.stdin.flush()
        return str(self.wait("text"))

    def wait(self, member: str) -> object:
        """Return what it tells next under this name."""
        while True:
            told = self._told.get(timeout=BOUND)
            assert "failed" not in told, told
            self.updates += "updated" in told
            if member in told:
                return told[member]

    def wait_updated(self) -> None:
        """Wait for another update than those that were seen before."""
        if not self.updates:
            assert self.wait("updated") == URI
        self.updates = 0

    def forget_updates(self) -> None:
        """Wait for none of those that have arrived."""
        with suppress(queue.Empty):
            while True:
                self._told.get_nowait()
        self.updates = 0


@contextmanager
def telling(argv: Sequence[str], server: Json, home: Path) -> Iterator[Telling]:
    home.mkdir()
    with subprocess.Popen(
        [*argv, json.dumps(server), URI],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home,
        env=environment(home, {}),
    ) as process:
        try:
            client = Telling(process)
            client.wait("ready")
            yield client
        finally:
            process.kill()


@contextmanager
def clients(home: Path, port: int) -> Iterator[list[Telling]]:
    """Connect two clients of each SDK."""
    if not modules("@modelcontextprotocol/sdk").exists():
        pytest.skip("the TypeScript SDK is not there: `make interop` installs it")
    programs = (
        (peers.made(".venv-mcp1"), str(HERE / "telling.py")),
        (node(), str(HERE / "telling.mjs")),
    )
    token = (home / "state" / "mcpd" / "http-token").read_text().strip()
    server = http(f"http://127.0.0.1:{port}/servers/every/mcp", token)
    with ExitStack() as stack:
        yield [
            stack.enter_context(telling(argv, server, home / f"client{number}"))
            for number, argv in enumerate([*programs, *programs])
        ]


def everything() -> Json:
    """Return the definition of the reference server of the protocol's authors."""
    program = shutil.which("mcp-server-everything", path=str(ROOT / ".npm/node_modules/.bin"))
    if program is None:
        pytest.skip("mcp-server-everything is not there: `make npm` installs it")
    return {"command": program, "args": ["stdio"]}


def use(connected: Sequence[Telling], listening: Sequence[Telling]) -> None:
    """All clients call, and some learn of a change of the resource, from the server of this daemon."""
    for number, client in enumerate(connected):
        assert client.call("echo", message=f"{number}") == f"Echo: {number}"
    connected[0].call("toggle-subscriber-updates")
    for client in listening:
        client.wait_updated()
    connected[0].call("toggle-subscriber-updates")
    for client in connected:
        client.forget_updates()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "upgrade"])
def test_clients_survive_mcpctl_daemon(tmp_path: Path, how: str) -> None:
    """Without systemd, mcpctl keeps the port at a restart. The new daemon has the environment of mcpctl, as
    before. After an upgrade, the server is still the same."""
    port, environ = peers.free_port(), private_environment(tmp_path)
    settings = {"http": f"127.0.0.1:{port}"}
    config = tmp_path / "config" / "mcpd" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"mcpServers": {"every": everything()}, "settings": settings}))

    def mcpctl(*words: str, **more: str) -> None:
        argv = [str(Path(sys.executable).with_name("mcpctl")), "daemon", *words]
        done = subprocess.run(
            argv, env={**environ, **more}, capture_output=True, text=True, timeout=2 * BOUND
        )
        assert done.returncode == 0, done.stderr

    mcpctl("start")
    try:
        with clients(tmp_path, port) as connected:
            use(connected, connected)
            for number in range(RESTARTS):
                mcpctl(how, TZ=f"UTC+{number}")
                for client in connected:  # may have changed in between
                    client.wait_updated()
                use(connected, connected)
                shown = json.loads(connected[0].call("get-env"))
                assert shown.get("TZ") == (f"UTC+{number}" if how == "restart" else None)
    finally:
        mcpctl("stop")


@pytest.mark.slow
def test_clients_survive_a_killed_daemon(tmp_path: Path) -> None:
    """With a service manager that keeps the port, such as systemd."""
    port = peers.free_port()
    with managing(tmp_path, {"every": everything()}, port) as manager:
        manager.start()
        with clients(tmp_path, port) as connected:
            use(connected, connected)
            for number in range(RESTARTS):
                manager.wait_kept(URI, sessions=len(connected))
                manager.kill()
                manager.start()
                # The Python SDK opens its stream again only once if it breaks, however long that is ago.
                listening = connected if number == 0 else connected[1::2]
                for client in listening:
                    client.wait_updated()
                use(connected, listening)
