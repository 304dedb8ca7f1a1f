"""`settings.policies` and `settings.profiles`: what clients may see and use."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Literal, NewType

import attrs

from mcpd.config.structuring import (
    field,
    object_schema,
    read,
    register,
    set_members,
    text,
    written_fields,
)
from mcpd.config.variables import expand_home
from mcpd.model.codec import Invalid, wrong_type
from mcpd.model.errors import Problem
from mcpd.model.json_path import closest_match, join_path
from mcpd.model.policy import (
    ALL_SERVERS,
    HINTS,
    Decision,
    PolicyRule,
    Profile,
    RateLimit,
    Surface,
    read_only_rule,
)
from mcpd.model.record import Record
from mcpd.model.server_spec import LEAST_RESULT_LIMIT
from mcpd.model.text import shorten
from mcpd.model.tool_names import ClientStyle

MAX_RULES = 1000
MAX_PATTERNS = 2000
"""For tools, prompts and resources, in all rules: comparing an item with them takes a millisecond for 30."""
"""Each call of a client may be compared with all of them."""
MAX_RATE = 1000
"""Uses in a period: the time of each is kept."""
_RATE = re.compile(r"^([1-9][0-9]{0,8}) ?/ ?(s|min|h)$")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}

Pattern = NewType("Pattern", str)


def _pattern(value: object) -> str:
    pattern = text(value)
    if re.search(r"[\[\]]", pattern):
        raise Invalid("contains a bracket, which is no wildcard here", "use the wildcards * and ?")
    return pattern


def _rate(value: object) -> RateLimit:
    written = text(value)
    found = _RATE.fullmatch(written)
    if found is None:
        raise Invalid(f"cannot be {shorten(written, 40)!r}", 'write "10/s", "10/min" or "10/h"')
    count = int(found[1])
    if count > MAX_RATE:
        fix = f"write at most {MAX_RATE}, for a shorter period"
        raise Invalid(f"allows {count} uses; at most {MAX_RATE} are possible", fix)
    return RateLimit(count, _SECONDS[found[2]], written)


register(Pattern, _pattern, {"type": "string"})
register(RateLimit, _rate, {"type": "string", "pattern": _RATE.pattern})
Patterns = tuple[Pattern, ...]
Transport = Literal["bridge", "socket", "http", "control"]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenHints(Record):
    read_only_hint: bool | None = field("Whether it does not change anything.")
    destructive_hint: bool | None = field("Whether it may destroy something.")
    idempotent_hint: bool | None = field("Whether to call it again has no further effect.")
    open_world_hint: bool | None = field("Whether it uses other systems, such as the web.")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenRule(Record):
    """One of `settings.policies`; see `PolicyRule`."""

    decision: Decision | None = field("What happens to a use that matches.")
    reason: str | None = field("Why the rule exists.")
    clients: Patterns | None = field("Names of clients.")
    executables: Patterns | None = field("Paths of the clients' programs.")
    transports: tuple[Transport, ...] | None = field("How the clients are connected.")
    profiles: Patterns | None = field("The profiles of the clients.")
    people: Patterns | None = field("The people whose access tokens the clients use.")
    groups: Patterns | None = field("The groups of these people, or the scopes of their tokens.")
    directories: Patterns | None = field("The directories in which the clients work, and those below.")
    servers: Patterns | None = field("Names of servers.")
    tools: Patterns | None = field("Tools: TOOL or TOOL@SERVER.")
    prompts: Patterns | None = field("Names of prompts.")
    resources: Patterns | None = field("URIs of resources.")
    annotations: WrittenHints | None = field("Annotations that a tool must have.")
    tags: Patterns | None = field("Tags in definitions of servers.")
    answer: Literal["outside"] | None = field("`outside`: ask with `mcpctl approvals`, not in the client.")
    rate: RateLimit | None = field("How often each client may use each item.")
    concurrent: int | None = field("How many calls of each item at the same time.", minimum=1)


POLICIES_SHAPE = {
    "type": "array",
    "maxItems": MAX_RULES,
    "items": {**object_schema(WrittenRule), "required": ["decision"]},
}


def read_policies(
    value: object, path: str, environ: Mapping[str, str], problems: list[Problem]
) -> tuple[PolicyRule, ...]:
    """Return the rules at `path`. If any of them is invalid, a single one that denies everything, because
    part of a rule set may allow what the whole would not."""
    if value is None:
        return ()
    before = len(problems)
    rules = []
    if not isinstance(value, list):
        message = str(wrong_type("a list of rules", value))
        problems.append(Problem(path, message, 'write [{"servers": ["…"], "decision": "deny"}]'))
    elif len(value) > MAX_RULES:
        message = f"there are {len(value)} rules; at most {MAX_RULES} are allowed"
        problems.append(Problem(path, message, "merge some"))
    else:
        rules = [_rule(each, join_path(path, index), environ, problems) for index, each in enumerate(value)]
        count = sum(
            len(names or ()) for each in rules for names in (each.tools, each.prompts, each.resources)
        )
        if count > MAX_PATTERNS:
            message = f"the rules have {count} patterns for names; at most {MAX_PATTERNS} are allowed"
            problems.append(Problem(path, message, "merge some with wildcards"))
    return tuple(rules) if len(problems) == before else (rule_for_errors(path),)


def rule_for_errors(path: str) -> PolicyRule:
    """Return what replaces rules with errors: part of them may allow what the whole would not."""
    return PolicyRule(decision=Decision.DENY, place=path, reason="the rules have errors")


_ONE_OF = f"write one of {', '.join(each.value for each in Decision)}"


def _rule(value: object, path: str, environ: Mapping[str, str], problems: list[Problem]) -> PolicyRule:
    before = len(problems)
    members = set_members(read(value, WrittenRule, path, problems))
    decision = members.pop("decision", None)
    if len(problems) == before:
        _check_decision(decision, members, path, problems)
    for name in [name for name, member in members.items() if member == ()]:
        message = f"'{name}' is empty, so the rule would never match"
        problems.append(Problem(join_path(path, name), message, "add a pattern, or remove it"))
    if "annotations" in members:
        members["hints"] = _hints(members.pop("annotations"), join_path(path, "annotations"), problems)
    if "directories" in members:
        place = join_path(path, "directories")
        members["directories"] = _directories(members["directories"], place, environ, problems)
    return PolicyRule(decision=decision or Decision.DENY, place=path, **members)


def _check_decision(
    decision: Decision | None, members: Mapping[str, object], path: str, problems: list[Problem]
) -> None:
    limits = [key for key in ("rate", "concurrent") if key in members]
    if decision is None:
        problems.append(Problem(join_path(path, "decision"), "'decision' is missing", _ONE_OF))
    elif decision is Decision.LIMIT and not limits:
        message = "a rule that limits needs 'rate' or 'concurrent'"
        problems.append(Problem(path, message, 'write "rate": "10/min"'))
    elif decision is not Decision.LIMIT:
        for key in limits:
            fix = 'write "decision": "limit", and a rule for the decision after it'
            message = f"only rules with the decision 'limit' can have '{key}'"
            problems.append(Problem(join_path(path, key), message, fix))
    if "answer" in members and decision not in (None, Decision.ASK):
        message = "only rules with the decision 'ask' can have 'answer'"
        problems.append(Problem(join_path(path, "answer"), message, "remove it"))


def _hints(written: WrittenHints, path: str, problems: list[Problem]) -> dict[str, bool]:
    found = set_members(written)
    if not found:
        fix = 'write {"readOnlyHint": false}, or remove it'
        problems.append(Problem(path, "'annotations' is empty", fix))
    names = {name: attribute for name, (attribute, _) in written_fields(WrittenHints).items()}
    return {name: found[names[name]] for name in HINTS if names[name] in found}


def _directories(
    patterns: tuple[str, ...], path: str, environ: Mapping[str, str], problems: list[Problem]
) -> tuple[str, ...]:
    expanded = [expand_home(each, environ) for each in patterns]
    for index, directory in enumerate(expanded):
        if not directory.startswith("/"):
            message = "not an absolute directory"
            problems.append(Problem(join_path(path, index), message, "begin it with / or ~/"))
    return tuple(map(os.path.normpath, expanded))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WrittenProfile(Record):
    """One of `settings.profiles`. Names may contain `*` and `?`; a tool may be written `tool@server`."""

    servers: tuple[str, ...] | None = field("Names of servers.")
    include_tools: tuple[str, ...] | None = field("The tools to select.")
    exclude_tools: tuple[str, ...] | None = field("The tools to leave out.")
    tags: tuple[str, ...] | None = field("Tags of the tools to select.")
    style: ClientStyle | None = field("How tool names are combined.", name="clientToolNames")
    read_only: bool | None = field("Refuse tools that are not annotated as read-only.")
    validate: bool | None = field("Whether to check arguments and structured results.")
    surface: Surface | None = field("Whether clients are listed all tools, or tools to find them.")
    result_limit: int | None = field(
        "Characters of a longer result's text, of which only a part is passed on.", minimum=LEAST_RESULT_LIMIT
    )


PROFILES_SHAPE = {"type": "object", "additionalProperties": object_schema(WrittenProfile)}


def read_profiles(value: Mapping[str, object], path: str, problems: list[Problem]) -> dict[str, Profile]:
    """Return the profiles by name. One with an error selects no server until it is fixed."""
    profiles = {}
    for name, each in value.items():
        before = len(problems)
        members = set_members(read(each, WrittenProfile, join_path(path, name), problems))
        profiles[name] = Profile(name=name, **(members if len(problems) == before else {"servers": ()}))
    return profiles


def read_only_rules(profiles: Mapping[str, Profile], path: str) -> list[PolicyRule]:
    """Return the rules that `readOnly` in profiles stands for."""
    return [
        read_only_rule(join_path(join_path(path, name), "readOnly"), profiles=(name,))
        for name, profile in profiles.items()
        if profile.read_only
    ]


def read_profile_rules(
    written: Mapping[str, str],
    profiles: Mapping[str, Profile],
    path: str,
    environ: Mapping[str, str],
    problems: list[Problem],
) -> dict[str, str]:
    """Return `profileByDirectory`, with and without symbolic links in the patterns."""
    rules: dict[str, str] = {}
    for written_pattern, profile in written.items():
        place = join_path(path, written_pattern)
        pattern = expand_home(written_pattern, environ)
        if not pattern.startswith("/"):
            problems.append(Problem(place, "not an absolute directory", "begin it with / or ~/"))
        if profile not in profiles and profile != ALL_SERVERS:
            match = closest_match(profile, list(profiles))
            fix = f"did you mean '{match}'?" if match else "add it to 'profiles', or write '*' for everything"
            problems.append(Problem(place, f"there is no profile '{shorten(profile, 40)}'", fix))
        rules[os.path.normpath(pattern)] = profile
        rules[_resolve_links(pattern)] = profile
    return rules


def _resolve_links(pattern: str) -> str:
    """Resolve symbolic links before the first wildcard: a process knows its directory without links."""
    head, found, _ = pattern.partition("*")
    head, found, _ = head.partition("?") if not found else (head, found, "")
    stem = head if not found else head.rpartition("/")[0] or "/"
    try:
        stem_without_links = os.path.realpath(stem)
    except ValueError:  # NUL or half a surrogate pair: no directory has such a name
        return os.path.normpath(pattern)
    return os.path.normpath(stem_without_links + "/" + pattern[len(stem) :])
