"""One daemon with a well-behaved server, hostile ones, and what can be observed from outside."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from tests.e2e import web
from tests.e2e.harness import Client, Daemon, Json, fake, impatient, running
from tests.fuzz.hostile_http import HostileHttp
from tests.fuzz.messages import CALM

ROOT = Path(__file__).parent.parent.parent
LONG = ("--max-life", "1000000")
MANY = ("--capabilities", "tools,resources,prompts,logging,completions", "--subscribable")


@attrs.define
class World:
    daemon: Daemon
    endpoint: web.HttpEndpoint
    seed: int
    control: Client
    """A connection of the fuzzer itself."""

    def cpu(self) -> float:
        """Return the seconds of processor time that the thread of the event loop has used."""
        pid = self.daemon.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def fence(self) -> None:
        """Return once the daemon has handled everything that was sent before."""
        for _ in range(3):
            self.control.request("mcpd/version")

    def settle(self, patience: float = 20.0) -> None:
        """Return once the daemon has been idle for a moment, or after `patience` seconds."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            before = self.cpu()
            time.sleep(0.05)
            if self.cpu() - before < 0.003:
                return

    def revive(self) -> None:
        """Enable and connect the servers that cases call."""
        for name in ("odd", "hostile", "web"):
            for method in ("mcpd/enable", "mcpd/connect"):
                self.control.send(method, server=name)
        self.control.request("mcpd/version")
        self.control._answers.clear()


def definitions(seed: int, home: Path, url: str) -> Json:
    hostile = {
        "command": sys.executable,
        "args": ["-m", "tests.fuzz.hostile_server", str(seed), str(home / "counter")],
        "cwd": str(ROOT),
    }
    soon = {"restart": impatient(), "connectTimeout": 2000, "timeout": 1500}
    return {
        CALM: fake(*LONG),
        "odd": fake(*LONG, *MANY, **soon),
        # Some of their messages are longer.
        "hostile": {**hostile, **soon, "maxFrame": 1 << 15},
        "web": {"url": url, **soon, "maxFrame": 1 << 15},
    }


@contextmanager
def world(home: Path, seed: int) -> Iterator[World]:
    with ExitStack() as stack:
        http = HostileHttp(seed)
        stack.callback(http.close)
        daemon = stack.enter_context(running(home, definitions(seed, home, http.url), *web.PORT))
        daemon.wait_connected(CALM)
        yield World(daemon, web.http_endpoint(daemon), seed, daemon.client())
