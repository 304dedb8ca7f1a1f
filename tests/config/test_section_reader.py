"""Typed getters: every accepted value, every limit, and the problem and fix for anything else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mcpd.config.section_reader import Section, parse_restart_policy, parse_timeouts
from mcpd.model.errors import Problem
from mcpd.model.server_spec import RestartPolicy, Timeouts

Getter = Callable[[Section], object]


def section(value: object) -> Section:
    return Section({"k": value}, "$", [])


def read(getter: Getter, value: object) -> tuple[object, list[Problem]]:
    found = section(value)
    return getter(found), found.problems


STRING: Getter = lambda s: s.string("k")  # noqa: E731
CHOICE: Getter = lambda s: s.choice("k", {"a": 1, "b": 2})  # noqa: E731
BOOLEAN: Getter = lambda s: s.boolean("k")  # noqa: E731
NUMBER: Getter = lambda s: s.number("k")  # noqa: E731
POSITIVE: Getter = lambda s: s.number("k", exclusive=True)  # noqa: E731
FROM_TWO: Getter = lambda s: s.number("k", minimum=2)  # noqa: E731
INTEGER: Getter = lambda s: s.integer("k", minimum=2)  # noqa: E731
STRINGS: Getter = lambda s: s.strings("k")  # noqa: E731
STRING_MAP: Getter = lambda s: s.string_map("k")  # noqa: E731
CHILD: Getter = lambda s: None if (child := s.child("k")) is None else (child.path, child.values)  # noqa: E731
ALL = (STRING, CHOICE, BOOLEAN, NUMBER, POSITIVE, INTEGER, STRINGS, STRING_MAP, CHILD)


@pytest.mark.parametrize("getter", ALL)
def test_null_and_missing_members_are_none_without_a_problem(getter: Getter) -> None:
    assert read(getter, None) == (None, [])
    missing = Section({}, "$", [])
    assert (getter(missing), missing.problems, missing.has("k")) == (None, [], False)


@pytest.mark.parametrize(
    ("getter", "value", "result"),
    [
        (STRING, "x", "x"),
        (CHOICE, "b", 2),
        (BOOLEAN, True, True),
        (BOOLEAN, False, False),
        (NUMBER, 0, 0.0),
        (NUMBER, 0.5, 0.5),
        (POSITIVE, 0.5, 0.5),
        (FROM_TWO, 2, 2.0),
        (INTEGER, 2, 2),
        (STRINGS, [], ()),
        (STRINGS, ["a", ""], ("a", "")),
        (STRING_MAP, {"a": "", "b": "c"}, {"a": "", "b": "c"}),
        (CHILD, {"a": 1}, ("$.k", {"a": 1})),
        (CHILD, {}, ("$.k", {})),
    ],
)
def test_valid_value_is_returned_without_a_problem(getter: Getter, value: object, result: object) -> None:
    assert read(getter, value) == (result, [])


@pytest.mark.parametrize(
    ("getter", "value", "path", "message", "fix"),
    [
        (STRING, "", "$.k", "'k' is empty", "give it a value"),
        (STRING, "a\0", "$.k", "contains a NUL character or an unpaired surrogate", "remove it"),
        (STRING, "\ud800", "$.k", "contains a NUL character or an unpaired surrogate", "remove it"),
        (STRING, 5, "$.k", "must be a string, not a number", "write a string"),
        (CHOICE, "c", "$.k", "unknown value 'c' for 'k'", "write one of a, b"),
        (BOOLEAN, 1, "$.k", "must be true or false, not a number", "write true or false"),
        (BOOLEAN, "true", "$.k", "must be true or false, not a string", "write true without quotes"),
        (BOOLEAN, "false", "$.k", "must be true or false, not a string", "write false without quotes"),
        (BOOLEAN, "yes", "$.k", "must be true or false, not a string", "write true or false"),
        (BOOLEAN, "5", "$.k", "must be true or false, not a string", "write true or false"),
        (NUMBER, True, "$.k", "must be a number, not true or false", "write a number"),
        (NUMBER, "60", "$.k", "must be a number, not a string", "write 60 without quotes"),
        (NUMBER, "9" * 19, "$.k", "must be a number", f"write {'9' * 19} without quotes"),
        (NUMBER, "9" * 20, "$.k", "must be a number", "write a number"),
        (NUMBER, "1s", "$.k", "must be a number", "write a number"),
        (NUMBER, "\u0663", "$.k", "must be a number", "write a number"),
        (NUMBER, -0.1, "$.k", "must be 0 or more, not -0.1", "in that range"),
        (NUMBER, math.inf, "$.k", "must be 0 or more, not inf", "in that range"),
        (NUMBER, math.nan, "$.k", "must be 0 or more, not nan", "in that range"),
        (NUMBER, 10**400, "$.k", "must be 0 or more, not inf", "in that range"),
        (POSITIVE, 0, "$.k", "must be more than 0, not 0", "in that range"),
        (FROM_TWO, 1.9, "$.k", "must be 2 or more, not 1.9", "in that range"),
        (INTEGER, 1, "$.k", "must be 2 or more, not 1", "write a larger number"),
        (INTEGER, True, "$.k", "must be a whole number, not true or false", "write a whole number"),
        (INTEGER, 3.0, "$.k", "must be a whole number, not a number", "write a whole number"),
        (INTEGER, "7", "$.k", "must be a whole number, not a string", "write 7 without quotes"),
        (STRINGS, "all", "$.k", "must be a list of strings, not a string", 'write ["all"]'),
        (STRINGS, "a" * 20, "$.k", "must be a list of strings", f'write ["{"a" * 20}"]'),
        (STRINGS, "a" * 21, "$.k", "must be a list of strings", 'write ["…"]'),
        (STRINGS, "--all", "$.k", "must be a list of strings", 'write ["…"]'),
        (STRINGS, 5, "$.k", "must be a list of strings, not a number", "write a list of strings"),
        (STRINGS, ["a", 1], "$.k[1]", "this value must be a string, not a number", 'write "1", in quotes'),
        (STRINGS, [True], "$.k[0]", "must be a string, not true or false", 'write "true", in quotes'),
        (STRINGS, [1.5], "$.k[0]", "must be a string, not a number", 'write "1.5", in quotes'),
        (STRINGS, [None], "$.k[0]", "must be a string, not null", "write a string"),
        (STRINGS, ["a\0"], "$.k[0]", "this value contains a NUL", "remove it"),
        (STRING_MAP, {"P": 80}, "$.k.P", "'P' must be a string, not a number", 'write "80", in quotes'),
        (STRING_MAP, {"P": None}, "$.k.P", "'P' must be a string, not null", 'write "${P}" to pass'),
        (STRING_MAP, {"P": []}, "$.k.P", "'P' must be a string, not a list", "write a string"),
        (STRING_MAP, {"P": "\ud800"}, "$.k.P", "'P' contains a NUL", "remove it"),
        (STRING_MAP, ["a"], "$.k", "must be an object, not a list", "write {"),
        (CHILD, [], "$.k", "must be an object, not a list", "write {"),
        (CHILD, {1: 2}, "$.k", "a key of 'k' is not a string", "write {"),
        (CHILD, {"a": 1, 2: 3}, "$.k", "a key of 'k' is not a string", "write {"),
    ],
)
def test_invalid_value_is_one_problem_with_a_fix(
    getter: Getter, value: object, path: str, message: str, fix: str
) -> None:
    _, (problem,) = read(getter, value)
    assert problem.path == path
    assert message in problem.message
    assert fix in problem.fix


def test_invalid_items_are_left_out_of_lists_and_maps() -> None:
    assert read(STRINGS, ["a", 1, "b"])[0] == ("a", "b")
    assert read(STRING_MAP, {"a": "x", "b": 1})[0] == {"a": "x"}


def test_unknown_keys_are_refused_with_the_closest_or_all_known_names() -> None:
    found = Section({"alpha": 1, "alhpa": 1, "zzz": 1}, "$", [])
    found.refuse_unknown(("beta", "alpha"))
    assert [(problem.path, problem.fix) for problem in found.problems] == [
        ("$.alhpa", "did you mean 'alpha'?"),
        ("$.zzz", "known fields: alpha, beta"),
    ]


def timeouts(
    values: dict[str, object], base: Timeouts | None = None
) -> tuple[Timeouts, list[str], list[str]]:
    problems: list[Problem] = []
    warnings: list[str] = []
    result = parse_timeouts(Section(values, "$", problems), base or Timeouts(), warnings)
    return result, [problem.path for problem in problems], warnings


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        ({"timeouts": {"stop_close": 0, "stop_term": 0}}, []),
        ({"timeouts": {"ping": 0}}, ["$.timeouts.ping"]),
        ({"timeouts": {"ping_misses": 1}}, []),
        ({"timeouts": {"ping_misses": 0}}, ["$.timeouts.ping_misses"]),
        ({"timeouts": {"ping_misses": 1.5}}, ["$.timeouts.ping_misses"]),
        ({"timeouts": {"tools": {"t": 0}}}, ["$.timeouts.tools.t"]),
        ({"toolTimeouts": {"t": 0}}, ["$.toolTimeouts.t"]),
        ({"timeout": 0}, ["$.timeout"]),
        ({"timeout": 2000, "timeouts": {"ping": 1}}, []),
        ({"timeout": 2000, "timeouts": {"call": None}}, []),
        ({"timeout": 2000, "timeouts": {"call": 2}}, ["$.timeout"]),
        ({"connectTimeout": 2000, "timeouts": {"call": 2}}, []),
        ({"timeouts": {"pong": 2}}, ["$.timeouts.pong"]),
    ],
)
def test_timeouts_are_checked(values: dict[str, object], problems: list[str]) -> None:
    assert timeouts(values)[1] == problems


def test_timeout_of_less_than_a_second_is_a_warning() -> None:
    assert timeouts({"timeout": 1000})[2] == []
    assert timeouts({"timeout": 999})[2] == ["$: 'timeout' is in milliseconds: 999 means 0.999 seconds"]


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
    assert timeouts(values)[0].call_max == call_max


def test_tool_timeouts_are_merged_with_those_of_the_settings() -> None:
    base = Timeouts(tools={"a": 1, "b": 1, "c": 1})
    found, _, _ = timeouts({"timeouts": {"tools": {"b": 2, "c": 2}}, "toolTimeouts": {"c": 3000}}, base)
    assert found.tools == {"a": 1, "b": 2, "c": 3}


def test_restart_policy_accepts_zero_except_for_counts() -> None:
    problems: list[Problem] = []
    policy = parse_restart_policy(
        Section({"restart": {"base": 0, "cap": 7, "intensity": 0}}, "$", problems), RestartPolicy(cap=9)
    )
    assert policy == RestartPolicy(base=0, cap=7)
    assert [problem.path for problem in problems] == ["$.restart.intensity"]
    assert parse_restart_policy(Section({}, "$", problems), policy) is policy
