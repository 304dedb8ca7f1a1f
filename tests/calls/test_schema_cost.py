"""The bound on the time of compiling a schema and checking a value: what is added up, and where it ends."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import pytest

from mcpd.calls import schema_cost
from mcpd.calls.schema_cost import (
    CHECK_BUDGET,
    COMPILE_BUDGET,
    MAX_VALUES,
    SchemaTooExpensive,
    ValidationCost,
    pattern_cost,
)
from mcpd.support.schema_checker_process import compile_validator
from tests.stopwatch import within

Json = dict[str, Any]
A = 40 * 2
"""The steps for the pattern `a`."""
BACKTRACKING = 40_000


def steps(schema: Json) -> list[int]:
    """Return the steps by depth, of the depths that are not zero."""
    counted = ValidationCost(schema)._steps
    while counted and not counted[-1]:
        counted.pop()
    return counted


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, [1]),
        ({"enum": [1, 2]}, [4]),
        ({"const": {"a": 1}}, [3]),
        ({"required": ["a"]}, [3]),
        ({"pattern": "a"}, [1 + A]),
        ({"pattern": "(a)\\1"}, [1 + BACKTRACKING]),
        ({"pattern": "(?=a)"}, [1 + BACKTRACKING]),
        ({"pattern": "a++"}, [1 + BACKTRACKING]),
        ({"pattern": "a{3}+"}, [1 + BACKTRACKING]),
        ({"pattern": "\\p{L}+"}, [1 + 40 * 3]),
        ({"pattern": 5}, [1]),
        ({"patternProperties": {"a": {}, "b": {}}}, [1, 2 * A + 2]),
        ({"patternProperties": 5}, [1]),
        ({"uniqueItems": True}, [1, 4]),
        ({"properties": {"a": {}, "b": {"enum": [1]}}}, [3, 3]),
        ({"prefixItems": [{}, {"enum": [1]}]}, [1, 3]),
        ({"items": {}, "contains": {}}, [1, 2]),
        ({"additionalProperties": {}, "propertyNames": {}}, [1, 2]),
        ({"items": {"items": {}}}, [1, 1, 1]),
        ({"items": {}, "prefixItems": [{}]}, [1, 2]),
        ({"not": {}, "if": {}}, [3]),
        ({"allOf": [{}, {"items": {}}]}, [3, 1]),
        ({"anyOf": [True, 5]}, [3]),
        ({"items": True}, [1, 1]),
        ({"items": [{"items": {}}, {}]}, [1, 2, 1]),
        ({"$id": "https://example.com/s", "$ref": "#/$defs/a", "$defs": {"a": {"items": {}}}}, [2, 1]),
        ({"x-unknown": {"$ref": "#"}}, [1]),
    ],
)
def test_what_is_added_up(schema: Json, expected: list[int]) -> None:
    """What applies to one value adds up; of the schemas of different members, the dearest counts."""
    assert steps(schema) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("#/$defs/a", 5),
        ("#/$defs/x~1y", 6),
        ("#/$defs/x~0y", 7),
        ("#/list/1", 8),
    ],
)
def test_references_are_followed(reference: str, expected: int) -> None:
    schema = {
        "$ref": reference,
        "$defs": {"a": {"enum": [1] * 2}, "x/y": {"enum": [1] * 3}, "x~y": {"enum": [1] * 4}},
        "list": [5, {"enum": [1] * 5}],
    }
    assert steps(schema)[0] == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#anchor"},
        {"$ref": "other.json#/a"},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {}}},
        {"$ref": 5},
        {"items": {"$ref": "#"}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"$dynamicRef": "#a"},
        {"items": {"unevaluatedProperties": False}},
        {"dependentSchemas": {"a": {}}},
        {"$defs": {"a": {"$id": "a.json"}}},
        {"definitions": {"a": {"id": "a.json"}}},
        {"format": "regex"},
        {"pattern": "(?i)a"},
        {"pattern": "[\\p{L}\\p{N}]{180}"},
        {"allOf": [{"pattern": "\\s"}] * 60},
        {"allOf": [{}] * (MAX_VALUES - 1)},
        {"enum": [1] * MAX_VALUES},
        {
            "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(40)},
            "$defs": {"a": {"properties": {f"q{n}": {} for n in range(40)}}},
        },
        {"items": {"allOf": [{"pattern": "(?=a)"}] * 9}, "allOf": [{"pattern": "(?=a)"}] * 5},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_what_may_be_expensive_or_is_not_understood_is_refused(schema: Json) -> None:
    with pytest.raises(SchemaTooExpensive):
        ValidationCost(schema)


def test_property_may_have_the_name_of_a_keyword() -> None:
    names = ("$id", "id", "$ref", "dependencies", "unevaluatedItems", "format", "pattern", "enum")
    ValidationCost({"properties": {name: {"type": "string"} for name in names}})


def test_values_are_charged_by_their_depth() -> None:
    cost = ValidationCost({"items": {"enum": [1] * 8}})  # 1, and 10 for each item
    assert cost.of([1] * 3)[0] == 31
    assert cost.of([[[1]]])[0] == 11, "deeper values are not checked"
    assert cost.of({"a": 1, "b": 2})[0] == 21
    assert cost.of([1] * 30)[0] <= CHECK_BUDGET < cost.of([1] * 30_000)[0]


def test_long_texts_and_names_count_as_several_values() -> None:
    cost = ValidationCost({"pattern": "a", "patternProperties": {"a": {}}})
    assert cost.of("a" * 63)[0] == 1 + A
    assert cost.of("a" * 64)[0] == 2 * (1 + A)
    assert cost.of({"a" * 64: 1})[0] == 1 + A + 2 * (A + 1)


def test_number_of_problems_is_bounded() -> None:
    """Each subschema may find one in each value."""
    assert ValidationCost({"items": {"allOf": [False, False]}}).of([1, 2])[1] == 3 * 4


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", (30, 0)),
        ("a", (33.25, 1)),
        ("ab|c", (43, 4)),
        ("a*b?", (42.5, 4)),
        ("a{5}", (30 + 5 * 3.25, 5)),
        ("a{2,5}", (30 + 5 * 3.25, 5)),
        ("a{5,}", (30 + 5 * 3.25, 5)),
        ("(a{5}){5}", (30 + 25 * 3.25, 25)),
        ("(ab){5}c", (30 + 11 * 3.25, 11)),
        ("\\.", (33.5, 1)),
        ("\\w", (183.5, 1)),
        ("[a-z]{4}", (30 + 4 * 4.25, 4)),
        ("[\\w.-]", (30 + 3 + 1.5 + 150, 1)),
        ("\\p{L}", (30 + 3 + 1.25 + 400, 1)),
        ("\\pL{2}", (30 + 2 * (3 + 0.75 + 400), 2)),
        ("[\\p{L}\\p{N}]{10}", (30 + 10 * (3 + 3 + 800), 10)),
        ("\\[[a]", (30 + 3.5 + 3.75, 2)),
        ("(?i)a", (inf, 0)),
        ("(a", (inf, 0)),
        ("a)", (inf, 0)),
        ("[[:alpha:]]", (inf, 2)),
        ("[a&&b]", (inf, 1)),
        ("x" * 2001, (inf, 0)),
    ],
)
def test_cost_of_a_pattern(pattern: str, expected: tuple[float, int]) -> None:
    """Roughly its size with all repetitions written out; what is not understood is infinite."""
    assert pattern_cost(pattern) == expected


NEARLY_TOO_MUCH: dict[str, Json] = {
    "patterns": {"properties": {f"p{n}": {"pattern": f"a{n}"} for n in range(160)}},
    "sets": {"pattern": "\\s" * 50},
    "scripts": {"allOf": [{"pattern": f"{n}\\p{{L}}{{2}}"} for n in range(9)]},
    "references": {
        "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(480)},
        "$defs": {"a": {"type": "string"}},
    },
    "subschemas": {"allOf": [{}] * 990},
    "alternatives": {"oneOf": [{"const": n} for n in range(490)]},
}


@pytest.mark.parametrize("schema", NEARLY_TOO_MUCH.values(), ids=NEARLY_TOO_MUCH.keys())
def test_schemas_within_the_budget_compile_fast(schema: Json) -> None:
    """In CPU time, the best of several attempts, and with a margin for slow machines."""
    best = inf
    for _ in range(5):
        began = time.thread_time()
        assert ValidationCost(schema).compile_time <= COMPILE_BUDGET
        compile_validator(schema, pattern_size=256 * 1024)
        best = min(best, time.thread_time() - began)
    assert within(best, 0.05)


def test_estimating_a_hostile_schema_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions that refer to the next one twice are left after MAX_VALUES visits."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(20)}
    visits = 0
    real = schema_cost._Walk.steps

    def counted(self: schema_cost._Walk, schema: object, nesting: int) -> list[int]:
        nonlocal visits
        visits += 1
        return real(self, schema, nesting)

    monkeypatch.setattr(schema_cost._Walk, "steps", counted)
    with pytest.raises(SchemaTooExpensive):
        ValidationCost({"$ref": "#/$defs/d0", "$defs": {**twice, "d20": {}}})
    assert visits <= MAX_VALUES + 1
