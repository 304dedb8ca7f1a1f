"""The bound on the work of validating: what is added up, and where it ends."""

from __future__ import annotations

from typing import Any

import pytest

from mcpd.calls import schema_cost
from mcpd.calls.schema_cost import MAX_DEPTH, SchemaTooComplex, ValidationCost

Json = dict[str, Any]


def steps(schema: Json) -> list[int]:
    """Return the steps by depth, of the depths that are not zero."""
    counted = ValidationCost(schema)._steps
    while counted and not counted[-1]:
        counted.pop()
    return counted


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, [4]),
        ({"enum": [1, 2]}, [6]),
        ({"const": {"a": 1}}, [5]),
        ({"required": ["a"]}, [5]),
        ({"pattern": "a"}, [24]),
        ({"pattern": "(a)\\1"}, [1004]),
        ({"pattern": "(?=a)"}, [1004]),
        ({"pattern": 5}, [4]),
        ({"patternProperties": {"a": {}, "b": {}}}, [44, 8]),
        ({"patternProperties": {"(?<a": {}}}, [1004, 4]),
        ({"patternProperties": 5}, [4]),
        ({"properties": {"a": {}, "b": {"enum": [1]}}}, [6, 5]),
        ({"prefixItems": [{}, {"enum": [1]}]}, [4, 5]),
        ({"items": {}, "contains": {}}, [4, 8]),
        ({"items": {}, "additionalProperties": {}}, [4, 4]),
        ({"additionalProperties": {}, "propertyNames": {}}, [4, 8]),
        ({"items": {"items": {}}}, [4, 4, 4]),
        ({"items": {}, "prefixItems": [{}]}, [4, 8]),
        ({"not": {}, "if": {}}, [12]),
        ({"allOf": [{}, {"items": {}}]}, [12, 4]),
        ({"dependentSchemas": {"a": {}, "b": {}}}, [12]),
        ({"anyOf": [True, 5]}, [6]),
        ({"items": True}, [4, 1]),
        ({"items": [{"items": {}}, {}]}, [4, 8, 4]),
    ],
)
def test_what_is_added_up(schema: Json, expected: list[int]) -> None:
    """A schema costs four steps. What applies to one value adds up; of alternatives, the dearest counts."""
    assert steps(schema) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("#/$defs/a", 10),
        ("#/$defs/x~1y", 11),
        ("#/$defs/x~0y", 12),
        ("#/list/1", 13),
        ("#/list/0", 5),
        ("#/list/2", 5),
        ("#/list/-1", 5),
        ("#/list/x", 5),
        ("#/$defs/none", 5),
        ("#/$defs/a/enum", 5),
        ("other.json#/$defs/a", 5),
        ("#", 5),
    ],
)
def test_references_are_followed(reference: str, expected: int) -> None:
    """One that leads nowhere, or to something that is no schema, counts as the whole schema."""
    schema = {
        "$ref": reference,
        "$defs": {"a": {"enum": [1] * 2}, "x/y": {"enum": [1] * 3}, "x~y": {"enum": [1] * 4}},
        "list": [5, {"enum": [1] * 5}],
    }
    assert steps(schema)[0] == expected


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_instance_of_a_recursive_schema_is_checked_up_to_a_depth() -> None:
    recursive = ValidationCost({"items": {"$ref": "#"}})
    assert recursive.allows(nested(MAX_DEPTH - 1))
    assert not recursive.allows(nested(MAX_DEPTH))
    assert ValidationCost({"items": {"items": {}}}).allows(nested(MAX_DEPTH * 2)), "it ends"
    assert ValidationCost({}).allows(nested(MAX_DEPTH))


def test_budget_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ValidationCost({"items": {"enum": [1] * 8}})  # 4, and 12 for each element
    monkeypatch.setattr(schema_cost, "BUDGET", 40)
    assert wide.allows([1] * 3)
    assert not wide.allows([1] * 4)
    with pytest.raises(SchemaTooComplex):
        ValidationCost({"enum": [1] * 37})
    assert ValidationCost({"enum": [1] * 36})._steps[0] == 40


def test_number_of_visits_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"allOf": [{"a": 1}, {"a": 2}]}
    monkeypatch.setattr(schema_cost, "_MAX_VISITS", 6)
    assert ValidationCost(schema)._steps == [12]
    monkeypatch.setattr(schema_cost, "_MAX_VISITS", 5)
    with pytest.raises(SchemaTooComplex):
        ValidationCost(schema)


def test_too_complex_at_depth_is_checked_above() -> None:
    """What multiplies further down costs nothing for flat instances."""
    tree = {"allOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}
    counted = ValidationCost(tree)
    assert 5 < len(counted._steps) < MAX_DEPTH
    assert not counted._is_finite
    assert counted.allows(nested(3))
    assert not counted.allows(nested(len(counted._steps)))
