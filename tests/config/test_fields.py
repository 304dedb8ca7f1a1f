"""How values of the configuration are read: every limit, and the problem and fix for anything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import attrs
import pytest

from mcpd.config.fields import Milliseconds, field, object_schema, read
from mcpd.config.settings import Settings
from mcpd.model.errors import Problem
from mcpd.model.server_spec import ServerSpec, Timeouts
from tests.config.test_server_definition import parsed, problems, spec


@attrs.frozen(kw_only=True)
class Inner:
    depth: int | None = field("How deep.", minimum=2)


@attrs.frozen(kw_only=True)
class Example:
    text_field: str | None = field("Text.", aliases=("text_field",))
    choice: Literal["a", "b"] | None = field("One of two.")
    flag: bool | None = field("A switch.")
    timeout: Milliseconds | None = field("Milliseconds.")
    words: tuple[str, ...] | None = field("Words.")
    names: Mapping[str, str] | None = field("Names.")
    inner: Inner | None = field("More.")


def found(value: object) -> tuple[Example, list[Problem]]:
    problems: list[Problem] = []
    return read(value, Example, "$", problems), problems


def test_values_are_read_by_their_types() -> None:
    value = {"textField": "x", "choice": "b", "timeout": 1500, "words": ["", "a"], "inner": {"depth": 2}}
    example = Example(
        text_field="x", choice="b", timeout=Milliseconds(1.5), words=("", "a"), inner=Inner(depth=2)
    )
    assert found(value) == (example, [])
    assert found(dict.fromkeys(value)) == (Example(), []), "null is the same as a missing member"
    assert found({"text_field": "x"})[0].text_field == "x"


@pytest.mark.parametrize(
    ("value", "path", "fix"),
    [
        ({"textField": ""}, "$.textField", "give it a value"),
        ({"textField": 5}, "$.textField", 'write "5", in quotes'),
        ({"textField": "a", "text_field": "b"}, "$.text_field", "keep one"),
        ({"choice": "c"}, "$.choice", "write one of a, b"),
        ({"flag": 1}, "$.flag", "write true or false"),
        ({"flag": "true"}, "$.flag", "write true without quotes"),
        ({"timeout": True}, "$.timeout", "write a number"),
        ({"timeout": "60"}, "$.timeout", "write 60 without quotes"),
        ({"timeout": "1s"}, "$.timeout", "write a number"),
        ({"timeout": 0}, "$.timeout", "in that range"),
        ({"timeout": math.inf}, "$.timeout", "in that range"),
        ({"timeout": math.nan}, "$.timeout", "in that range"),
        ({"timeout": 10**400}, "$.timeout", "in that range"),
        ({"words": "all"}, "$.words", 'write ["all"]'),
        ({"words": "--all"}, "$.words", 'write ["…"]'),
        ({"words": ["a", True]}, "$.words[1]", 'write "true", in quotes'),
        ({"names": {"P": 80}}, "$.names.P", 'write "80", in quotes'),
        ({"names": {"a b": None}}, '$.names["a b"]', "write a string"),
        ({"names": []}, "$.names", "write {"),
        ({"names": {1: "a"}}, "$.names", "in quotes"),
        ({"inner": {"depth": 1}}, "$.inner.depth", "larger"),
        ({"inner": {"depth": 3.0}}, "$.inner.depth", "write a whole number"),
        ({"inner": {"dept": 3}}, "$.inner.dept", "did you mean 'depth'?"),
        ({"qqq": 3}, "$.qqq", "known fields: choice, flag, inner"),
        ([], "$", "write {"),
    ],
)
def test_invalid_value_is_one_problem_with_its_path_and_a_fix(value: object, path: str, fix: str) -> None:
    example, (problem,) = found(value)
    assert (problem.path, fix in problem.fix) == (path, True), problem
    assert example in (Example(), Example(text_field="a"))


def test_all_problems_are_reported_and_the_other_members_used() -> None:
    example, problems = found({"flag": True, "timeout": 0, "words": [1, 2], "inner": {"x": 1, "depth": 0}})
    assert [each.path for each in problems] == [
        "$.timeout",
        "$.words[0]",
        "$.words[1]",
        "$.inner.x",
        "$.inner.depth",
    ]
    assert example == Example(flag=True)


def test_schema_has_the_same_names_and_limits() -> None:
    properties = object_schema(Example)["properties"]
    assert properties["text_field"] == properties["textField"] == {"type": "string", "description": "Text."}
    assert properties["inner"]["properties"]["depth"]["minimum"] == 2
    assert properties["choice"]["enum"] == ["a", "b"]
    assert properties["timeout"]["exclusiveMinimum"] == 0


def timeouts(definition: dict[str, object], base: Timeouts | None = None) -> Timeouts:
    found: ServerSpec = spec({"command": "x", **definition}, Settings(timeouts=base or Timeouts()))
    return found.timeouts


@pytest.mark.parametrize(
    ("values", "call_max"),
    [
        ({}, 1800),
        ({"timeout": 3_600_000}, 3600),
        ({"timeouts": {"call": 3600}}, 3600),
        ({"toolTimeouts": {"t": 7_200_000}, "timeout": 3_600_000}, 7200),
        ({"timeout": 3_600_000, "timeouts": {"ping": 1}}, 3600),
        ({"timeout": 3_600_000, "maxTimeout": 5000}, 5),
        ({"timeout": 3_600_000, "timeouts": {"call_max": 5}}, 5),
    ],
)
def test_limit_of_a_call_grows_with_its_timeout_unless_it_is_set(
    values: dict[str, object], call_max: float
) -> None:
    assert timeouts(values).call_max == call_max


def test_timeouts_change_those_of_the_settings() -> None:
    base = Timeouts(ping=2, ping_idle=6, connect=7)
    changed = timeouts({"connectTimeout": 1000, "timeouts": {"stop": 10}}, base)
    assert changed == Timeouts(ping=2, ping_idle=6, connect=1, stop_close=4, stop_term=6)
    warnings = [parsed({"command": "x", "timeout": ms}).warnings for ms in (1000, 999)]
    assert [len(each) for each in warnings] == [0, 1]
    (problem,) = problems({"command": "x", "connectTimeout": 1000, "timeouts": {"connect": 2}})
    assert problem.path == "$.mcpServers.a.connectTimeout"
