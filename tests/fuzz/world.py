"""One daemon with a well-behaved server, hostile ones, and what can be observed from outside."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from mcpd.auth.token_store import TokenStore
from mcpd.config.secret_store import change_secrets
from tests.auth.test_token_store import LOGIN
from tests.e2e import web
from tests.e2e.harness import Client, Daemon, Json, fake, impatient, private_environment, running
from tests.fuzz.generate import CANARIES
from tests.fuzz.hostile_http import HostileHttp
from tests.fuzz.hostile_websocket import HostileWebSocket
from tests.fuzz.messages import CALM
from tests.spelled import is_shown_in

DENIED: Json = {"decision": "deny", "servers": [CALM], "tools": ["pid"]}
"""Always the first rule, whatever else the rules are."""
ROOT = Path(__file__).parent.parent.parent
MCPD = (sys.executable, "-m", "mcpd")
LONG = ("--max-life", "1000000")
MANY = ("--capabilities", "tools,resources,prompts,logging,completions", "--subscribable")


@attrs.define
class World:
    daemon: Daemon
    endpoint: web.HttpEndpoint
    seed: int
    control: Client
    """A connection of the fuzzer itself."""
    http: HostileHttp

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

    @property
    def secrets(self) -> dict[str, str]:
        return {**CANARIES, "token": self.endpoint.token}

    def leaks(self) -> list[str]:
        """Return where the daemon shows or stores a secret, except in its list of names that clients use."""
        ask, shown = self.control.request, dict[str, str]()
        for method in ("status", "history", "stats", "clients", "calls", "metrics", "config", "auth/status"):
            shown[method] = json.dumps(ask(f"mcpd/{method}"))
        for server in ask("mcpd/status")["servers"]:
            shown[f"server {server['name']}"] = json.dumps(ask("mcpd/server", server=server["name"]))
        shown["the log"] = self.daemon.log
        for pid in (self.daemon.pid, self.daemon.guardian()):
            shown[f"the command line of {pid}"] = Path(f"/proc/{pid}/cmdline").read_text()
        kept = ("last-valid-config.json", "logins.json", "http-token")
        for file in (
            each for place in ("state", "cache", "run") for each in (self.daemon.home / place).rglob("*")
        ):
            if file.is_file() and file.name not in kept and file.parent.name != "lists":
                shown[str(file)] = file.read_text("utf-8", "replace")
        return [
            f"the secret {name!r} is in {where}: {excerpt(text, secret)}"
            for where, text in shown.items()
            for name, secret in self.secrets.items()
            if is_shown_in(text, secret)
        ]

    def revive(self) -> None:
        """Enable and connect the servers that cases call."""
        for name in HOSTILE:
            for method in ("mcpd/enable", "mcpd/connect"):
                self.control.send(method, server=name)
        self.control.request("mcpd/version")
        self.control._answers.clear()


HOSTILE = ("odd", "hostile", "web", "websocket", "account")


def excerpt(text: str, secret: str) -> str:
    at = text.find(secret)
    return repr(text[max(0, at - 200) : at + 100])


def definitions(seed: int, home: Path, http: HostileHttp, websocket: HostileWebSocket) -> Json:
    hostile = {
        "command": sys.executable,
        "args": [
            *("-m", "tests.fuzz.hostile_server", str(seed), str(home / "counter")),
            *("--api-key", CANARIES["argument"]),
        ],
        "cwd": str(ROOT),
    }
    soon = {"restart": impatient(), "connectTimeout": 2000, "timeout": 1500}
    return {
        CALM: fake(*LONG),
        "odd": fake(*LONG, *MANY, **soon, env={"TOKEN": CANARIES["env"], "OTHER": "${secret:STORED}"}),
        # Some of their messages are longer.
        "hostile": {**hostile, **soon, "maxFrame": 1 << 15},
        "web": {
            "url": f"{http.url}/mcp",
            **soon,
            "maxFrame": 1 << 15,
            "headers": {"Authorization": f"Bearer {CANARIES['header']}"},
        },
        "websocket": {"url": websocket.url, **soon, "maxFrame": 1 << 15},
        "account": {"url": f"{http.url}/account", **soon},
        "kept": {"url": f"{http.url}/kept", **soon},
    }


def store_login(home: Path, url: str) -> None:
    """Make `kept` a server with a login, so that its tokens are secrets from the beginning."""
    tokens = attrs.evolve(LOGIN.tokens, access_token=CANARIES["access"], refresh_token=CANARIES["refresh"])
    login = attrs.evolve(
        LOGIN, resource=f"{url}/kept", issuer=url, token_endpoint=f"{url}/token", tokens=tokens
    )
    store = TokenStore(home / "state" / "mcpd")
    store.open()
    store.change(lambda logins: logins.with_login(login, f"{url}/kept"))
    store.close()


@contextmanager
def world(home: Path, seed: int, program: Sequence[str] = MCPD) -> Iterator[World]:
    with ExitStack() as stack:
        http, websocket = HostileHttp(seed), HostileWebSocket(seed)
        stack.callback(http.close)
        stack.callback(websocket.close)
        change_secrets(private_environment(home), {"STORED": CANARIES["stored"]})
        store_login(home, http.url)
        servers = definitions(seed, home, http, websocket)
        daemon = stack.enter_context(
            running(home, servers, *web.PORT, settings={"policies": [DENIED]}, program=program)
        )
        daemon.wait_connected(CALM)
        yield World(daemon, web.http_endpoint(daemon), seed, daemon.client(), http)
