"""One object of the configuration, read field by field; every complaint is kept, none is thrown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from mcpd.config.json_path import closest_match, join_path, type_name
from mcpd.model.errors import Problem
from mcpd.model.server_spec import RestartPolicy, Timeouts
from mcpd.model.text import shorten


@attrs.define(eq=False)
class Section:
    """An object at a place. A getter answers None for what is not there, is null, or was complained of."""

    values: Mapping[str, object]
    path: str
    problems: list[Problem]
    unresolved: frozenset[str] = frozenset()
    """Fields whose text is not known yet, so that nothing can be said against it."""

    def add_problem(self, key: str | None, message: str, fix: str = "") -> None:
        place = self.path if key is None else join_path(self.path, key)
        self.problems.append(Problem(place, message, fix))

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def string(self, key: str) -> str | None:
        value = self.values.get(key)
        if isinstance(value, str) and value and not _is_unusable_text(value):
            return value
        if value == "":
            self.add_problem(key, f"'{key}' is empty", "give it a value, or leave it out")
        elif isinstance(value, str):
            self.add_problem(key, f"'{key}' holds a NUL or half a character", "remove it")
        elif value is not None:
            self.wrong_type(key, "a string", value)
        return None

    def boolean(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.wrong_type(key, "true or false", value)
        return None

    def number(self, key: str, *, minimum: float = 0.0, exclusive: bool = False) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.wrong_type(key, "a number", value)
            return None
        if not math.isfinite(value) or value < minimum or (exclusive and value == minimum):
            limit = f"more than {minimum:g}" if exclusive else f"{minimum:g} or more"
            self.add_problem(key, f"'{key}' must be {limit}, not {value}", "write such a number")
            return None
        return float(value)

    def integer(self, key: str, *, minimum: int) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong_type(key, "a whole number", value)
            return None
        if value < minimum:
            self.add_problem(key, f"'{key}' must be {minimum} or more, not {value}", "write such a number")
            return None
        return value

    def strings(self, key: str) -> tuple[str, ...] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            fix = f"write [{_quoted(value)}]" if isinstance(value, str) else "write a list of strings"
            self.add_problem(key, f"'{key}' must be a list of strings, not {type_name(value)}", fix)
            return None
        for index, item in enumerate(value):
            if not isinstance(item, str) or _is_unusable_text(item):
                self.problems.append(_not_a_string(join_path(join_path(self.path, key), index), item))
        return tuple(item for item in value if isinstance(item, str))

    def string_map(self, key: str) -> dict[str, str] | None:
        section = self.child(key)
        if section is None:
            return None
        for name, item in section.values.items():
            if not isinstance(item, str) or _is_unusable_text(item):
                section.problems.append(_not_a_string(join_path(section.path, name), item, name))
        return {name: item for name, item in section.values.items() if isinstance(item, str)}

    def child(self, key: str) -> Section | None:
        value = self.values.get(key)
        if value is None:
            return None
        place = join_path(self.path, key)
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return Section(value, place, self.problems)
        message = f"'{key}' must be an object, not {type_name(value)}"
        if isinstance(value, Mapping):
            message = f"a key of '{key}' is not a string"
        self.add_problem(key, message, 'write {"name": value, …}')
        return None

    def wrong_type(self, key: str, wanted: str, value: object) -> None:
        fix = f"write {value} without quotes" if _is_quoted_value(value, wanted) else f"write {wanted}"
        self.add_problem(key, f"'{key}' must be {wanted}, not {type_name(value)}", fix)

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Complain of every key that is not in `known`, with the one that was probably meant."""
        names = list(known)
        for key in self.values:
            if key not in names:
                meant = closest_match(key, names)
                fix = f"did you mean '{meant}'?" if meant else f"known are {', '.join(sorted(names))}"
                self.add_problem(key, f"unknown field '{shorten(key, 64)}'", fix)


def _is_unusable_text(text: str) -> bool:
    """Whether no program could be given this text: JSON can write NUL, and half of a surrogate pair."""
    try:
        return b"\0" in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True


def _not_a_string(path: str, item: object, name: str = "") -> Problem:
    label = f"'{shorten(name, 64)}'" if name else "this"
    if isinstance(item, str):
        return Problem(path, f"{label} holds a NUL or half a character", "remove it")
    if isinstance(item, (bool, int, float)):
        text = str(item).lower() if isinstance(item, bool) else str(item)
        return Problem(path, f"{label} must be a string, not {type_name(item)}", f'write "{text}", in quotes')
    fix = (
        f'write "${{{name}}}" to hand on our own, or leave it out'
        if item is None and name
        else "write a string"
    )
    return Problem(path, f"{label} must be a string, not {type_name(item)}", fix)


def _is_quoted_value(value: object, wanted: str) -> bool:
    if not isinstance(value, str):
        return False
    if wanted == "true or false":
        return value in ("true", "false")
    return "number" in wanted and value.isascii() and value.isdigit() and len(value) < 20


def _quoted(value: str) -> str:
    return f'"{value}"' if len(value) <= 20 and value.isalnum() else '"…"'


T = TypeVar("T", Timeouts, RestartPolicy)

_MILLISECONDS = {"timeout": "call", "connectTimeout": "connect", "maxTimeout": "call_max"}


def parse_timeouts(section: Section, base: Timeouts, warnings: list[str]) -> Timeouts:
    """`base` with what `section` says, in milliseconds one by one and in seconds under `timeouts`."""
    found = base
    nested = section.child("timeouts")
    if nested is not None:
        found = _parse_durations(nested, base, may_be_zero=("stop_close", "stop_term"), skipped=("tools",))
        found = attrs.evolve(found, tools={**found.tools, **_per_tool(nested, "tools", 1.0)})
    changes: dict[str, Any] = {}
    for key, name in _MILLISECONDS.items():
        value = section.number(key, exclusive=True)
        if value is None:
            continue
        if nested is not None and nested.has(name):
            section.add_problem(key, f"'{key}' and 'timeouts.{name}' say the same", "keep one")
        if value < 1000:
            warnings.append(
                f"{section.path}: '{key}' is in milliseconds: {value:g} is {value / 1000:g} seconds"
            )
        changes[name] = value / 1000
    tools = {**found.tools, **_per_tool(section, "toolTimeouts", 1000.0)}
    found = attrs.evolve(found, tools=tools, **changes)
    if section.has("maxTimeout") or (nested is not None and nested.has("call_max")):
        return found
    # Who allows an hour of silence did not mean the half hour that nobody wrote.
    return attrs.evolve(found, call_max=max(found.call_max, found.call, *found.tools.values()))


def parse_restart_policy(section: Section, base: RestartPolicy) -> RestartPolicy:
    """`base` with the fields of `restart`."""
    nested = section.child("restart")
    return base if nested is None else _parse_durations(nested, base, may_be_zero=None)


def _per_tool(section: Section, key: str, per_second: float) -> dict[str, float]:
    tools = section.child(key)
    if tools is None:
        return {}
    read = {name: tools.number(name, exclusive=True) for name in tools.values}
    return {name: value / per_second for name, value in read.items() if value is not None}


def _parse_durations(
    section: Section, base: T, *, may_be_zero: tuple[str, ...] | None, skipped: tuple[str, ...] = ()
) -> T:
    """`base` with every field that `section` names; `zero`: fields that may be 0 (None: all)."""
    known = [field.name for field in attrs.fields(type(base))]
    section.refuse_unknown(known)
    changes: dict[str, Any] = {}
    for name in known:
        if name in skipped or not section.has(name):
            continue
        if isinstance(getattr(base, name), int):
            value: float | None = section.integer(name, minimum=1)
        else:
            value = section.number(name, exclusive=may_be_zero is not None and name not in may_be_zero)
        if value is not None:
            changes[name] = value
    return attrs.evolve(base, **changes)
