"""Every client revision with every server revision; each frame is valid in its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from tests.e2e import harness
from tests.e2e.harness import Daemon, Json, fake, wait_until
from tests.gateway.mcp_client import MODERN, VERSIONS, McpClient

FORM: Json = {
    "message": "Your name?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
EVERYTHING = ("--capabilities", "tools,resources,prompts,logging,completions")


def speaking(version: str) -> Json:
    if version == MODERN:
        return fake("--era", "modern", *EVERYTHING)
    return fake("--era", "legacy", "--versions", version, *EVERYTHING)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon with a server of each revision, named by it; the tests do not disturb each other."""
    servers = {version: speaking(version) for version in VERSIONS}
    with harness.running(tmp_path_factory.mktemp("matrix"), servers) as running:
        running.wait_connected(*VERSIONS)
        yield running


@pytest.mark.parametrize(("client", "server"), [*itertools.product(VERSIONS, VERSIONS)])
def test_every_client_revision_works_with_every_server_revision(
    daemon: Daemon, client: str, server: str
) -> None:
    """Everything sent to the client is valid in its own revision."""
    assert daemon.status(server)["protocol_version"] == server
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    mcp = McpClient(daemon, client, server=server, answer=lambda method, params: accepted)

    assert "echo" in [tool["name"] for tool in mcp.request("tools/list")["tools"]]
    assert mcp.request("resources/read", uri="fake://one")["contents"][0]["text"] == "one"
    assert mcp.request("prompts/get", name="hello")["messages"]
    assert json.loads(mcp.call("echo", {"a": [1, 2.5, "ü"]})) == {"a": [1, 2.5, "ü"]}

    steps = {"_meta": {"progressToken": "tok-1"}}
    key = mcp.send("tools/call", name="progress", arguments={"total": 0.3}, **steps)
    mcp.wait(key)
    told = [m["params"] for m in mcp.heard if m["method"] == "notifications/progress"]
    assert {each["progressToken"] for each in told} == {"tok-1"}
    assert [each["progress"] for each in told] == sorted(each["progress"] for each in told)

    dropped = mcp.send("tools/call", name="drop", arguments={})
    wait_until(lambda: daemon.status(server)["in_flight"] == 1, lambda: "it was not sent")
    mcp.line.notify("notifications/cancelled", requestId=dropped, reason="changed my mind")
    wait_until(lambda: daemon.status(server)["in_flight"] == 0, lambda: "it was not cancelled")
    assert json.loads(mcp.call("counts"))["cancelled"]

    if client >= "2025-06-18":  # before that there was no elicitation
        answer = json.loads(mcp.call("ask", {"method": "elicitation/create", "params": FORM}))
        assert answer["result"] == accepted
