"""Several servers as one, with the real daemon: names, lists, routes, changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Refused, fake
from tests.gateway.mcp_client import VERSIONS, McpClient

__all__ = ["start"]

Start = Any
EVERYTHING = ("--capabilities", "tools,resources,prompts,logging,completions")


def names(client: McpClient) -> list[str]:
    return [tool["name"] for tool in client.request("tools/list")["tools"]]


def test_aggregate_names_and_routes_tools_of_two_servers_in_every_revision(start: Start) -> None:
    """Tools are named `server__tool` and marked with their server; a call reaches the right one."""
    daemon = start({"one": fake("--era", "modern", *EVERYTHING), "two": fake("--era", "legacy", *EVERYTHING)})
    daemon.wait_connected("one", "two")
    for version in VERSIONS:
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
