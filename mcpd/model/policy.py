"""Profiles, which select servers and tools, and policies: rules that decide which client may use which tool,
prompt or resource. Decides without any I/O.

The first rule that matches decides; without one, everything is allowed. Clients choose what they call
themselves, and servers how they name things, so a rule that restricts is matched generously, and a rule that
allows exactly:

- A restricting rule (`deny` or `ask`) also matches if mcpd does not know what it asks for, such as the
  executable of a client on a TCP connection, and names that differ from the one in the rule only in case, in
  invisible characters or in width.
- An allowing rule matches only what is known, and only names as they are written. Of a client's names, it
  matches the one under which people see the client: they allow something to that one.

A rule that limits (`limit`) restricts, and decides nothing: the rules behind it are compared as well.
"""

from __future__ import annotations

import enum
import functools
import os.path
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import Literal, get_args

import attrs

from mcpd.model import json_text
from mcpd.model.record import Record
from mcpd.model.resource_uris import uri_matches
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import fold, shorten, similar_names
from mcpd.model.tool_names import ClientStyle

ItemKind = Literal["tool", "prompt", "resource", "method"]
"""What a client uses. `method`: a request that mcpd does not know and only forwards."""

TRANSPORTS = ("bridge", "socket", "http", "control")
"""How a client is connected: through `mcpctl bridge`, on the socket, over HTTP; and with which protocol:
`control` is the control API, which `mcpctl call` and the Python client use."""

HINTS: Mapping[str, bool] = {
    "readOnlyHint": False,
    "destructiveHint": True,
    "idempotentHint": False,
    "openWorldHint": True,
}
"""The annotations of tools that rules can ask for → what is assumed of a tool that does not say (MCP
2025-11-25, schema, ToolAnnotations)."""


class Decision(enum.Enum):
    ALLOW = "allow"
    ASK = "ask"
    """A person must approve each use."""
    DENY = "deny"
    LIMIT = "limit"
    """A use that other rules allow counts towards the rule's limits."""


@attrs.frozen(kw_only=True, eq=False)
class ClientFacts:
    """What is known of a client. Compared by identity. Empty means unknown, except for `profile`."""

    names: tuple[str, ...] = ()
    """All names that it is known by: what it calls itself, and the name of its program."""
    shown: tuple[str, ...] = ()
    """The name under which people see it, and last the same name without the version that it reports.
    Rules that allow are compared with these names only."""
    executable: str = ""
    """The path of its program's file, according to the kernel."""
    transport: str = ""
    profile: str = ""
    directory: str = ""
    """The working directory of the client, according to the kernel."""
    person: str = ""
    """Whose access token its requests carry; empty for the person who runs mcpd."""
    groups: tuple[str, ...] = ()
    """That person's groups, and the scopes of the token."""


@attrs.frozen(kw_only=True)
class UsedItem:
    """What a client wants to use."""

    server: str
    kind: ItemKind
    name: str
    """The server's own name for it; the URI of a resource."""
    hints: Mapping[str, bool] | None = None
    """The annotations of a tool, with the assumed values. None if they are not known."""
    tags: tuple[str, ...] = ()
    """The tags of its definition that apply to it."""
    similar_tags: tuple[str, ...] = ()
    """The tags of names that look like the item's name, but differ from it."""


@attrs.frozen
class RateLimit:
    """`count` uses in any `seconds`."""

    count: int
    seconds: float
    written: str
    """The rate as it is written in the rule: `10/min`."""


@attrs.frozen(kw_only=True)
class PolicyRule:
    """One rule. A condition that is None is always met. Names are patterns with `*` and `?`."""

    decision: Decision
    place: str
    """Where it is written, as a JSON path: `$.settings.policies[2]`."""
    reason: str = ""
    """Why it exists, in the user's words."""
    clients: tuple[str, ...] | None = None
    executables: tuple[str, ...] | None = None
    """Paths; a pattern without `/` is compared with the last part."""
    transports: tuple[str, ...] | None = None
    profiles: tuple[str, ...] | None = None
    directories: tuple[str, ...] | None = None
    """Each includes all directories below it."""
    people: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    """Of the person. The person who runs mcpd has no name here, and no groups."""
    servers: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    """`TOOL` or `TOOL@SERVER`."""
    prompts: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    """URIs. A rule with any of `tools`, `prompts` and `resources` is about nothing else."""
    hints: Mapping[str, bool] | None = None
    """Annotations that a tool must have. A rule with them is about tools."""
    tags: tuple[str, ...] | None = None
    """Tags in definitions of servers (`ServerSpec.tags`, `tool_tags`)."""
    answer: Literal["outside"] | None = None
    """`outside`: the client that makes the call is not asked. Only rules that ask have this member."""
    rate: RateLimit | None = None
    """How often each client may use each item. Only rules that limit have this member and `concurrent`."""
    concurrent: int | None = None
    """How many calls of each item each client may make at the same time."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """The same text for equal rules, wherever they are written."""
        return repr(attrs.evolve(self, place=""))

    @property
    def is_strict(self) -> bool:
        """Whether it restricts, and is matched generously."""
        return self.decision is not Decision.ALLOW

    def mismatch(self, client: ClientFacts, item: UsedItem) -> str:
        """Return which condition is not met, in words; empty if the rule matches."""
        return self.item_mismatch(item) or self.client_mismatch(client)

    def client_mismatch(self, client: ClientFacts) -> str:
        """Return which condition about the client is not met; empty if all are."""
        names = client.names if self.is_strict else client.shown
        return (
            self._differs("client", self.clients, names)
            or self._differs("executable", self.executables, _path_forms(client.executable))
            or self._differs("transport", self.transports, (client.transport,) if client.transport else ())
            or self._profile_mismatch(client.profile)
            or self._directory_mismatch(client.directory)
            or self._person_mismatch(client)
        )

    def _differs(self, what: str, patterns: tuple[str, ...] | None, known: tuple[str, ...]) -> str:
        """Return that a fact about the client does not match the patterns. `known`: its forms, if any."""
        if patterns is None or (self.is_strict and not known):
            return ""
        if not known:
            return f"the {what} is not known"
        return "" if matches(patterns, known, strict=self.is_strict) else f"the {what} is {known[0]}"

    def _profile_mismatch(self, profile: str) -> str:
        if self.profiles is None or matches(self.profiles, (profile,), strict=self.is_strict):
            return ""
        return f"the profile is {profile or 'not set'}"

    def _directory_mismatch(self, directory: str) -> str:
        if self.directories is None or (self.is_strict and not directory):
            return ""
        if not directory:
            return "the directory is not known"
        is_below = any(_is_within(directory, each) for each in self.directories)
        return "" if is_below else f"the directory is {directory}"

    def _person_mismatch(self, client: ClientFacts) -> str:
        if self.people is not None and not matches(self.people, (client.person,), strict=self.is_strict):
            return f"the person is {client.person or 'the one who runs mcpd'}"
        if self.groups is not None and not matches(self.groups, client.groups, strict=self.is_strict):
            return f"the groups are {', '.join(client.groups) or 'none'}"
        return ""

    def item_mismatch(self, item: UsedItem) -> str:
        """Return which condition about the server or the item is not met; empty if all are."""
        return self._place_mismatch(item) or self._name_mismatch(item) or self._hints_mismatch(item)

    def _patterns(self, kind: ItemKind) -> tuple[str, ...] | None:
        """Return the patterns for the names of such items; None if the rule does not ask for names."""
        return {"tool": self.tools, "prompt": self.prompts, "resource": self.resources}.get(kind)

    def _name_mismatch(self, item: UsedItem) -> str:
        patterns = self._patterns(item.kind)
        if patterns is None:
            return ""
        if item.kind == "resource":
            is_same = uri_matches(patterns, item.name, strict=self.is_strict)
        else:
            forms = (item.name, f"{item.name}@{item.server}") if item.kind == "tool" else (item.name,)
            is_same = matches(patterns, forms, strict=self.is_strict)
        return "" if is_same else f"the {item.kind} is {item.name}"

    def _place_mismatch(self, item: UsedItem) -> str:
        """Return which condition about the server, the tags or the kind of item is not met."""
        if self.servers is not None and not matches(self.servers, (item.server,), strict=self.is_strict):
            return f"the server is {item.server}"
        if self.tags is not None:
            tags = (*item.tags, *item.similar_tags) if self.is_strict else item.tags
            if not matches(self.tags, tags, strict=self.is_strict):
                return f"the tags are {', '.join(item.tags)}" if item.tags else "it has no tags"
        is_about_some = any(each is not None for each in (self.tools, self.prompts, self.resources))
        if is_about_some and self._patterns(item.kind) is None:
            return f"it is not about {item.kind}s"
        return ""

    def _hints_mismatch(self, item: UsedItem) -> str:
        """Return which condition about the annotations is not met."""
        if self.hints is None:
            return ""
        if item.kind in ("prompt", "resource"):
            return f"it is not about {item.kind}s"
        if item.hints is None:
            return "" if self.is_strict else "the annotations are not known"
        for hint, value in self.hints.items():
            if item.hints[hint] is not value:
                return f"{hint} is {str(item.hints[hint]).lower()}"
        return ""


@attrs.frozen(kw_only=True)
class Verdict:
    """A decision, and the rule that made it; None if no rule matches."""

    decision: Decision
    rule: PolicyRule | None = None
    limits: tuple[PolicyRule, ...] = ()
    """The rules before it that limit the use."""


ALLOWED = Verdict(decision=Decision.ALLOW)


def decide(rules: Sequence[PolicyRule], client: ClientFacts, item: UsedItem) -> Verdict:
    """Return the decision of the first rule that matches, apart from those that limit."""
    return first_decision(rule for rule in rules if not rule.mismatch(client, item))


def first_decision(matching: Iterable[PolicyRule]) -> Verdict:
    """Return the verdict of rules that match, in their order. They are read as far as necessary."""
    limits: tuple[PolicyRule, ...] = ()
    for rule in matching:
        if rule.decision is not Decision.LIMIT:
            return Verdict(decision=rule.decision, rule=rule, limits=limits)
        limits = (*limits, rule)
    return Verdict(decision=Decision.ALLOW, limits=limits) if limits else ALLOWED


def read_only_rule(
    place: str, *, servers: tuple[str, ...] | None = None, profiles: tuple[str, ...] | None = None
) -> PolicyRule:
    """Return the rule that `readOnly: true` stands for: tools must be annotated as read-only."""
    return PolicyRule(
        decision=Decision.DENY,
        place=place,
        reason="only tools with readOnlyHint are allowed",
        hints={"readOnlyHint": False},
        servers=servers,
        profiles=profiles,
    )


def _path_forms(path: str) -> tuple[str, ...]:
    return (path, path.rpartition("/")[2]) if path else ()


def _is_within(directory: str, pattern: str) -> bool:
    """Return whether the directory, or one above it, matches. Wildcards do not match `/`."""
    here, wanted = directory.strip("/").split("/"), pattern.strip("/").split("/")
    if wanted == [""]:
        return True
    return len(wanted) <= len(here) and all(
        _pattern((part,)).fullmatch(name) for part, name in zip(wanted, here, strict=False)
    )


def matches(patterns: tuple[str, ...], names: Sequence[str], *, strict: bool) -> bool:
    """Return whether any name matches any pattern. `strict` also accepts other spellings."""
    if any(map(_pattern(patterns).fullmatch, names)):
        return True
    return strict and any(map(_folded_pattern(patterns).fullmatch, map(fold, names)))


@functools.lru_cache(maxsize=4096)
def _pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(each) for each in patterns) or r"(?!)")


@functools.lru_cache(maxsize=4096)
def _folded_pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return _pattern(tuple(map(fold, patterns)))


def tags_of_tool(spec: ServerSpec, tool: str) -> tuple[str, ...]:
    """Return the tags of a tool: those of its server, then those of its own name."""
    if not spec.tool_tags:
        return spec.tags
    own = (tag for pattern, tags in spec.tool_tags.items() if fnmatchcase(tool, pattern) for tag in tags)
    return tuple(dict.fromkeys((*spec.tags, *own)))


def tags_of_similar_tools(spec: ServerSpec, tool: str) -> tuple[str, ...]:
    """Return the tags of names that a tolerant server may take for this one."""
    folded = fold(tool)
    return tuple(
        tag for pattern, tags in spec.tool_tags.items() if fnmatchcase(folded, fold(pattern)) for tag in tags
    )


def all_tags(spec: ServerSpec) -> frozenset[str]:
    """Return every tag that the definition uses."""
    return frozenset(spec.tags).union(*spec.tool_tags.values())


def declares(tool: bytes, section: str, member: str, value: bytes) -> bool:
    """Return whether the list entry `tool` has exactly this value for a member of one of its sections."""
    if member.encode() not in tool:
        return False
    try:
        declared = json_text.members(json_text.members(tool).get(section, b"{}"))
    except (ValueError, RecursionError):
        return False
    return bytes(declared.get(member, b"")) == value


def is_read_only(tool: bytes) -> bool:
    """Return the `annotations.readOnlyHint` of the list entry `tool`."""
    return declares(tool, "annotations", "readOnlyHint", b"true")


def uncached_tools(
    spec: ServerSpec, find: Callable[[str], bytes | None], names: Iterable[str]
) -> Iterator[str]:
    """Return a warning for each tool in the definition's `cache` that is unknown or may write.

    `find` returns the list entry of a tool, or None; `names` are all tools of the server.
    """
    for name in spec.cache or ():
        tool, shown = find(name), shorten(name, 60)
        if tool is None:
            near = similar_names(name, names)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            yield f"`cache` names the tool {shown!r}, which is not in the server's list of tools{hint}"
        elif not is_read_only(tool):
            yield (
                f"`cache` names the tool {shown!r}, whose results are not cached, because the server does "
                "not declare that it only reads (`readOnlyHint`)"
            )


Surface = Literal["auto", "full", "search"]
"""What a client of several servers is listed: all tools (`full`), or tools to find them (`search`)."""
SURFACES: tuple[Surface, ...] = get_args(Surface)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Profile(Record):
    """One of `settings.profiles`. The default selects all servers and tools."""

    name: str = ""
    servers: tuple[str, ...] | None = None
    """The names of the servers, with the wildcards `*` and `?`. None selects all servers."""
    include_tools: tuple[str, ...] | None = None
    """Patterns such as `tool` or `tool@server`, with the wildcards `*` and `?`. None selects all tools."""
    exclude_tools: tuple[str, ...] = ()
    tags: tuple[str, ...] | None = None
    """The tags of the tools to select, with the wildcards `*` and `?`. Prompts and resources are selected if
    the definition of their server uses any of these tags. None selects all."""
    style: ClientStyle | None = None
    """The style of tool names. None selects the style set in `settings.clientToolNames`."""
    read_only: bool = False
    """Whether tools that are not annotated as read-only are refused."""
    validate: bool | None = None
    """Whether tool calls are checked against the tools' schemas. None: as `ServerSpec.validate`."""
    surface: Surface | None = None
    """What clients are listed. None: `auto`."""
    result_limit: int | None = None
    """Overrides `ServerSpec.result_limit`."""


ALL_SERVERS = "*"
"""Selects all servers and tools when it is used instead of the name of a profile."""


def match_profile(directory: str, rules: Mapping[str, str]) -> str | None:
    """Return the profile that the rules (`settings.profileByDirectory`) assign to an absolute directory.

    A pattern is matched part by part, and also applies to all directories below. The deepest matching
    pattern wins; among equally deep ones, the one with fewer wildcards.
    """
    here = _parts(directory)
    best: tuple[int, int] | None = None
    found = None
    for pattern, profile in rules.items():
        wanted = _parts(pattern)
        if len(wanted) <= len(here) and all(map(fnmatchcase, here, wanted)):
            rank = (len(wanted), sum(not set("*?[") & set(part) for part in wanted))
            if best is None or rank > best:
                best, found = rank, profile
    return found


def _parts(path: str) -> list[str]:
    return [part for part in os.path.normpath(path).split("/") if part]
