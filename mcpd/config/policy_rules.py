"""Parses `settings.policies`: the rules, or every error in them."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Any

from mcpd.config.field_spec import STRING, STRINGS, Shape
from mcpd.config.json_path import join_path, type_name
from mcpd.config.section_reader import Section
from mcpd.config.variables import expand_home
from mcpd.model.errors import Problem
from mcpd.model.policy import HINTS, TRANSPORTS, Decision, PolicyRule, RateLimit
from mcpd.model.text import shorten

_DECISIONS = {decision.value: decision for decision in Decision}
_HINTS: Shape = {
    "type": "object",
    "additionalProperties": False,
    "properties": {name: {"type": "boolean"} for name in HINTS},
}
_RATE = re.compile(r"^([1-9][0-9]{0,8}) ?/ ?(s|min|h)$")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
MAX_RATE = 1000
"""Uses in a period: the time of each is kept."""
RULE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["decision"],
    "properties": {
        "decision": {"enum": list(_DECISIONS)},
        "reason": STRING,
        "clients": STRINGS,
        "executables": STRINGS,
        "transports": {"type": "array", "items": {"enum": list(TRANSPORTS)}},
        "profiles": STRINGS,
        "directories": STRINGS,
        "servers": STRINGS,
        "tools": STRINGS,
        "prompts": STRINGS,
        "resources": STRINGS,
        "annotations": _HINTS,
        "tags": STRINGS,
        "rate": {"type": "string", "pattern": _RATE.pattern},
        "concurrent": {"type": "integer", "minimum": 1},
    },
}
"""One of `settings.policies`; see `PolicyRule`."""
MAX_RULES = 1000
"""Each call of a client may be compared with all of them."""


def parse_policies(section: Section, key: str, environ: Mapping[str, str]) -> tuple[PolicyRule, ...] | None:
    """Return the rules at `key`; None if any of them is invalid, because part of a rule set may allow what
    the whole would not."""
    value = section.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        message = f"'{key}' must be a list of rules, not {type_name(value)}"
        section.add_problem(key, message, 'write [{"servers": ["…"], "decision": "deny"}]')
        return None
    before = len(section.problems)
    if len(value) > MAX_RULES:
        section.add_problem(
            key, f"there are {len(value)} rules; at most {MAX_RULES} are allowed", "merge some"
        )
        return None
    path = join_path(section.path, key)
    rules = [
        _parse_rule(each, join_path(path, index), section.problems, environ)
        for index, each in enumerate(value)
    ]
    parsed = tuple(rule for rule in rules if rule is not None)
    return parsed if len(section.problems) == before else None


def _parse_rule(
    value: object, path: str, problems: list[Problem], environ: Mapping[str, str]
) -> PolicyRule | None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        fix = 'write {"servers": ["…"], "decision": "deny"}'
        problems.append(Problem(path, f"a rule must be an object, not {type_name(value)}", fix))
        return None
    rule = Section(value, path, problems)
    rule.refuse_unknown(RULE_SCHEMA["properties"])
    decision = rule.choice("decision", _DECISIONS)
    if decision is None and not rule.has("decision"):
        rule.add_problem("decision", "'decision' is missing", f"write one of {', '.join(_DECISIONS)}")
    _check_limits(rule, decision)
    transports = _patterns(rule, "transports")
    for index, transport in enumerate(transports or ()):
        if transport not in TRANSPORTS:
            message = f"unknown transport '{transport[:40]}'"
            where = join_path(join_path(path, "transports"), index)
            problems.append(Problem(where, message, f"write one of {', '.join(TRANSPORTS)}"))
    return PolicyRule(
        decision=decision or Decision.DENY,
        place=path,
        reason=rule.string("reason") or "",
        clients=_patterns(rule, "clients"),
        executables=_patterns(rule, "executables"),
        transports=transports,
        profiles=_patterns(rule, "profiles"),
        directories=_directories(rule, environ),
        servers=_patterns(rule, "servers"),
        tools=_patterns(rule, "tools"),
        prompts=_patterns(rule, "prompts"),
        resources=_patterns(rule, "resources"),
        hints=_hints(rule),
        tags=_patterns(rule, "tags"),
        rate=_rate(rule),
        concurrent=rule.integer("concurrent", minimum=1),
    )


def _check_limits(rule: Section, decision: Decision | None) -> None:
    limits = [key for key in ("rate", "concurrent") if rule.has(key)]
    if decision is Decision.LIMIT and not limits:
        rule.add_problem(None, "a rule that limits needs 'rate' or 'concurrent'", 'write "rate": "10/min"')
    elif decision not in (Decision.LIMIT, None):
        for key in limits:
            fix = 'write "decision": "limit", and a rule for the decision after it'
            rule.add_problem(key, f"only rules with the decision 'limit' can have '{key}'", fix)


def _rate(rule: Section) -> RateLimit | None:
    written = rule.string("rate")
    if written is None:
        return None
    found = _RATE.fullmatch(written)
    if found is None:
        rule.add_problem(
            "rate", f"'rate' cannot be {shorten(written, 40)!r}", 'write "10/s", "10/min" or "10/h"'
        )
        return None
    count = int(found[1])
    if count > MAX_RATE:
        fix = f"write at most {MAX_RATE}, for a shorter period"
        rule.add_problem("rate", f"'rate' allows {count} uses; at most {MAX_RATE} are possible", fix)
    return RateLimit(count, _SECONDS[found[2]], written)


def _patterns(rule: Section, key: str) -> tuple[str, ...] | None:
    found = rule.strings(key)
    if found is not None and not found:
        rule.add_problem(
            key, f"'{key}' is empty, so the rule would never match", "add a pattern, or remove it"
        )
    for index, pattern in enumerate(found or ()):
        if not pattern or re.search(r"[\[\]]", pattern):
            what = "is empty" if not pattern else "contains a bracket, which is no wildcard here"
            where = join_path(join_path(rule.path, key), index)
            rule.problems.append(Problem(where, f"this pattern {what}", "use the wildcards * and ?"))
    return found


def _directories(rule: Section, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    found = _patterns(rule, "directories")
    if found is None:
        return None
    expanded = []
    for index, text in enumerate(found):
        pattern = expand_home(text, environ)
        if not pattern.startswith("/"):
            where = join_path(join_path(rule.path, "directories"), index)
            rule.problems.append(Problem(where, "not an absolute directory", "begin it with / or ~/"))
        expanded.append(os.path.normpath(pattern))
    return tuple(expanded)


def _hints(rule: Section) -> Mapping[str, bool] | None:
    child = rule.child("annotations")
    if child is None:
        return None
    child.refuse_unknown(HINTS)
    hints = {name: value for name in HINTS if (value := child.boolean(name)) is not None}
    if not child.values:
        rule.add_problem(
            "annotations", "'annotations' is empty", 'write {"readOnlyHint": false}, or remove it'
        )
    return hints
