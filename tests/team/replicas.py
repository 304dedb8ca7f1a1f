"""Three replicas of mcpd behind HAProxy, as `examples/team` runs them, on loopback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.e2e import harness
from tests.interop.peers import ROOT, free_port, wait_for_port

TEAM = ROOT / "examples" / "team"
NAMES = ("a", "b", "c")
TOKEN = "t" * 43
_KEY = "k" * 32
_LOG = """
  log stdout format raw local0
  log-format "%s %ST %ts %HM %HU %[capture.res.hdr(0)]"
"""
_LOGGED = re.compile(r"(\S+) (-?\d+) (\S\S) (\S+) \S+?[?&]job=([\w-]+) (\S*)")


class Replica:
    """One of them, which can be killed and started again at the same port."""

    def __init__(self, name: str, home: Path, servers: Mapping[str, Any]) -> None:
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self._home = home
        self._servers = servers
        self._held = ExitStack()
        state = home / "state" / "mcpd"
        state.mkdir(parents=True, mode=0o700)
        (state / "http-token").touch(0o600)
        (state / "http-token").write_text(TOKEN)

    def start(self) -> None:
        cluster = {"key": _KEY, "address": f"http://{self.address}"}
        settings = {"http": {"listen": self.address, "cluster": cluster}, "clientToolNames": "plain"}
        self.daemon = self._held.enter_context(harness.running(self._home, self._servers, settings=settings))
        self.daemon.wait_connected(*self._servers)

    def kill(self) -> float:
        """Kill the daemon, and return when. Its servers end, too."""
        self.daemon.process.kill()
        at = time.monotonic()
        self.daemon.process.wait(harness.BOUND)
        self._held.close()
        return at

    def stop(self) -> None:
        self._held.close()


@attrs.frozen
class Passed:
    """A request that the balancer has passed on."""

    replica: str
    status: int
    state: str
    """`--`, or why it ended early: `S…` if because of the replica."""
    method: str
    job: str
    session: str
    """Of the answer to `initialize`; else `-`."""

    @property
    def is_broken(self) -> bool:
        return self.state[0] == "S" or self.status == 502


@attrs.frozen
class Team:
    port: int
    """Of the balancer."""
    replicas: tuple[Replica, ...]
    _log: Path

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def passed(self) -> list[Passed]:
        """Return the requests of jobs so far, in the order in which they ended."""
        found = _LOGGED.findall(self._log.read_text())
        return [Passed(each[0], int(each[1]), *each[2:]) for each in found]


@contextmanager
def running(home: Path, servers: Mapping[str, Any]) -> Iterator[Team]:
    """Start everything. The balancer sends the token with the requests that have none."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise SystemExit("haproxy is not installed: apt install haproxy")
    with ExitStack() as held:
        replicas = tuple(Replica(name, home / name, servers) for name in NAMES)
        for replica in replicas:
            held.callback(replica.stop)
            replica.start()
        log = held.enter_context((home / "haproxy.log").open("wb"))
        port = free_port()
        environ = {replica.name.upper(): replica.address for replica in replicas}
        process = subprocess.Popen(
            [program, "-db", "-f", str(_configuration(home))],
            env={"BIND": f"127.0.0.1:{port}", "ERRORS": str(TEAM), **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        held.callback(process.wait, harness.BOUND)
        held.callback(process.kill)
        wait_for_port(process, port)
        yield Team(port, replicas, home / "haproxy.log")


def _configuration(home: Path) -> Path:
    """Return a copy of the example that logs each request."""
    text = (TEAM / "haproxy.cfg").read_text()
    bind = '  bind "abns@mcpd${BIND}"\n'
    more = (
        "  capture response header Mcp-Session-Id len 300\n"
        f'  http-request set-header Authorization "Bearer {TOKEN}" '
        "unless { req.hdr(Authorization) -m found }\n"
    )
    outer = "frontend mcp\n"
    assert text.count("defaults\n") == text.count(bind) == text.count(outer) == 1
    file = home / "haproxy.cfg"
    for old, new in (("defaults\n", f"defaults{_LOG}"), (bind, bind + more), (outer, f"{outer}  no log\n")):
        text = text.replace(old, new)
    file.write_text(text)
    return file
