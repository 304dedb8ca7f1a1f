"""Hostile schemas and invalid arguments, with the real daemon."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.calls.test_validation import DOUBLING, SLOW, TREE, nested
from tests.e2e.conftest import start
from tests.faults.measure import stalls
from tests.stopwatch import within

__all__ = ["start"]

Start = Any
SERVER = """
import json, sys
tools = json.load(open(sys.argv[1]))
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}},
        "tools/list": {"tools": tools},
        "tools/call": {"content": [], "structuredContent": asked["params"].get("arguments")},
    }.get(asked["method"])
    body = {"result": answer} if answer is not None else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""


def test_hostile_schemas_fetch_nothing_and_block_nobody(start: Start, tmp_path: Path) -> None:
    """References to files and URLs, regular expressions, 10 MB, recursion, years of work."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"
    target = tmp_path / "local.json"
    target.write_text('{"type": "string"}')
    schemas: dict[str, tuple[Any, Any]] = {
        "http": ({"properties": {"a": {"$ref": url}}}, {"a": 1}),
        "id": ({"$id": url, "properties": {"a": {"$ref": "other.json"}}}, {"a": 1}),
        "dialect": ({"$schema": url}, {"a": 1}),
        "file": ({"properties": {"a": {"$ref": target.as_uri()}}}, {"a": 1}),
        "regex": (SLOW, {"a": ["a" * 40 + "!"] * 200}),
        "linear": ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 30}),
        "huge": ({"description": "x" * 10_000_000}, {"a": 1}),
        "itself": ({"$ref": "#"}, {"a": 1}),
        "around": ({"allOf": [{"$ref": "#"}], "properties": {"a": {"$ref": "#"}}}, nested(30)),
        "doubling": ({"properties": {"a": DOUBLING}}, {"a": "x"}),
        "tree": (TREE, nested(60)),
        "deep": (nested(900), {"a": 1}),
        "wrong": ({"type": 5}, {"a": 1}),
    }
    tools = [
        {
            "name": name,
            "inputSchema": {"type": "object", **schema},
            "outputSchema": {"type": "object", **schema},
        }
        for name, (schema, _) in schemas.items()
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    (tmp_path / "server.py").write_text(SERVER)
    server = {"command": sys.executable, "args": [str(tmp_path / "server.py"), str(tmp_path / "tools.json")]}
    daemon = start({"hostile": {**server, "era": "legacy"}})
    daemon.wait_connected("hostile")
    client = daemon.client()
    with stalls(daemon) as stalled:
        for name, (_, arguments) in schemas.items():
            result = client.call("hostile", name, arguments)
            assert result["success"], name
            assert result["data"] == arguments

    assert within(stalled.longest, 0.2)  # an 11 MB list is decoded besides
    with pytest.raises(BlockingIOError):
        listening.accept()
    listening.close()
