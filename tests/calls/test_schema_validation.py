"""Hostile schemas: nothing is fetched, nothing hangs, and what cannot be checked passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from mcpd.calls.schema_cost import BUDGET, SchemaTooComplex, ValidationCost
from mcpd.calls.schema_validation import MAX_SCHEMA, ToolSchemas, compile_schemas

TWICE = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
DOUBLING = {"$ref": "#/$defs/d0", "$defs": {**TWICE, "d40": {"type": "string"}}}
TREE = {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}
SLOW = {"type": "object", "properties": {"a": {"items": {"pattern": "(a*)*\\1b"}}}}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


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


@pytest.mark.parametrize(
    ("execution", "required"),
    [
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({}, False),
        (5, False),
        (["taskSupport"], False),
        (None, False),
    ],
)
async def test_tool_may_require_a_task(execution: object, required: bool) -> None:
    tool = json.dumps({"execution": execution}).encode()
    assert (await compile_schemas(tool)).requires_task is required
    assert not (await compile_schemas(b"{}")).requires_task
    assert not (await compile_schemas(b'{"execution":1E+400}')).requires_task
    assert not ToolSchemas().requires_task


async def test_size_of_schemas_is_limited() -> None:
    def sized(size: int) -> bytes:
        body = b'{"title":"%b"}'
        return b'{"inputSchema":%b}' % (body % (b"x" * (size - len(body) + 2)))

    assert (await compile_schemas(sized(MAX_SCHEMA))).notes == ()
    assert "is larger than" in (await compile_schemas(sized(MAX_SCHEMA + 1))).notes[0]


async def test_pattern_that_backtracks_too_much_is_no_problem() -> None:
    """It is neither a match nor a mismatch; other problems are reported."""
    schema = {"properties": {"a": {"pattern": "(a*)*\\1b"}, "b": {"type": "integer"}}}
    schemas = await compile_schemas(json.dumps({"inputSchema": schema}).encode())
    found = schemas.check_arguments({"a": "a" * 40 + "!", "b": "x"})
    assert [problem.path for problem in found] == ["$.arguments.b"]


async def test_without_a_schema_everything_is_accepted() -> None:
    assert ToolSchemas().check_arguments({"a": 1}) == []
    tree = await compile_schemas(json.dumps({"inputSchema": TREE}).encode())
    assert tree.check_arguments(nested(60)) == [], "too expensive to check"


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread")])
async def test_lack_of_threads_is_noted(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(trio.to_thread, "run_sync", fail)
    assert "can't start new thread" in (await compile_schemas(b"{}")).notes[0]
