"""Malformed results that mcpd's own tools read: the client gets an answer, and its connection stays."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start
from tests.e2e.harness import Refused
from tests.gateway.mcp_client import LEGACY, MODERN, McpClient

__all__ = ["start"]

SERVER = """
import json, sys
lists = {
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object", "required": ["a"]}}]},
    "resources/list": {"resources": [{"name": "r", "uri": "x://r"}]},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "x", "version": "1"},
    },
}
malformed = iter(json.loads(sys.argv[1]) * 3)
for request in map(json.loads, sys.stdin):
    if "id" in request:
        method = request["method"]
        own = method in ("tools/call", "resources/read", "prompts/get")
        result = next(malformed) if own else lists.get(method, {})
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
MALFORMED = [5, {"isError": True, "content": 5}, {"contents": 5}, {"messages": [{"role": "user"}, 5]}]
CALLS = [
    ("call_tool", {"name": "x__t", "arguments": {}}),
    ("read_resource", {"uri": "x://r"}),
    ("get_prompt", {"name": "x__p"}),
]


@pytest.mark.parametrize("version", [MODERN, LEGACY[0]])
def test_malformed_results_end_no_connection(start: Any, tmp_path: Path, version: str) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    arguments = [str(tmp_path / "server.py"), json.dumps(MALFORMED)]
    daemon = start({"x": {"command": sys.executable, "args": arguments}})
    daemon.wait_connected("x")
    client = McpClient(daemon, version, profile="*", capabilities={})
    for name, given in CALLS:
        for _ in MALFORMED:
            try:
                client.request("tools/call", name=name, arguments=given)
            except (Refused, AssertionError, AttributeError):  # what the server wrote may be passed on
                continue
    assert "x__t" in client.call("find_tools", {"query": "x"})
    assert "an error in mcpd itself" not in daemon.log
