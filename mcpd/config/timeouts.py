"""The waiting times and the restart policy of a server, in both spellings: milliseconds, and `timeouts`."""

from __future__ import annotations

from typing import Any, TypeVar

import attrs

from mcpd.config.section import Section
from mcpd.model.server_spec import RestartPolicy, Timeouts

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
