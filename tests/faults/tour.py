"""Use each feature of a daemon once after its start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import attrs
import httpx

from tests.dashboard import visitor
from tests.e2e import web
from tests.e2e.harness import BOUND, Daemon, Json, Refused, fake, wait_until
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient

LONG = ("--max-life", "100000")
"""Seconds: a soak takes long."""
SERVERS: Json = {
    "old": fake(*LONG, env={"TOKEN": "${secret:STORED}"}),
    "new": fake(*LONG, "--era", "modern", env={"SAID": "${cmd:echo said}"}),
    "tasks": fake(*LONG, "--capabilities", "tools,tasks", lazy=True),
}
SETTINGS: Json = {"allowCommands": True}
ASKED = ("status", "version", "tools", "resources", "prompts", "config", "history", "clients", "metrics")
NOBODY = "127.0.0.1:9"


@attrs.define
class Tour:
    """One round through all features. `wrong` lists the unexpected results."""

    daemon: Daemon
    remote: str
    """The address of an MCP server over HTTP."""
    others: tuple[str, ...] = ()
    """Servers that are called besides."""
    wrong: list[str] = attrs.field(factory=list)
    _read: int = 0
    """How much of the daemon's log has been looked at."""

    def round(self) -> None:
        for stop in (
            self.asking,
            self.calls,
            self.sessions,
            self.streams,
            self.life_and_death,
            self.remotes,
            self.configuration,
            self.http,
            self.the_page,
            self.the_guardian,
        ):
            try:
                stop()
            except Exception as error:
                self.wrong.append(f"{stop.__name__}: {error!r}")
        log = self.daemon.log[self._read :]
        self._read += len(log)
        self.wrong += [line for line in log.splitlines() if "Traceback" in line]

    def asking(self) -> None:
        with self.daemon.client() as client:
            for method in ASKED:
                client.request(f"mcpd/{method}")
            client.request("mcpd/stats", processes=True)
            client.request("mcpd/server", server="old")
            client.request("mcpd/ping", server="old")
            client.request("rpc.discover")

    def calls(self) -> None:
        """Calls with schema validation, with tasks, and one that kills the server."""
        with self.daemon.client() as client:
            for server in (*SERVERS, *self.others):
                assert client.call(server, "echo", {"n": 1})["success"]
            client.call("old", "progress")
            client.call("tasks", "job")
            refused(lambda: client.call("old", "no-such-tool"))
            refused(lambda: client.call("old", "drop", timeout=0.1))

    def sessions(self) -> None:
        for version in (MODERN, *LEGACY):
            for server in (None, "old", "new"):
                client = McpClient(self.daemon, version, server=server)
                client.line.close()

    def streams(self) -> None:
        with self.daemon.client() as client, self.daemon.client() as other:
            client.send("mcpd/events")
            client.send("mcpd/logs", server="old", follow=True)
            client.send("mcpd/tap", server="old")
            client.next_notification()
            other.call("old", "stderr", {"text": "words"})

    def life_and_death(self) -> None:
        with self.daemon.client() as client:
            client.request("mcpd/disable", server="new")
            client.request("mcpd/enable", server="new")
            client.request("mcpd/disconnect", server="new")
            client.request("mcpd/reconnect", server="new", wait=BOUND)
            pid = self.daemon.status("old")["pid"]
            os.kill(pid, signal.SIGKILL)
            self.daemon.wait_status("old", lambda s: s["status"] == "connected" and s["pid"] != pid)

    def remotes(self) -> None:
        """Use each transport for the first time, and get the error for a server that does not exist."""
        definitions: Json = {
            "near": {"url": self.remote},
            "sse": {"type": "sse", "url": f"http://{NOBODY}/sse"},
            "ws": {"type": "ws", "url": f"ws://{NOBODY}/"},
            "tls": {"url": f"https://{NOBODY}/mcp"},
            "named": {"url": "http://nobody.b\u00fccher.invalid/mcp"},
        }
        with self.daemon.client() as client:
            for name, definition in definitions.items():
                client.request("mcpd/add", server=name, definition=definition, save=False)
            assert client.call("near", "echo", {"text": "from afar"})["success"]
            client.call("near", "add", {"a": 1, "b": 2})
            for name in definitions.keys() - {"near"}:
                status = self.daemon.wait_status(name, lambda s: s["last_error"] is not None)
                assert status["last_error"]["kind"] == "unreachable", status["last_error"]
            for name in definitions:
                client.request("mcpd/remove", server=name, save=False)

    def configuration(self) -> None:
        with self.daemon.client() as client:
            client.request("mcpd/add", server="added", definition=fake(), save=True)
            assert client.call("added", "echo")["success"]
            client.request("mcpd/remove", server="added", save=True)
            client.request("mcpd/reload")
            os.kill(self.daemon.pid, signal.SIGHUP)

    def http(self) -> None:
        where = web.http_endpoint(self.daemon)
        for path in ("/mcp", "/servers/old/mcp"):
            with where.client() as http:
                session = web.Session(http, path)
                assert session.post(web.request("tools/list")).status_code == 200
                assert web.ask(http, path, "tools/list").status_code == 200
        with where.client() as http:
            assert http.get("/metrics").status_code == 200
            assert http.get("/health").status_code == 200
        with web.over_unix(self.daemon) as http:
            assert http.post("/rpc", json=web.request("mcpd/status")).json()["result"]

    def the_page(self) -> None:
        where = web.http_endpoint(self.daemon)
        page = httpx.get(where.base + "/", timeout=BOUND)
        assert page.status_code == 200
        with visitor.socket_of(visitor.log_in(self.daemon)) as socket:
            assert "result" in socket.ask("mcpd/status")

    def the_guardian(self) -> None:
        """Kill the guardian, and check that a new one starts and works."""
        old = self.daemon.guardian()
        os.kill(old, signal.SIGKILL)

        def replaced() -> bool:
            try:
                return self.daemon.guardian() != old
            except LookupError:
                return False

        wait_until(replaced, lambda: "no new guardian")
        new = self.daemon.guardian()
        with self.daemon.client() as client:
            client.request("mcpd/reconnect", server="old", wait=BOUND)
        assert self.daemon.guardian() == new, "it did not stay"


def refused(act: Callable[[], object]) -> None:
    try:
        act()
    except Refused as error:
        assert error.code not in ("internal", "internal_error"), error.body  # noqa: PT017
    else:
        raise AssertionError("it was not refused")
