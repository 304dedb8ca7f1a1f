"""Tags on the real product: lists, profiles, policies and figures."""

from __future__ import annotations

import json
import sys

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import Json, Refused, wait_until
from tests.example_server import TEST_SERVER
from tests.gateway.mcp_client import McpClient

SERVER: Json = {"command": sys.executable, "args": [TEST_SERVER]}
TAGGED: Json = {**SERVER, "tags": ["work"], "toolTags": {"f*": ["dangerous"], "echo": ["text"]}}


def names(tools: Json) -> set[str]:
    return {tool["name"] for tool in tools["tools"]}


def test_tags_select_in_lists_profiles_policies_and_figures(start: Start) -> None:
    profiles = {"text": {"tags": ["text"]}, "work": {"tags": ["w*"]}}
    policies = [{"decision": "deny", "tags": ["dangerous"], "reason": "never"}]
    daemon = start({"one": TAGGED, "two": SERVER}, settings={"profiles": profiles, "policies": policies})
    daemon.wait_connected("one", "two")
    control = daemon.client()
    tags = {
        (tool["server"], tool["name"]): tool.get("tags") for tool in control.request("mcpd/tools")["tools"]
    }
    assert tags["one", "echo"] == ["work", "text"]
    assert tags["one", "add"] == ["work"]
    assert tags["two", "echo"] is None
    assert ("one", "fail") not in tags, "denied by its tag"
    with pytest.raises(Refused, match=r"policies\[0\] denies it \(never\)"):
        control.call("one", "fail")
    assert control.call("two", "fail")["success"] is False, "another server's tool has no tag"
    text = McpClient(daemon, "2025-11-25", profile="text")
    assert names(text.request("tools/list")) == {"one__echo"}
    with pytest.raises(Refused):
        text.call("one__add", {"a": 1, "b": 1})
    work = McpClient(daemon, "2025-11-25", profile="work")
    assert names(work.request("tools/list")) >= {"one__echo", "one__add"}
    assert not any(name.startswith("two") for name in names(work.request("tools/list")))
    assert len(work.request("prompts/list")["prompts"]) == 1
    assert text.call("one__echo", {"text": "a"}) == "a"
    (stats,) = control.request("mcpd/stats", server="one")["servers"]
    assert {tool["tool"]: tool["tags"] for tool in stats["tools"]}["echo"] == ["work", "text"]
    document = json.loads(daemon.config.read_text())
    document["mcpServers"]["one"]["toolTags"] = {"add": ["text"]}
    daemon.config.write_text(json.dumps(document))
    control.request("mcpd/reload")
    wait_until(lambda: names(text.request("tools/list")) == {"one__add"}, lambda: "changed tags do not apply")
