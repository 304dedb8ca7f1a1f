"""Hostile schemas and invalid arguments, with the real daemon."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcpd.supervision.catalog import MAX_ENTRIES
from tests.calls.test_validation import DOUBLING, HOSTILE, SLOW, TREE, nested
from tests.e2e.conftest import start
from tests.e2e.harness import Refused, children, fake, wait_until
from tests.example_server import TEST_SERVER
from tests.faults.bystander import resident, undisturbed
from tests.faults.measure import peak_memory, stalls
from tests.processes import alive
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


def test_expensive_schemas_disturb_nobody(start: Start, tmp_path: Path) -> None:
    """Ten times the patterns that once stopped the daemon for 14 s and took 2.5 GB, and the like.

    They are compiled in a process of its own, which ends with the daemon at the latest.
    """
    schemas = {name: schema for name, (schema, _) in HOSTILE.items()}
    tools = [{"name": name, "inputSchema": {**schema, "type": "object"}} for name, schema in schemas.items()]
    count = MAX_ENTRIES - len(tools)
    tools += [
        {"name": f"tool-{n}", "inputSchema": {"type": "object", "required": [f"a{n}"]}} for n in range(count)
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    (tmp_path / "server.py").write_text(SERVER)
    server = {"command": sys.executable, "args": [str(tmp_path / "server.py"), str(tmp_path / "tools.json")]}
    daemon = start({"hostile": {**server, "era": "legacy"}, "other": fake()})
    daemon.wait_connected("hostile", "other")
    client = daemon.client()
    client.call("other", "echo")
    before = resident(daemon.pid)
    with undisturbed(daemon, "other", slowest=0.1), peak_memory(daemon.pid) as peak:
        for name, (_, arguments) in HOSTILE.items():
            small = arguments if len(json.dumps(arguments)) < 100_000 else {}
            for _ in range(2):
                with suppress(Refused):
                    assert client.call("hostile", name, small)["success"]
        refused = client.call("hostile", "as large as possible")
        for number in range(0, count, 100):
            with pytest.raises(Refused, match=f"a{number}"):
                client.call("hostile", f"tool-{number}")
    assert any("not checked against" in warning for warning in refused["warnings"])
    assert peak.bytes - before < 100 * 1024 * 1024
    wait_until(
        lambda: resident(daemon.pid) - before < 30 * 1024 * 1024, lambda: "the memory is not given back"
    )
    own = children(daemon.pid)
    assert daemon.stop() == 0
    wait_until(lambda: not any(map(alive, own)), lambda: f"left: {own}")


def test_arguments_and_results_are_validated_end_to_end(start: Start) -> None:
    """Invalid arguments are not sent, and every problem is reported; an invalid result is a warning."""
    daemon = start({"everything": {"command": sys.executable, "args": [TEST_SERVER]}, "fake": fake()})
    daemon.wait_connected("everything", "fake")
    client = daemon.client()
    with pytest.raises(Refused) as refused:
        client.call("everything", "add", {"a": "x"})
    assert refused.value.code == "invalid_arguments"
    assert len(refused.value.body["data"]["problems"]) == 2
    result = client.call("fake", "bad_output")
    assert result["success"]
    assert any(
        "outputSchema" in warning and "$.structuredContent.n" in warning for warning in result["warnings"]
    )
