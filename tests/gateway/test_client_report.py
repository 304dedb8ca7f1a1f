"""The report of connected clients: processes, and the servers they use."""

from __future__ import annotations

import os
from typing import Any

from tests.e2e.conftest import start
from tests.e2e.harness import fake
from tests.gateway.mcp_client import MODERN, McpClient

__all__ = ["start"]

Start = Any


def test_client_report_shows_servers_and_revisions(start: Start) -> None:
    """Both revisions if they differ, and the dedicated server if there is one."""
    daemon = start({"new": fake("--era", "modern"), "own": fake("--era", "legacy", share="client")})
    daemon.wait_connected("new", "own")
    bridge = McpClient(daemon, "2025-06-18", client={"name": "cursor", "pid": 4711, "cwd": "/srv"})
    bridge.call("new__echo")
    bridge.call("own__echo")
    other = McpClient(daemon, MODERN, server="new")
    other.call("echo")
    found = daemon.client().request("mcpd/clients")["clients"]
    cursor, modern, asking = found
    assert (cursor["name"], cursor["pid"], cursor["via"], cursor["sees"]) == ("cursor", 4711, "bridge", "*")
    assert cursor["servers"] == {
        "new": {"calls": 1, "revisions": "2025-06-18 → 2026-07-28", "instance": None},
        "own": {"calls": 1, "revisions": "2025-06-18 → 2025-11-25", "instance": "own~1"},
    }
    assert (modern["sees"], modern["protocol_version"], modern["pid"]) == ("new", MODERN, os.getpid())
    assert modern["servers"]["new"]["revisions"] == MODERN
    assert asking["via"] == "socket"
