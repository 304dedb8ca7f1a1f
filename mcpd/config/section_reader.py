"""Typed access to one object of the configuration: every error is collected, none is raised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs
import msgspec

from mcpd.config.json_path import closest_match, join_path, type_name
from mcpd.model.errors import Problem
from mcpd.model.server_spec import RestartPolicy, Timeouts
from mcpd.model.text import shorten

T = TypeVar("T")
Durations = TypeVar("Durations", Timeouts, RestartPolicy)

_MILLISECONDS = {"timeout": "call", "connectTimeout": "connect", "maxTimeout": "call_max"}


class Section(msgspec.Struct, eq=False):
    """An object at a JSON path.

    A getter returns None if the member is missing or null. If its value is invalid, the getter adds a problem
    and returns None, too.
    """

    values: Mapping[str, object]
    path: str
    problems: list[Problem]
    unresolved: frozenset[str] = frozenset()
    """Members that contain a secret that is not fetched yet, so their text cannot be checked."""

    def add_problem(self, key: str | None, message: str, fix: str = "") -> None:
        path = self.path if key is None else join_path(self.path, key)
        self.problems.append(Problem(path, message, fix))

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def string(self, key: str) -> str | None:
        value = self.values.get(key)
        if isinstance(value, str) and value and not _is_unusable_text(value):
            return value
        if value == "":
            self.add_problem(key, f"'{key}' is empty", "give it a value, or remove it")
        elif isinstance(value, str):
            self.add_problem(key, f"'{key}' {_UNUSABLE}", "remove it")
        elif value is not None:
            self._wrong_type(key, "a string", value)
        return None

    def choice(self, key: str, options: Mapping[str, T]) -> T | None:
        """Return the option that the member names."""
        text = self.string(key)
        if text is not None and text not in options:
            fix = f"write one of {', '.join(options)}"
            self.add_problem(key, f"unknown value '{shorten(text, 40)}' for '{key}'", fix)
        return None if text is None else options.get(text)

    def boolean(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        self._wrong_type(key, "true or false", value)
        return None

    def number(self, key: str, *, minimum: float = 0.0, exclusive: bool = False) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._wrong_type(key, "a number", value)
            return None
        try:
            number = float(value)
        except OverflowError:  # an integer of more than 308 digits
            number = math.inf
        if not math.isfinite(number) or value < minimum or (exclusive and value == minimum):
            limit = f"more than {minimum:g}" if exclusive else f"{minimum:g} or more"
            self.add_problem(key, f"'{key}' must be {limit}, not {number:g}", "write a number in that range")
            return None
        return number

    def integer(self, key: str, *, minimum: int) -> int | None:
        value = self.values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= minimum):
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong_type(key, "a whole number", value)
        else:
            self.add_problem(key, f"'{key}' must be {minimum} or more, not {value}", "write a larger number")
        return None

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
        """Return the object at `key` as a section that shares `problems`."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            return Section(value, join_path(self.path, key), self.problems)
        message = f"'{key}' must be an object, not {type_name(value)}"
        if isinstance(value, Mapping):
            message = f"a key of '{key}' is not a string"
        self.add_problem(key, message, 'write {"name": value, …}')
        return None

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Add a problem for every key that is not in `known`, with the closest known name."""
        names = list(known)
        for key in self.values:
            if key not in names:
                match = closest_match(key, names)
                fix = f"did you mean '{match}'?" if match else f"known fields: {', '.join(sorted(names))}"
                self.add_problem(key, f"unknown field '{shorten(key, 64)}'", fix)

    def _wrong_type(self, key: str, wanted: str, value: object) -> None:
        fix = f"write {value} without quotes" if _is_quoted_value(value, wanted) else f"write {wanted}"
        self.add_problem(key, f"'{key}' must be {wanted}, not {type_name(value)}", fix)


def parse_timeouts(section: Section, base: Timeouts, warnings: list[str]) -> Timeouts:
    """Return `base`, changed by the fields in milliseconds and by the member `timeouts` (in seconds)."""
    result = base
    nested = section.child("timeouts")
    if nested is not None:
        result = _parse_durations(nested, base, may_be_zero=("stop_close", "stop_term"), skipped=("tools",))
        result = attrs.evolve(result, tools={**result.tools, **_tool_timeouts(nested, "tools", 1.0)})
    changes: dict[str, Any] = {}
    for key, name in _MILLISECONDS.items():
        value = section.number(key, exclusive=True)
        if value is None:
            continue
        if nested is not None and nested.has(name):
            section.add_problem(key, f"'{key}' and 'timeouts.{name}' set the same value", "keep one")
        if value < 1000:
            warnings.append(
                f"{section.path}: '{key}' is in milliseconds: {value:g} means {value / 1000:g} seconds"
            )
        changes[name] = value / 1000
    tools = {**result.tools, **_tool_timeouts(section, "toolTimeouts", 1000.0)}
    result = attrs.evolve(result, tools=tools, **changes)
    if section.has("maxTimeout") or (nested is not None and nested.has("call_max")):
        return result
    # If a call may be silent for an hour, the default limit of half an hour would contradict it.
    return attrs.evolve(result, call_max=max(result.call_max, result.call, *result.tools.values()))


def parse_restart_policy(section: Section, base: RestartPolicy) -> RestartPolicy:
    """Return `base`, changed by the member `restart`."""
    nested = section.child("restart")
    return base if nested is None else _parse_durations(nested, base, may_be_zero=None)


def _tool_timeouts(section: Section, key: str, units_per_second: float) -> dict[str, float]:
    tools = section.child(key)
    if tools is None:
        return {}
    values = {name: tools.number(name, exclusive=True) for name in tools.values}
    return {name: value / units_per_second for name, value in values.items() if value is not None}


def _parse_durations(
    section: Section, base: Durations, *, may_be_zero: tuple[str, ...] | None, skipped: tuple[str, ...] = ()
) -> Durations:
    """Return `base` with the fields that `section` sets. `may_be_zero` None: every field may be 0."""
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


_UNUSABLE = "contains a NUL character or an unpaired surrogate"


def _is_unusable_text(text: str) -> bool:
    """JSON strings may contain NUL and unpaired surrogates; a program's arguments may not."""
    try:
        return b"\0" in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True


def _not_a_string(path: str, item: object, name: str = "") -> Problem:
    label = f"'{shorten(name, 64)}'" if name else "this value"
    if isinstance(item, str):
        return Problem(path, f"{label} {_UNUSABLE}", "remove it")
    fix = "write a string"
    if isinstance(item, (bool, int, float)):
        fix = f'write "{str(item).lower() if isinstance(item, bool) else item}", in quotes'
    elif item is None and name:
        fix = f'write "${{{name}}}" to pass mcpd\'s own value, or remove it'
    return Problem(path, f"{label} must be a string, not {type_name(item)}", fix)


def _is_quoted_value(value: object, wanted: str) -> bool:
    """Return whether the string would be valid without its quotes."""
    if not isinstance(value, str):
        return False
    if wanted == "true or false":
        return value in ("true", "false")
    return "number" in wanted and value.isascii() and value.isdigit() and len(value) < 20


def _quoted(value: str) -> str:
    return f'"{value}"' if len(value) <= 20 and value.isalnum() else '"…"'
