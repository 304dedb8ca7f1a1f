"""Hostile schemas: nothing is fetched, nothing hangs, and what cannot be checked passes."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mcpd.gateway.schema_cost import BUDGET, SchemaTooComplex, ValidationCost
from mcpd.gateway.schema_validation import compile_schemas
from tests.e2e.conftest import start
from tests.e2e.harness import Refused, fake
from tests.faults.measure import stalls

__all__ = ["start"]

Start = Any
TWICE = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
DOUBLING = {"$ref": "#/$defs/d0", "$defs": {**TWICE, "d40": {"type": "string"}}}
TREE = {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}
SLOW = {"type": "object", "properties": {"a": {"items": {"pattern": "(a*)*\\1b"}}}}
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


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


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

    assert stalled.longest < 0.2  # an 11 MB list is decoded besides
    with pytest.raises(BlockingIOError):
        listening.accept()
    listening.close()


async def test_compiled_schema_reports_problems_with_their_path() -> None:
    """A sound schema accepts valid arguments."""
    tool = {
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "outputSchema": {"properties": {"deep": {"items": {"type": "string"}}}},
    }
    schemas = await compile_schemas(json.dumps(tool).encode())

    assert schemas.notes == ()
    assert schemas.check_arguments({"n": 1}) == []
    assert [str(each) for each in schemas.check_arguments({"n": "x"})] == [
        '"x" is not of type "integer" @ $.arguments.n'
    ]
    assert [each.path for each in schemas.check_arguments({})] == ["$.arguments"]
    assert [each.path for each in schemas.check_structured_content({"deep": ["a", 1]})] == [
        "$.structuredContent.deep[1]"
    ]
    assert len((await compile_schemas(b'{"inputSchema":{"items":false}}')).check_arguments([1] * 99)) == 10


@pytest.mark.parametrize("schema", [True, False, None, 5, [], "x"], ids=repr)
async def test_schema_that_is_not_an_object_is_skipped_with_a_note(schema: object) -> None:
    schemas = await compile_schemas(json.dumps({"inputSchema": schema}).encode())
    assert schemas.input is None
    assert schemas.notes


async def test_compiling_does_not_block_the_event_loop() -> None:
    """Measures the longest pause of another task while a schema of nearly 1 MiB is compiled."""
    wide = {
        "properties": {
            f"p{n}": {"properties": {f"q{m}": {"type": "string"} for m in range(5)}} for n in range(3000)
        }
    }
    data = json.dumps({"inputSchema": wide}).encode()
    for _ in range(10):  # a busy machine may hold up several attempts
        if await is_brief(data):
            return
    raise AssertionError("every attempt held up the loop")


async def is_brief(data: bytes) -> bool:
    """Whether another task can go on while it is compiled."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = trio.current_time()
            await trio.sleep(0.002)
            longest = max(longest, trio.current_time() - began - 0.002)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        began = trio.current_time()
        await compile_schemas(data)
        taken = trio.current_time() - began
        nursery.cancel_scope.cancel()
    return longest < max(0.15, taken / 2)  # on a busy machine everything takes longer, the pauses too


def test_schema_that_is_always_too_expensive_is_refused() -> None:
    """2^40 steps from forty lines."""
    with pytest.raises(SchemaTooComplex):
        ValidationCost(DOUBLING)


@pytest.mark.parametrize(
    ("schema", "instance", "allowed"),
    [
        ({}, {"a": [1] * 1000}, True),
        ({"$ref": "#"}, {}, True),
        (TREE, nested(5), True),
        (TREE, nested(40), False),
        (SLOW, {"a": ["x"] * 100}, True),
        (SLOW, {"a": ["x"] * 100_000}, False),
        ({"items": {"enum": ["x"] * 1000}}, ["x"] * 100_000, False),
        ({"$ref": "#/nowhere", "items": {"$ref": "x.json"}}, [[[[]]]], True),
        ({"prefixItems": [{}, {"items": {"type": "string"}}], "items": {"$ref": "#"}}, [1, ["x"]], True),
    ],
)
def test_validation_cost_decides_what_is_checked(schema: Any, instance: Any, allowed: bool) -> None:
    """Ordinary recursion (lists, trees, any JSON) is checked; work that multiplies with the depth is not."""
    assert ValidationCost(schema).allows(instance) is allowed


def test_ordinary_recursive_schemas_are_checked_for_any_instance_size() -> None:
    """A binary tree, and JSON itself: no place is visited twice."""
    tree = {"properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}}
    anything = {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#"}},
            {"type": "object", "additionalProperties": {"$ref": "#"}},
        ]
    }
    deep: Any = "leaf"
    for _ in range(50):
        deep = {"l": deep, "r": [deep]} if isinstance(deep, str) else {"l": deep}
    assert ValidationCost(tree).allows(deep)
    assert ValidationCost(anything).allows([[{"a": ["x"] * 10_000}]])
    assert not ValidationCost(anything).allows(["x"] * (BUDGET // 10))


def test_arguments_and_results_are_validated_end_to_end(start: Start) -> None:
    """Invalid arguments are not sent, and every problem is reported; an invalid result is a warning."""
    daemon = start(
        {"everything": {"command": sys.executable, "args": ["-m", "mcpd.testserver"]}, "fake": fake()}
    )
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
