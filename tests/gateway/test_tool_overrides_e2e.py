"""Tools that a definition changes (`tools`), with the real daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Refused, fake, wait_until
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient

__all__ = ["start"]

Start = Any
CHANGES = {
    "typed": {
        "name": "answer",
        "description": "Gives the answer",
        "arguments": {"n": {"value": 42}},
        "alwaysLoad": True,
    },
    "echo": {"arguments": {"secret": {"hide": True}}},
    "gone": {"name": "x"},
    "pid": {"name": "echo"},
}


@pytest.mark.parametrize("version", [MODERN, LEGACY[0]])
def test_clients_see_changed_tools_and_the_server_its_own(start: Start, version: str) -> None:
    """The old name is unknown to all clients, and a hidden argument does not reach the server."""
    daemon = start({"srv": fake(tools=CHANGES)})
    daemon.wait_connected("srv")
    for client, prefix in (
        (McpClient(daemon, version), "srv__"),
        (McpClient(daemon, version, server="srv"), ""),
    ):
        tools = {tool["name"]: tool for tool in client.request("tools/list")["tools"]}
        changed = tools[f"{prefix}answer"]
        assert changed["inputSchema"] == {"type": "object", "properties": {}, "required": []}
        assert changed["description"].endswith("Gives the answer")
        assert changed["_meta"] == {"anthropic/alwaysLoad": True}
        assert f"{prefix}typed" not in tools
        for given in {}, {"n": 7}:
            assert json.loads(client.call(f"{prefix}answer", given)) == {"n": 42}
        assert json.loads(client.call(f"{prefix}echo", {"a": 1, "secret": 2})) == {"a": 1}
        with pytest.raises(Refused):
            client.call(f"{prefix}typed", {"n": 7})
    search = McpClient(daemon, version, client={"surface": "search"})
    listed = [tool["name"] for tool in search.request("tools/list")["tools"]]
    assert "srv__answer" in listed, "it says that it must not be deferred"
    control = daemon.client()
    assert control.call("srv", "answer")["output"] == '{"n": 42}'
    with pytest.raises(Refused, match="typed"):
        control.call("srv", "typed", {"n": 7})


def test_changes_are_checked_against_the_schema(start: Start) -> None:
    """The warnings are in the status of the server, and change with the definition."""
    daemon = start({"srv": fake(tools={**CHANGES, "typed": {"arguments": {"n": {"hide": True}, "m": {}}}})})
    daemon.wait_connected("srv")
    found = "\n".join(daemon.status("srv")["warnings"])
    for warning in (
        "'gone', which the server does not provide",
        "'pid' the name of another tool",
        "'typed': 'n' is required",
        "'typed': it has no argument 'm'",
        "'echo': it has no argument 'secret'",
    ):
        assert warning in found
    assert "`tools` changes 'gone'" in daemon.mcpctl("why", "srv").stdout
    document = json.loads(daemon.config.read_text())
    document["mcpServers"]["srv"]["tools"] = {"typed": {"arguments": {"n": {"value": "x"}}}}
    daemon.config.write_text(json.dumps(document))
    wait_until(
        lambda: "is no integer" in str(daemon.status("srv").get("warnings")),
        lambda: f"no warning: {daemon.status('srv')}",
    )
