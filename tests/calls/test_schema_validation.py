"""Hostile schemas: nothing is fetched, nothing stalls, memory is bounded; what cannot be checked passes."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
import trio
from msgspec import Raw

from mcpd.calls import schema_validation
from mcpd.calls.schema_validation import (
    MAX_CHECKED,
    MAX_SCHEMA,
    Findings,
    ToolSchemas,
    compile_schemas,
)
from mcpd.support import schema_checker as checker_module
from mcpd.support.schema_checker import Answer, SchemaChecker, schema_checker
from tests.stopwatch import within

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
    monkeypatch.setattr(schema_validation, "_validators", schema_validation._Validators())


async def compiled(schema: object, output: object = None) -> ToolSchemas:
    tool = {"inputSchema": schema} | ({} if output is None else {"outputSchema": output})
    return await compile_schemas(json.dumps(tool).encode())


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


async def test_compiled_schema_reports_problems_with_their_path() -> None:
    """A sound schema accepts valid arguments."""
    schemas = await compiled(
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        {"properties": {"deep": {"items": {"type": "string"}}}},
    )

    assert schemas.notes == ()
    assert schemas.check_arguments_now(encode({"n": 1})) == OK
    findings = schemas.check_arguments_now(encode({"n": "x"}))
    assert findings is not None
    assert [str(each) for each in findings.problems] == ['"x" is not of type "integer" @ $.arguments.n']
    assert [each.path for each in (await schemas.check_arguments(b"{}")).problems] == ["$.arguments"]
    findings = schemas.check_result_now(encode({"structuredContent": {"deep": ["a", 1]}}))
    assert findings is not None
    assert [each.path for each in findings.problems] == ["$.structuredContent.deep[1]"]
    many = (await compiled({"items": False})).check_arguments_now(encode([1] * 20))
    assert many is not None
    assert len(many.problems) == 10


async def test_no_process_is_started_for_ordinary_schemas() -> None:
    """Nor for the values that tools usually get."""
    schemas = await compiled(
        {
            "type": "object",
            "properties": {
                "id": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
                "since": {"pattern": "^\\d{4}-\\d{2}-\\d{2}(T\\d{2}:\\d{2}:\\d{2}(\\.\\d+)?)?$"},
                "text": {"type": "string"},
                "kind": {"enum": [f"kind-{n}" for n in range(100)]},
                **{f"p{n}": {"type": ["string", "null"], "description": "x" * 300} for n in range(100)},
            },
            "required": ["id"],
        }
    )
    arguments = {"id": "x", "since": "2026-01-01", "text": "x" * 200, "kind": "kind-99"}
    findings = schemas.check_arguments_now(encode(arguments))
    assert findings is not None
    assert [problem.path for problem in findings.problems] == ["$.arguments.id"]
    assert schema_checker().pid is None


@pytest.mark.parametrize("schema", [True, False, None, 5, [], "x"], ids=repr)
async def test_schema_that_is_not_an_object_is_skipped_with_a_note(schema: object) -> None:
    schemas = await compiled(schema)
    assert schemas.input is None
    assert schemas.notes


def wide(properties: int) -> dict[str, Any]:
    return {
        "properties": {
            f"p{n}": {"properties": {f"q{m}": {"type": "string"} for m in range(5)}}
            for n in range(properties)
        }
    }


def many(pattern: str, count: int) -> dict[str, Any]:
    return {"properties": {f"p{n}": {"pattern": f"{pattern}{n}"} for n in range(count)}}


HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "the attack": (many(LARGE, 250), {"p0": "x"}),
    "ten times the attack": (many(LARGE, 2500), {"p0": "x"}),
    "as large as possible": (many(LARGE, 18_000), {"p0": "x"}),
    "sets": (many("\\s\\S" * 20, 1000), {"p0": "x"}),
    "many patterns": (many("a", 30_000), {"p0": "x"}),
    "many properties": (wide(3000), {"p0": {"q0": 1}}),
    "enum": ({"enum": [f"v{n}" for n in range(90_000)]}, {}),
    "subschemas": ({"allOf": [{}] * 250_000}, {}),
    "contradictions": ({"additionalProperties": {"allOf": [False] * 900}}, {str(n): n for n in range(5000)}),
    "nested allOf": (json.loads('{"allOf":[' * 120 + "{}" + "]}" * 120), {}),
    "nested not": (json.loads('{"not":' * 450 + "{}" + "}" * 450), {}),
    "doubling": (DOUBLING, {"a": 1}),
    "tree": (TREE, nested(60)),
    "backtracking": (SLOW, {"a": ["a" * 40 + "!"] * 20_000}),
    "lookahead": ({"additionalProperties": {"pattern": "(?=.*x)(a|b)*c"}}, {"a": "ab" * 400_000}),
    "states": ({"additionalProperties": {"pattern": "[ab]*a[ab]{60}c$"}}, {"a": "ab" * 400_000}),
    "many values": ({"additionalProperties": {"items": {"type": "integer"}}}, {"a": [0] * 400_000}),
    "many problems": ({"additionalProperties": {"items": {"type": "integer"}}}, {"a": ["x"] * 200_000}),
    "empty values": ({"additionalProperties": {"items": {"items": {}}}}, {"a": [[]] * 250_000}),
    "a few thousand problems": ({"additionalProperties": False}, {str(n): n for n in range(3000)}),
}


@pytest.mark.parametrize(("schema", "arguments"), HOSTILE.values(), ids=HOSTILE.keys())
async def test_nothing_holds_the_event_loop(schema: dict[str, Any], arguments: Any) -> None:
    """No turn of the loop takes 20 ms of CPU time, and the memory stays small.

    A turn is measured several times, because a busy machine can make a single one slow.
    """
    tool = encode({"inputSchema": schema, "outputSchema": schema})
    value, result = encode(arguments), encode({"content": [], "structuredContent": arguments})
    assert len(tool) < 3 * MAX_SCHEMA
    before = resident()
    turns = [await longest_turn(tool, value, result) for _ in range(3)]
    assert within(min(turns), 0.02), turns
    assert resident() - before < 20 * 1024 * 1024


async def longest_turn(tool: bytes, value: bytes, result: bytes) -> float:
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
        schemas = await compile_schemas(tool)
        await trio.sleep(0.002)
        await schemas.check_arguments(value)
        await trio.sleep(0.002)
        await schemas.check_result(result)
        await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    return longest


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


async def test_expensive_schemas_are_checked_in_another_process() -> None:
    """Also large values of cheap ones."""
    schemas = await compiled(many(LARGE, 2), wide(3000))
    assert schemas.notes == ()
    assert schemas.check_arguments_now(b'{"p1":"x"}') is None
    assert schemas.check_result_now(b'{"structuredContent":{"p9":{"q4":1}}}') is None
    findings = await schemas.check_arguments(b'{"p1":"x"}')
    assert [problem.path for problem in findings.problems] == ["$.arguments.p1"]
    findings = await schemas.check_result(b'{"structuredContent":{"p9":{"q4":1}}}')
    assert [problem.path for problem in findings.problems] == ["$.structuredContent.p9.q4"]

    cheap = await compiled({"properties": {"n": {"items": {"type": "integer"}}}})
    large = encode({"n": [1] * 50_000 + ["x"]})
    assert cheap.check_arguments_now(large) is None
    findings = await cheap.check_arguments(large)
    assert [problem.path for problem in findings.problems] == ["$.arguments.n[50000]"]


async def test_refused_schema_is_noted_and_accepts_everything() -> None:
    schemas = await compiled(many(LARGE, 250))
    (note,) = schemas.notes
    assert note.startswith(
        "its inputSchema cannot be used and is not checked here: compiling it took more than"
    )
    assert schemas.check_arguments_now(b'{"p0":1}') == OK


async def test_check_that_is_ended_is_noted() -> None:
    schemas = await compiled(DOUBLING)
    findings = await schemas.check_arguments(b"{}")
    assert findings.problems == ()
    assert findings.note.startswith(
        "the arguments were not checked against the tool's inputSchema: checking a value against it took more"
    )


async def test_busy_process_does_not_refuse_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled with the first check instead."""
    answers = [Answer(failure="64 other checks are waiting"), Answer((("", "no"),))]

    async def check(self: SchemaChecker, digest: bytes, schema: bytes, value: bytes) -> Answer:
        return answers.pop(0)

    monkeypatch.setattr(SchemaChecker, "check", check)
    schemas = await compiled(TREE)
    assert schemas.notes == ()
    assert [str(problem) for problem in (await schemas.check_arguments(b"{}")).problems] == [
        "no @ $.arguments"
    ]


async def test_validators_are_bounded_by_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those used last are kept; the others are compiled again when they are needed."""
    validators = schema_validation._validators
    monkeypatch.setattr(schema_validation, "_MEMORY_OF_ALL", 40_000)
    first = await compiled({"const": 0})
    for number in range(1, 100):
        assert (await compiled({"const": number, "title": "x" * 300})).input is not None
        assert first.check_arguments_now(b"0") == OK
    assert validators._memory <= 40_000
    assert 5 < len(validators._kept) < 50
    assert sum(memory for _, memory in validators._kept.values()) == validators._memory
    assert first.input is not None
    assert first.input.digest in validators._kept
    validators._kept.clear()
    assert first.check_arguments_now(b"0") == OK
    findings = first.check_arguments_now(b"1")
    assert findings is not None
    assert findings.problems


async def test_ten_thousand_tools_stay_small() -> None:
    """Whatever their schemas are, as long as they differ."""
    await compiled({"const": -1})
    before = resident()
    kept = []
    for number in range(10_000):
        schemas = await compiled({"title": str(number), "properties": {"a": {"pattern": "^[a-z]{3,9}$"}}})
        assert schemas.check_arguments_now(b'{"a":"abc"}') == OK
        kept.append(schemas)
    assert resident() - before < 60 * 1024 * 1024


async def test_size_of_schemas_is_limited() -> None:
    def sized(size: int) -> bytes:
        body = b'{"title":"%b"}'
        return b'{"inputSchema":%b}' % (body % (b"x" * (size - len(body) + 2)))

    assert (await compile_schemas(sized(MAX_SCHEMA))).notes == ()
    assert "is larger than" in (await compile_schemas(sized(MAX_SCHEMA + 1))).notes[0]


async def test_size_of_a_definition_is_limited() -> None:
    """A tool of many megabytes is not even read."""
    (note,) = (await compile_schemas(b'{"title":"%b"}' % (b"x" * 4 * MAX_SCHEMA))).notes
    assert "is larger than" in note


async def test_size_of_checked_values_is_limited() -> None:
    def sized(body: bytes, size: int) -> Raw:
        return Raw(body % (b"x" * (size - len(body) + 2)))

    integer = {"properties": {"n": {"type": "integer"}}}
    schemas = await compiled(integer, integer)
    arguments, result = b'{"n":"%b"}', b'{"structuredContent":{"n":"%b"}}'
    assert (await schemas.check_arguments(sized(arguments, MAX_CHECKED))).problems
    assert (await schemas.check_result(sized(result, MAX_CHECKED))).problems
    for findings in (
        schemas.check_arguments_now(sized(arguments, MAX_CHECKED + 1)),
        schemas.check_result_now(sized(result, MAX_CHECKED + 1)),
    ):
        assert findings is not None
        assert f"over {MAX_CHECKED} bytes" in findings.note
        assert findings.problems == ()


@pytest.mark.parametrize("bad", [b"1E+400", b"[1", b'{"n":1E+400}'])
async def test_what_cannot_be_read_is_noted(bad: bytes) -> None:
    schemas = await compiled({"type": "object"}, {"type": "object"})
    arguments = schemas.check_arguments_now(bad)
    assert arguments is not None
    assert arguments.note.startswith("the arguments were not checked against the tool's inputSchema: ")
    result = schemas.check_result_now(b'{"structuredContent":%b}' % bad)
    assert result is not None
    assert result.note.startswith("the result was not checked against the tool's outputSchema: ")
    assert (await schemas.check_result(b"[]")).note


async def test_failed_result_is_not_checked() -> None:
    schemas = await compiled({}, {"type": "object"})
    assert schemas.check_result_now(b'{"isError": true}') == OK
    for result in (b'{"isError": false}', b"{}"):
        findings = schemas.check_result_now(result)
        assert findings is not None
        assert [problem.path for problem in findings.problems] == ["$.structuredContent"]


async def test_pattern_that_backtracks_too_much_is_no_problem() -> None:
    """It is neither a match nor a mismatch; other problems are reported."""
    schema = {"properties": {"a": {"pattern": "(a*)*\\1b"}, "b": {"type": "integer"}}}
    schemas = await compiled(schema)
    found = await schemas.check_arguments(encode({"a": "a" * 40 + "!", "b": "x"}))
    assert [problem.path for problem in found.problems] == ["$.arguments.b"]


async def test_without_a_schema_everything_is_accepted() -> None:
    assert ToolSchemas().check_arguments_now(b'{"a":1}') == OK
    assert ToolSchemas().check_result_now(b'{"structuredContent":1}') == OK
    assert await ToolSchemas().check_result(b"{}") == OK


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread")])
async def test_lack_of_threads_is_noted(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is imported in a thread."""

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(trio.to_thread, "run_sync", fail)
    monkeypatch.delitem(sys.modules, "jsonschema_rs")
    assert "can't start new thread" in (await compiled({})).notes[0]
