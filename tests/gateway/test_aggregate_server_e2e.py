"""Several servers as one, with the real daemon: names, lists, routes, changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Refused, fake
from tests.gateway.mcp_client import MODERN, VERSIONS, McpClient

__all__ = ["start"]

Start = Any
EVERYTHING = ("--capabilities", "tools,resources,prompts,logging,completions")


def names(client: McpClient) -> list[str]:
    return [tool["name"] for tool in client.request("tools/list")["tools"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_aggregate_names_and_routes_tools_of_two_servers_in_every_revision(
    start: Start, version: str
) -> None:
    """Tools are named `server__tool` and marked with their server; a call reaches the right one."""
    daemon = start({"one": fake("--era", "modern", *EVERYTHING), "two": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("one", "two")
    client = McpClient(daemon, version)
    tools = client.request("tools/list")["tools"]
    assert [tool["name"] for tool in tools if tool["name"].endswith("__pid")] == ["one__pid", "two__pid"]
    assert {tool["description"].split("]")[0] for tool in tools} == {"[one", "[two"}
    pids = {server: client.call(f"{server}__pid") for server in ("one", "two")}
    assert pids == {server: str(daemon.status(server)["pid"]) for server in ("one", "two")}
    prompts = [prompt["name"] for prompt in client.request("prompts/list")["prompts"]]
    assert prompts == ["one__hello", "two__hello"]
    assert client.request("prompts/get", name="two__hello")["messages"]
    with pytest.raises(Refused, match="no tool 'pid' here") as refused:
        client.call("pid")
    assert refused.value.body["code"] == -32602


def test_merged_list_does_not_wait_for_a_hanging_server(start: Start, tmp_path: Path) -> None:
    """Clients get what is known, and are notified of the rest. A call of the server waits for it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)  # who opens one end waits for the other
    slow = fake()
    slow = {"command": "sh", "args": ["-c", f'cat {gate}; exec "$0" "$@"', slow["command"], *slow["args"]]}
    daemon = start({"slow": slow, "quick": fake()})
    daemon.wait_connected("quick")
    client = McpClient(daemon, "2025-11-25")
    assert client.hello["capabilities"]["tools"] == {"listChanged": True}
    assert not any(name.startswith("slow__") for name in names(client))
    with pytest.raises(Refused, match=r"'echo' here; .*still starting are not known: slow; try again soon"):
        client.call("echo")
    early = client.send("tools/call", name="slow__echo", arguments={})
    gate.write_text("")
    assert not client.wait(early).get("isError")
    client.wait_heard("notifications/tools/list_changed")
    daemon.wait_connected("slow")
    assert any(name.startswith("slow__") for name in names(client))


def test_tools_are_listed_after_a_restart_before_their_servers_are_connected(
    start: Start, tmp_path: Path
) -> None:
    """Editors ask once, when they start, and must not see an empty list because the daemon is starting,
    too. Calls wait for their server. Tools that the definition now excludes are not listed."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    peer = fake()
    slow = {"command": "sh", "args": ["-c", f'cat {gate}; exec "$0" "$@"', peer["command"], *peer["args"]]}
    before = start({"slow": slow})
    gate.write_text("")
    before.wait_connected("slow")
    known = set(names(McpClient(before, "2025-11-25")))
    assert {"slow__echo", "slow__pid"} <= known
    before.stop()

    daemon = start({"slow": {**slow, "excludeTools": ["pid"]}})
    client = McpClient(daemon, "2025-11-25")
    assert daemon.status("slow")["status"] == "pending"
    assert set(names(client)) == known - {"slow__pid"}
    with pytest.raises(Refused, match="no tool 'slow__pid' here"):
        client.call("slow__pid")
    call = client.send("tools/call", name="slow__echo", arguments={"a": 1})
    assert daemon.status("slow")["status"] == "pending"
    gate.write_text("")
    assert json.loads(client.wait(call)["content"][0]["text"]) == {"a": 1}


def test_disabled_server_disappears_and_clients_are_notified(start: Start) -> None:
    daemon = start({"one": fake(), "two": fake()})
    daemon.wait_connected("one", "two")
    legacy, modern = McpClient(daemon, "2025-06-18"), McpClient(daemon, MODERN)
    key = modern.send("subscriptions/listen", notifications={"toolsListChanged": True})
    acknowledged = modern.wait_heard("notifications/subscriptions/acknowledged")["params"]
    assert acknowledged["notifications"] == {"toolsListChanged": True}
    daemon.client().request("mcpd/disable", server="two")
    legacy.wait_heard("notifications/tools/list_changed")
    received = modern.wait_heard("notifications/tools/list_changed")
    assert received["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == key
    for client in (legacy, modern):
        assert {name.split("__")[0] for name in names(client)} == {"one"}
        with pytest.raises(Refused, match=r"two is disabled.*Nothing was sent.*mcpctl enable two"):
            client.call("two__pid")


def test_new_tool_is_announced_and_callable(start: Start) -> None:
    daemon = start({"one": fake()})
    daemon.wait_connected("one")
    client = McpClient(daemon, "2025-11-25")
    client.call("one__change")
    client.wait_heard("notifications/tools/list_changed")
    assert "one__extra-1" in names(client)
    assert client.call("one__extra-1") == "extra-1"
