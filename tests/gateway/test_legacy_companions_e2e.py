"""The second connection of a server that speaks both eras, with the real daemon and real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.conftest import start
from tests.e2e.harness import BOUND, Daemon, Json, fake, wait_until
from tests.gateway.mcp_client import McpClient

__all__ = ["start"]

Start = Any
LEGACY = "2025-11-25"
ROOT = Path(__file__).parents[2]


def connections(daemon: Daemon) -> list[Json]:
    return list(daemon.status("one")["connections"])


def mcpctl(daemon: Daemon, *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "ctl", *words],
        env={**daemon.environ, "MCPD_NO_START": "1", "PYTHONPATH": str(ROOT)},
        cwd=daemon.home,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    ).stdout


def test_modern_only_server_serves_all_clients_over_one_connection(start: Start) -> None:
    daemon = start({"one": fake("--era", "modern")})
    daemon.wait_connected("one")
    client = McpClient(daemon, LEGACY, server="one")
    assert client.call("pid") == client.call("pid") == str(daemon.status("one")["pid"])
    wait_until(lambda: len(connections(daemon)) == 1, lambda: f"{connections(daemon)}")
    assert "connection 2: not possible: " in mcpctl(daemon, "why", "one")


def test_subscriptions_and_log_levels_reach_the_process_of_the_client(start: Start) -> None:
    """A call on the second connection changes what is only there."""
    daemon = start({"one": fake("--capabilities", "tools,resources,logging", "--subscribable")})
    daemon.wait_connected("one")
    client = McpClient(daemon, LEGACY, server="one")
    client.request("logging/setLevel", level="debug")
    uri = client.request("resources/list")["resources"][0]["uri"]
    client.request("resources/subscribe", uri=uri)
    updated = {"method": "notifications/resources/updated", "params": {"uri": uri}}
    client.call("notify", updated)
    assert client.wait_heard("notifications/resources/updated")["params"]["uri"] == uri
    wait_until(
        lambda: json.loads(client.call("counts"))["seen"].get("logging/setLevel") == 1,
        lambda: "the log level was not set",
    )
    client.request("logging/setLevel", level="error")
    wait_until(
        lambda: json.loads(client.call("counts"))["seen"].get("logging/setLevel") == 2,
        lambda: "the log level was not changed",
    )
    roots = json.loads(client.call("ask", {"method": "roots/list"}))["result"]["roots"]
    assert roots == []
