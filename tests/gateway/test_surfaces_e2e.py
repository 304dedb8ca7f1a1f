"""What clients of several servers are listed, and how they find and call the rest, with the real daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Json, Refused, fake
from tests.gateway.mcp_client import LEGACY, MODERN, VERSIONS, McpClient

__all__ = ["start"]

Start = Any
SEARCH = ["find_tools", "describe_tool", "call_tool"]
MANY = 900
"""Tools whose list is too large for a host that does not search."""


def names(client: McpClient) -> list[str]:
    """Return what a client is listed; of mcpd's own tools, those that search."""
    found = [tool["name"] for tool in client.request("tools/list")["tools"]]
    return [name for name in found if name in SEARCH or "__" in name or name == "echo"]


def searching(daemon: Any, version: str = LEGACY[0], **more: Any) -> McpClient:
    return McpClient(daemon, version, client={"surface": "search"}, **more)


def failure(client: McpClient, tool: str, arguments: Json) -> str:
    result = client.request("tools/call", name=tool, arguments=arguments)
    assert result["isError"] is True
    return str(result["content"][0]["text"])


def test_client_is_listed_what_its_host_needs(start: Start) -> None:
    """A host that searches itself gets all tools, and so does a client that asks for them."""
    settings = {"profiles": {"quiet": {"surface": "search"}, "loud": {"surface": "full"}}}
    daemon = start({"srv": fake("--tools", str(MANY)), "few": fake()}, settings=settings)
    daemon.wait_connected("srv", "few")
    for version in MODERN, LEGACY[0]:
        assert names(McpClient(daemon, version, client={"name": "zed"})) == SEARCH
        every = names(McpClient(daemon, version, client={"name": "claude-code"}))
        assert len(every) > MANY
        assert (
            names(McpClient(daemon, version, client={"name": "claude-code", "surface": "search"})) == SEARCH
        )
        assert names(McpClient(daemon, version, client={"surface": "full"})) == every
        assert names(McpClient(daemon, version, profile="quiet")) == SEARCH
        assert names(McpClient(daemon, version, profile="loud")) == every
        assert names(McpClient(daemon, version, server="srv")) == ["echo"]
        assert names(searching(daemon, version, server="few")) == ["echo"]


@pytest.mark.parametrize("version", VERSIONS)
def test_tools_are_found_described_and_called(start: Start, version: str) -> None:
    """A call through `call_tool` is like any other: the server asks its client, and progress comes."""
    daemon = start({"one": fake("--tools", "12"), "two": fake()})
    daemon.wait_connected("one", "two")
    asked = {"message": "Go on?", "requestedSchema": {"type": "object", "properties": {}}}
    client = searching(daemon, version, answer=lambda *_: {"action": "accept", "content": {}})
    assert names(client) == SEARCH
    found = client.call("find_tools", {"query": "typed"})
    assert found == "one:\n- one__typed(n: integer)\ntwo:\n- two__typed(n: integer)"
    assert "Nothing fits" in client.call("find_tools", {"query": "zeppelin"})
    assert json.loads(client.call("describe_tool", {"name": "two__typed"}))["inputSchema"]["required"] == [
        "n"
    ]
    assert client.call("call_tool", {"name": "one__echo", "arguments": {"a": 1}}) == '{"a": 1}'
    assert client.call("call_tool", {"name": "one__echo", "arguments": '{"a": 1}'}) == '{"a": 1}'
    assert client.call("one__echo", {"a": 1}) == '{"a": 1}', "it may also call the tool itself"
    if version >= "2025-06-18":
        question = {"method": "elicitation/create", "params": asked}
        answer = client.call("call_tool", {"name": "two__ask", "arguments": question})
        assert "accept" in answer
        assert client.asked[-1][0] == "elicitation/create"
    client.request(
        "tools/call",
        name="call_tool",
        arguments={"name": "one__progress", "arguments": {"total": 2}},
        _meta={"progressToken": "p"},
    )
    assert client.wait_heard("notifications/progress")["params"]["progressToken"] == "p"
    records = daemon.client().request("mcpd/calls", limit=100)["calls"]
    assert {record["name"] for record in records} <= {"echo", "ask", "progress"}


def test_mistakes_are_answered_with_what_helps(start: Start) -> None:
    """The nearest names that the client may see, and what is wrong with the arguments."""
    rules = [{"servers": ["srv"], "tools": ["exact"], "decision": "deny"}]
    daemon = start({"srv": fake()}, settings={"policies": rules})
    daemon.wait_connected("srv")
    client = searching(daemon)
    assert "did you mean srv__echo" in failure(client, "call_tool", {"name": "echo"})
    assert "did you mean srv__echo" in failure(client, "describe_tool", {"name": "srv_ecko"})
    for text in (
        failure(client, "call_tool", {"name": "srv__exakt"}),
        failure(client, "describe_tool", {"name": "srv__exact"}),
        client.call("find_tools", {"query": "exact"}),
    ):
        assert "srv__exact" not in text.replace("tool 'srv__exact'", "")
    with pytest.raises(Refused, match="exact"):
        client.call("call_tool", {"name": "srv__exact"})
    assert "`query` is missing" in failure(client, "find_tools", {})
    assert "must be an object" in failure(client, "call_tool", {"name": "srv__echo", "arguments": [1]})
    with pytest.raises(Refused, match="no tool 'srv__ecko' here; did you mean srv__echo"):
        McpClient(daemon, LEGACY[0]).call("srv__ecko")


@pytest.mark.parametrize("version", VERSIONS)
def test_host_that_only_knows_tools_reads_resources_and_prompts(start: Start, version: str) -> None:
    """By tools, which other hosts are not listed; the server gets the requests of MCP."""
    daemon = start({"srv": fake("--capabilities", "tools,resources,prompts")})
    daemon.wait_connected("srv")
    mine = {"read_resource", "get_prompt"}
    others = McpClient(daemon, version, client={"name": "zed"}).request("tools/list")["tools"]
    assert not mine & {tool["name"] for tool in others}
    client = McpClient(daemon, version, client={"name": "opencode"})
    assert mine < {tool["name"] for tool in client.request("tools/list")["tools"]}
    assert client.call("read_resource").splitlines() == ["- fake://one", "- fake://{x}"]
    read = client.request("tools/call", name="read_resource", arguments={"uri": "fake://one"})
    assert read["content"] == [{"type": "resource", "resource": {"uri": "fake://one", "text": "one"}}]
    assert client.call("get_prompt").startswith("- srv__hello")
    assert client.call("get_prompt", {"name": "srv__hello"}) == "hello"
    assert "no prompt 'srv__helo'" in failure(client, "get_prompt", {"name": "srv__helo"})


def test_lists_are_the_same_after_each_start(start: Start) -> None:
    """A host's prompt cache begins with the list."""
    lists = []
    for _ in range(2):
        daemon = start({"b": fake("--tools", "20"), "a": fake("--at", "init", "block", '{"seconds": 0.3}')})
        daemon.wait_connected("a", "b")
        lists.append(
            [searching(daemon).request("tools/list"), McpClient(daemon, MODERN).request("tools/list")]
        )
        daemon.stop()
    assert json.dumps(lists[0]) == json.dumps(lists[1])
