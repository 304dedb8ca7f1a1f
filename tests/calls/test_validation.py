"""Hostile schemas: nothing is fetched, nothing stalls, memory is bounded; what cannot be checked passes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio
from msgspec import Raw

from mcpd.calls import schema_checker as checker_module
from mcpd.calls.stages.validation import MAX_CHECKED, MAX_SCHEMA, Findings, _check_structured, read_schemas
from tests.stopwatch import affordable

TWICE = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
DOUBLING = {"$ref": "#/$defs/d0", "$defs": {**TWICE, "d40": {"type": "string"}}}
TREE = {"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}
SLOW = {"type": "object", "properties": {"a": {"items": {"pattern": "(a*)*\\1b"}}}}
LARGE = "[\\p{L}\\p{N}]{180}"
"""A pattern of 18 MB that takes 50 ms to compile."""
OK = Findings()


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than the daemon does, because tests also run on a busy machine."""
    monkeypatch.setattr(checker_module, "_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(checker_module, "_CHECK_SECONDS", 60.0)


async def check_arguments(tool: bytes, arguments: bytes | Raw) -> Findings:
    schema, _ = read_schemas(tool)
    return OK if schema is None else await schema.check("s", arguments)


async def check_result(tool: bytes, result: bytes | Raw) -> Findings:
    _, schema = read_schemas(tool)
    return OK if schema is None else await _check_structured("s", schema, result)


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


def with_schemas(schema: object, output: object = None) -> bytes:
    return encode({"inputSchema": schema} | ({} if output is None else {"outputSchema": output}))


async def test_problems_are_reported_with_their_path() -> None:
    tool = with_schemas(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        {"properties": {"deep": {"items": {"type": "string"}}}},
    )
    assert await check_arguments(tool, b'{"n":1}') == OK
    findings = await check_arguments(tool, b'{"n":"x"}')
    assert [str(each) for each in findings.problems] == ['"x" is not of type "integer" @ $.arguments.n']
    assert [each.path for each in (await check_arguments(tool, b"{}")).problems] == ["$.arguments"]
    findings = await check_result(tool, encode({"structuredContent": {"deep": ["a", 1]}}))
    assert [each.path for each in findings.problems] == ["$.structuredContent.deep[1]"]


def many(pattern: str, count: int) -> dict[str, Any]:
    return {"properties": {f"p{n}": {"pattern": f"{pattern}{n}"} for n in range(count)}}


HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "the attack": (many(LARGE, 250), {"p0": "x"}),
    "as large as possible": (many(LARGE, 18_000), {"p0": "x"}),
    "enum": ({"enum": [f"v{n}" for n in range(90_000)]}, {}),
    "contradictions": ({"additionalProperties": {"allOf": [False] * 900}}, {str(n): n for n in range(5000)}),
    "doubling": (DOUBLING, {"a": 1}),
    "tree": (TREE, nested(60)),
    "backtracking": (SLOW, {"a": ["a" * 40 + "!"] * 20_000}),
    "states": ({"additionalProperties": {"pattern": "[ab]*a[ab]{60}c$"}}, {"a": "ab" * 400_000}),
    "many problems": ({"additionalProperties": {"items": {"type": "integer"}}}, {"a": ["x"] * 200_000}),
}


@pytest.mark.parametrize(("schema", "arguments"), HOSTILE.values(), ids=HOSTILE.keys())
async def test_nothing_holds_the_event_loop(schema: dict[str, Any], arguments: Any) -> None:
    """No turn of the loop takes 20 ms of CPU time.

    A turn is measured several times, because a busy machine can make a single one slow.
    """
    tool = encode({"inputSchema": schema})
    assert len(tool) < 2 * MAX_SCHEMA
    turns = [await longest_turn(tool, encode(arguments)) for _ in range(3)]
    assert affordable(min(turns), 0.02), turns


async def longest_turn(tool: bytes, value: bytes) -> float:
    """Return the longest CPU time between two turns of another task, while a tool is used."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await trio.sleep(0.001)
            longest = max(longest, time.thread_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        await check_arguments(tool, value)
        await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    return longest


async def test_size_of_schemas_is_limited() -> None:
    """A tool of many megabytes is not even read."""

    def sized(size: int) -> bytes:
        body = b'{"title":"%b"}'
        return b'{"inputSchema":%b}' % (body % (b"x" * (size - len(body) + 2)))

    assert await check_arguments(sized(MAX_SCHEMA), b"{}") == OK
    assert "is larger than" in (await check_arguments(sized(MAX_SCHEMA + 1), b"{}")).note
    assert (
        "is larger than" in (await check_arguments(b'{"title":"%b"}' % (b"x" * 2 * MAX_SCHEMA), b"{}")).note
    )


async def test_size_of_checked_values_is_limited() -> None:
    def sized(body: bytes, size: int) -> Raw:
        return Raw(body % (b"x" * (size - len(body) + 2)))

    integer = {"properties": {"n": {"type": "integer"}}}
    tool = with_schemas(integer, integer)
    arguments, result = b'{"n":"%b"}', b'{"structuredContent":{"n":"%b"}}'
    assert (await check_arguments(tool, sized(arguments, MAX_CHECKED))).problems
    assert (await check_result(tool, sized(result, MAX_CHECKED))).problems
    for findings in (
        await check_arguments(tool, sized(arguments, MAX_CHECKED + 1)),
        await check_result(tool, sized(result, MAX_CHECKED + 1)),
    ):
        assert f"over {MAX_CHECKED} bytes" in findings.note
        assert findings.problems == ()


@pytest.mark.parametrize("bad", [b"1E+400", b"[1"])
async def test_what_cannot_be_read_is_noted(bad: bytes) -> None:
    findings = await check_arguments(with_schemas({"type": "object"}), bad)
    assert findings.problems == ()
    assert findings.note.startswith("the arguments were not checked against the tool's inputSchema: ")


async def test_failed_result_is_not_checked() -> None:
    tool = with_schemas({}, {"type": "object"})
    assert await check_result(tool, b'{"isError": true}') == OK
    for result in (b'{"isError": false}', b"{}"):
        findings = await check_result(tool, result)
        assert [problem.path for problem in findings.problems] == ["$.structuredContent"]


async def test_without_a_schema_everything_is_accepted() -> None:
    assert await check_arguments(b"{}", b'{"a":1}') == OK
    assert await check_result(b"{}", b'{"structuredContent":1}') == OK
