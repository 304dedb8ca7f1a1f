"""Text that UTF-8 cannot express, in one definition or in a path, makes no request about others fail."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.harness import Json, Refused, fake, running
from tests.gateway.mcp_client import McpClient

HALF = "\ud800x"
"""Half a surrogate pair, as in `"\\ud800x"` in a JSON file."""
REQUESTS = ("config", "status", "tools", "history", "clients", "stats", "calls")
ODD: dict[str, Json] = {
    "command": {"command": HALF},
    "argument": fake(HALF),
    "cwd": fake(cwd="/" + HALF),
    "variable": fake(env={"A": HALF}),
    "name-of-variable": fake(env={HALF: "1"}),
    "filter": fake(includeTools=[HALF]),
    "description": fake(description=HALF),
    "unknown": fake(_x=HALF),
    "unknown-name": fake(**{"_" + HALF: 1}),
    "url": {"url": "http://127.0.0.1:1/" + HALF},
    "header": {"url": "http://127.0.0.1:1/", "headers": {"A": HALF}},
}


def test_half_a_surrogate_pair_in_a_definition(tmp_path: Path) -> None:
    with running(tmp_path, {"calm": fake(), **ODD}) as daemon:
        client = daemon.client()
        client.send("mcpd/events")
        daemon.wait_connected("calm")
        for server in ODD:
            with suppress(Refused):
                client.call(server, "echo", {}, timeout=1)
            assert client.request("mcpd/server", server=server)["server"]["name"] == server
        for method in REQUESTS:
            client.request(f"mcpd/{method}")
        assert "\ufffd" in json.dumps(client.request("mcpd/config"), ensure_ascii=False)
        assert client.call("calm", "echo")["success"]
        seen: set[str] = set()
        while not seen >= {"calm", *ODD}:
            seen.add(client.next_notification()["params"]["event"]["server"])
        editor = McpClient(daemon, "2025-11-25", capabilities={})
        assert any(tool["name"] == "calm__echo" for tool in editor.request("tools/list")["tools"])
        editor.line.close()
    assert "Traceback" not in daemon.log
    assert "error in mcpd itself" not in daemon.log


def test_configuration_in_a_directory_whose_name_is_not_utf8(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6\xdfe"))
    place.mkdir()
    config = place / "config.json"
    config.write_text(json.dumps({"mcpServers": {"calm": fake()}}))
    with running(tmp_path, {}, "--config", str(config)) as daemon:
        daemon.wait_connected("calm")
        client = daemon.client()
        for method in REQUESTS:
            client.request(f"mcpd/{method}")
        assert client.request("mcpd/status")["config"]["path"].endswith("/gr\ufffd\ufffde/config.json")
        client.request("mcpd/server", server="calm")
        config.write_text("{")
        with pytest.raises(Refused, match=r"config\.json"):
            client.request("mcpd/reload")
        client.request("mcpd/status")
    assert "Traceback" not in daemon.log
    assert "error in mcpd itself" not in daemon.log
