"""Servers that deviate from the protocol as programs in the field do work, or the error names it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Json
from tests.gateway.mcp_client import McpClient

SERVER = """
import json, sys
deviation = json.loads(sys.argv[1])
for line in sys.stdin.buffer:
    if not line.startswith(b"{"):
        continue
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if key is None:
        continue
    answer = {"jsonrpc": "2.0", "id": key}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo":
                            {"name": "it", "version": "1"}}
    elif method == "tools/list":
        cursor = {"nextCursor": deviation["next"]} if "next" in deviation and not message["params"] else {}
        answer["result"] = {"tools": [{"name": "it", "inputSchema": {"type": "object"}}], **cursor}
        if not cursor and "next" in deviation:
            assert message["params"]["cursor"] == deviation["next"]
            answer["result"]["tools"][0]["name"] = "second"
    elif method == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": "hello"}]}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    answer.update(deviation.get("*", {}))
    if method == "tools/call":
        answer.update(deviation.get("call", {}))
    if method in deviation:
        answer["result"].update(deviation[method])
    if deviation.get("id") == "text":
        answer["id"] = str(key)
    text = json.dumps({name: value for name, value in answer.items() if value != "absent"}).encode()
    sys.stdout.buffer.write(deviation.get("frame", "%s\\n").encode("latin-1") % text)
    sys.stdout.flush()
"""

TOOL = {"name": "it"}
OBJECT = {"type": "object"}
CONTENT = [{"type": "text", "text": "hello"}]
WORKS: dict[str, Json] = {
    "error-null": {"*": {"error": None}},
    "error-empty": {"call": {"error": {}}},
    "every-member": {"call": {"error": None, "method": None, "params": None}},
    "result-null": {"initialize": {"instructions": None, "_meta": None}},
    "no-jsonrpc": {"*": {"jsonrpc": "absent"}},
    "text-id": {"id": "text"},
    "crlf": {"frame": "%s\r\n"},
    "bom": {"frame": "\xef\xbb\xbf%s\n"},
    "blank-lines": {"frame": "\n%s\n\n"},
    "sse": {"frame": "data: %s\n\n"},
    "array": {"frame": "[%s]\n"},
    "colors": {"frame": "\x1b[32m%s\x1b[0m\n"},
    "cursor-number": {"next": 7},
    "cursor-object": {"next": {"offset": 1}},
    "cursor-null": {"tools/list": {"nextCursor": None}},
    "schema-missing": {"tools/list": {"tools": [TOOL]}},
    "schema-null": {"tools/list": {"tools": [{**TOOL, "inputSchema": None}]}},
    "schema-empty": {"tools/list": {"tools": [{**TOOL, "inputSchema": {}}]}},
    "schema-nulls": {"tools/list": {"tools": [{**TOOL, "inputSchema": {**OBJECT, "properties": None}}]}},
    "tool-nulls": {
        "tools/list": {
            "tools": [{**TOOL, "title": None, "annotations": {"title": None, "readOnlyHint": True}}]
        }
    },
    "tool-broken": {"tools/list": {"tools": [None, "x", {"name": 5}, TOOL]}},
    "lists-null": {
        "initialize": {"capabilities": {"tools": {}, "prompts": {}, "resources": None}},
        "tools/list": {"tools": [TOOL], "nextCursor": None},
    },
    "result-nulls": {
        "tools/call": {"content": CONTENT, "isError": None, "structuredContent": None, "_meta": None}
    },
    "version-draft": {"initialize": {"protocolVersion": "2024-10-07"}},
    "info-missing": {"initialize": {"serverInfo": None}},
}
CALL_FAILS: dict[str, tuple[Json, str]] = {
    "error-text": ({"call": {"result": "absent", "error": "it broke"}}, "it broke"),
    "error-code": ({"call": {"result": "absent", "error": {"code": "E", "message": "it broke"}}}, "it broke"),
    "error-id": (
        {"call": {"id": None, "result": "absent", "error": {"code": 1, "message": "broke"}}},
        "broke",
    ),
    "nothing": ({"call": {"result": "absent"}}, "without result or error"),
}
NAMED: dict[str, tuple[Json, str]] = {
    "lsp": ({"frame": "Content-Length: 99\r\n\r\n%s"}, "Content-Length"),
    "no-newline": ({"frame": "%s"}, "line feed"),
    "version": ({"initialize": {"protocolVersion": None}}, "names no version"),
}


def test_deviations_are_accepted_or_named(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def definition(deviation: Json) -> Json:
        return {
            "command": sys.executable,
            "args": ["-I", "-S", str(script), json.dumps(deviation)],
            "era": "legacy",
            "restart": {"base": BOUND},
            "timeouts": {"connect": 10 if deviation == NAMED["no-newline"][0] else BOUND},
        }

    failing = {**CALL_FAILS, **NAMED}
    every = {**WORKS, **{name: deviation for name, (deviation, _) in failing.items()}}
    daemon = start({name: definition(deviation) for name, deviation in every.items()})
    daemon.wait_connected(*WORKS, *CALL_FAILS)
    client = McpClient(daemon, "2025-06-18")
    client.line.notifications.clear()
    found: dict[str, str] = {}
    for name in (*WORKS, *CALL_FAILS):
        key = client.send("tools/call", name=f"{name}__it", arguments={})
        while key not in client.line._answers:
            client._read()
        answer = client.line._answers.pop(key)
        assert "error" not in answer or isinstance(answer["error"]["code"], int)
        found[name] = (
            answer["error"]["message"] if "error" in answer else answer["result"]["content"][0]["text"]
        )
    assert {name: found[name] for name in WORKS} == dict.fromkeys(WORKS, "hello")
    for name, (_, expected) in CALL_FAILS.items():
        assert expected in found[name], name
    for name, (_, expected) in NAMED.items():
        status = daemon.wait_status(name, lambda status: status["last_error"] is not None)
        assert expected in status["last_error"]["message"], name
    tools = client.request("tools/list")["tools"]  # the client checks each against the schema
    assert {"cursor-number__second", "cursor-object__second"} <= {tool["name"] for tool in tools}


def test_requests_with_members_that_are_null_are_accepted(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    definition = {"command": sys.executable, "args": ["-I", "-S", str(script), "{}"], "era": "legacy"}
    daemon = start({"it": definition})
    daemon.wait_connected("it")
    client = McpClient(daemon, "2025-06-18")
    lenient: list[Json] = [
        {"method": "notifications/initialized", "id": None},
        {"method": "ping", "params": None, "result": None, "error": None},
        {"method": "tools/list", "params": None},
        {"method": "tools/list", "params": {"cursor": None, "_meta": None}},
        {"method": "tools/call", "params": {"name": "it__it", "arguments": {}, "_meta": None}},
        {"method": "tools/call", "params": {"name": "it__it", "_meta": {"progressToken": None}}},
    ]
    for key, message in enumerate(lenient):
        client.line.send_raw(json.dumps({"id": f"{key}", **message}).encode())
    for key in range(1, len(lenient)):
        client.wait(f"{key}")  # type: ignore[arg-type]  # the client's own ids are numbers
