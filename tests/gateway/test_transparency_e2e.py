"""What mcpd does not know reaches the other side where only one peer can be meant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Json, Refused, in_flight
from tests.gateway.mcp_client import McpClient

__all__ = ["start"]

Start = Any
NEW = "2025-11-25"

SERVER = """
import json, sys
INFO = {"name": "own", "version": "7", "title": "Own", "websiteUrl": "https://x.example",
        "icons": [{"src": "https://x.example/i.png"}], "_meta": {"x.example/a": 1}}
declared, heard, waiting = {}, [], []
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, key, params = message.get("method"), message.get("id"), message.get("params", {})
    if method is None:
        heard.append(message.get("result") or message["error"]["message"])
        for key in waiting:
            send(id=key, result={"content": [{"type": "text", "text": json.dumps([declared, heard])}]})
        waiting.clear()
    elif key is None:
        heard.append(method)
        if method == "notifications/x.example/ask":
            send(id=params["ask"], method=params["ask"], params=params.get("params", {}))
    elif method == "initialize":
        declared = params["capabilities"]
        send(id=key, result={"protocolVersion": "2025-11-25", "serverInfo": INFO, "capabilities":
             {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}, "experimental": {"x": {}}}})
    elif method == "tools/list":
        send(id=key, result={"tools": [{"name": "it", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        send(method="notifications/x.example/during", params={"a": 1})
        if params["arguments"].get("ask"):
            waiting.append(key)
            asked = params["arguments"]
            send(id=asked["ask"], method=asked["ask"], params=asked.get("params", {}))
        elif "task" in params:
            task = {"taskId": "1", "status": "working", "ttl": 1000, "createdAt": "2026-01-01T00:00:00Z",
                    "lastUpdatedAt": "2026-01-01T00:00:00Z"}
            send(id=key, result={"task": task})
            send(method="notifications/tasks/status", params={**task, "status": "completed"})
        else:
            if params["arguments"].get("tell"):
                send(method="notifications/tasks/status", params={"taskId": "1", "status": "told"})
            send(id=key, result={"content": [{"type": "text", "text": json.dumps([declared, heard])}]})
    else:
        send(id=key, result={"did": method})
"""


@pytest.fixture
def definition(tmp_path: Path) -> Json:
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    return {"command": sys.executable, "args": ["-u", str(path)], "era": "legacy"}


def connect(daemon: Any, *, version: str = NEW, **more: Any) -> McpClient:
    client = McpClient(daemon, version, answer=lambda method, params: {"answers": method}, **more)
    client.check = False  # the messages are no part of MCP
    return client


def seen(client: McpClient, tool: str = "it", **arguments: Any) -> tuple[Json, list[Any]]:
    """Return the capabilities that the server was told, and what it has received."""
    declared, heard = json.loads(client.call(tool, arguments))
    return declared, heard


def test_unknown_messages_pass_between_a_client_and_its_server(start: Start, definition: Json) -> None:
    daemon = start({"it": definition})
    daemon.wait_connected("it")
    client = connect(daemon, server="it", version="2025-06-18", capabilities={})
    assert client.hello["capabilities"]["experimental"] == {"x": {}}
    assert client.request("x.example/do") == {"did": "x.example/do"}
    client.line.notify("notifications/x.example/note")
    client.line.notify("notifications/x.example/ask", ask="x.example/idle")
    while not client.asked:
        seen(client)
    assert client.wait_heard("notifications/x.example/during")["params"] == {"a": 1}
    _, heard = seen(client, ask="x.example/busy")
    assert [method for method, _ in client.asked] == ["x.example/idle", "x.example/busy"]
    assert heard == [
        "notifications/initialized",
        "notifications/x.example/note",
        "notifications/x.example/ask",
        {"answers": "x.example/idle"},
        {"answers": "x.example/busy"},
    ]


def test_unknown_request_is_refused_if_several_clients_may_be_meant(start: Start, definition: Json) -> None:
    daemon = start({"it": definition})
    daemon.wait_connected("it")
    client, other = connect(daemon, server="it"), connect(daemon)
    other.send("tools/call", name="it__it", arguments={"ask": "x.example/one"})
    in_flight(daemon, "it", 1)
    assert "does not offer x.example/two" in seen(client, ask="x.example/two")[1][-1]
    assert "x.example/two" not in [method for method, _ in client.asked]


def test_capabilities_reach_the_server_as_declared(start: Start, definition: Json) -> None:
    """The client's own process gets exactly its own, and may ask outside of calls. Others get the union."""
    daemon = start({"shared": definition, "own": {**definition, "share": "client"}})
    daemon.wait_connected("shared", "own")
    declared: Json = {"sampling": {"tools": {}}, "experimental": {"x": {"y": 1}}, "roots": {}}
    client = connect(daemon, capabilities=declared)
    assert seen(client, "shared__it")[0]["sampling"] == {"tools": {}, "context": {}}
    assert seen(client, "own__it")[0] == declared

    attached = connect(daemon, server="own", capabilities=declared)
    seen(attached)
    attached.line.notify("notifications/x.example/ask", ask="sampling/createMessage", params={"tools": []})
    while not attached.asked or attached.asked[-1][0] != "sampling/createMessage":
        seen(attached)
    assert attached.asked[-1][1] == {"tools": []}


def test_sampling_with_tools_reaches_a_client_without_them_as_plain(start: Start, definition: Json) -> None:
    daemon = start({"it": definition})
    daemon.wait_connected("it")
    params = {"messages": [], "maxTokens": 1, "tools": [], "toolChoice": {}}
    plain = {"messages": [], "maxTokens": 1}
    cases: list[tuple[Json, Json]] = [({}, plain), ({"tools": {}}, params)]
    for declared, expected in cases:
        client = connect(daemon, server="it", capabilities={"sampling": declared})
        seen(client, ask="sampling/createMessage", params=params)
        assert client.asked[0][1] == expected
        client.line.close()


def test_server_info_keeps_what_the_server_says(start: Start, definition: Json) -> None:
    daemon = start({"it": definition})
    daemon.wait_connected("it")
    for version in NEW, "2026-07-28":
        client = connect(daemon, server="it", version=version)
        hello = client.hello or client.request("server/discover")["_meta"]
        info = hello.get("serverInfo") or hello["io.modelcontextprotocol/serverInfo"]
        assert info["name"] == "mcpd"
        assert (info["title"], info["websiteUrl"]) == ("Own", "https://x.example")
        assert info["icons"] == [{"src": "https://x.example/i.png"}]
        assert info["_meta"] == {"x.example/a": 1}
    assert connect(daemon).hello["serverInfo"]["title"] == "mcpd"


def test_tasks_work_where_they_are_offered(start: Start, definition: Json) -> None:
    """The aggregate does not offer them, and runs such a call as any other."""
    daemon = start({"it": definition})
    daemon.wait_connected("it")
    client = connect(daemon, server="it")
    assert "tasks" in client.hello["capabilities"]
    assert client.request("tools/call", name="it", arguments={}, task={"ttl": 1})["task"]["taskId"] == "1"
    assert client.wait_heard("notifications/tasks/status")["params"]["taskId"] == "1"
    assert client.request("tasks/get", taskId="1") == {"did": "tasks/get"}
    other = connect(daemon, server="it")
    other.request("tools/call", name="it", arguments={"tell": True})
    assert client.wait_heard("notifications/tasks/status")["params"]["status"] == "told"
    assert "notifications/tasks/status" not in [each["method"] for each in other.heard]
    client.line.close()

    client = connect(daemon)
    assert "tasks" not in client.hello["capabilities"]
    assert "content" in client.request("tools/call", name="it__it", arguments={}, task={"ttl": 1})
    with pytest.raises(Refused):
        client.request("tasks/get", taskId="1")
