"""A server's lists of tools, resources, templates and prompts, every entry as the bytes the server sent."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import attrs
import msgspec
from msgspec import Raw

from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import fold, shorten, similar_names
from mcpd.protocol.upstream_session import FEATURES
from mcpd.wire import message as wire
from mcpd.wire.headers import mirrored_properties

MAX_ENTRIES = 10_000
"""Entries of one list."""
MAX_NAME = 64 * 1024
"""Bytes of the name or URI of an entry, as JSON: names are compared, renamed, and shown."""
_COMPARED = 1024 * 1024
"""Bytes of entries that are compared as JSON values; more would delay others."""
SHOWN_NAMES = 5
"""Names in a description of changed entries; of the others, only the number is shown."""


class Item(msgspec.Struct, frozen=True):
    """One list entry: the name (or URI) it is requested by, and its bytes."""

    name: str
    raw: bytes
    original: Item | None = None
    """The server's own entry, if the definition changes it (`tool_overrides`)."""


Listing = tuple[Item, ...]


class CacheHint(msgspec.Struct, frozen=True, kw_only=True):
    """How long a feature's lists may be cached, and for whom (MCP 2026-07-28, `ttlMs` and `cacheScope`)."""

    ttl: float
    """Seconds from `received_at`; the minimum over all pages and lists of the feature. 0: do not cache."""
    received_at: float
    """When the first of these pages arrived (`trio.current_time()`)."""
    private: bool = True
    """Whether any page was for the requesting client only."""

    @property
    def fresh_until(self) -> float:
        return self.received_at + self.ttl


@attrs.frozen(kw_only=True)
class Catalog:
    """Complete lists in the server's order, as of `fetched_at`."""

    tools: Listing = ()
    resources: Listing = ()
    templates: Listing = ()
    prompts: Listing = ()
    fetched_at: str = ""
    warnings: tuple[str, ...] = ()
    """Problems in otherwise usable responses."""
    dropped_tools: int = 0
    hints: Mapping[str, CacheHint] = attrs.field(factory=dict, eq=False)
    """By feature. Empty for servers older than 2026-07-28, which send no hints."""
    failed: Mapping[str, str] = attrs.field(factory=dict, eq=False)
    """By feature: why one of its lists could not be fetched. The last list is kept."""

    def entries(self, feature: str) -> dict[str, bytes]:
        """Return all entries of one of `FEATURES` by name or URI."""
        fields = (kind.field for kind in LIST_METHODS if kind.feature == feature)
        return {item.name: item.raw for field in fields for item in getattr(self, field)}

    def names(self, feature: str) -> set[str]:
        """Return the names or URIs of all entries of one of `FEATURES`."""
        return set(self.entries(feature))

    def tool(self, name: str) -> Item | None:
        return self._tools_by_name.get(name)

    def raw_tool(self, name: str) -> bytes | None:
        item = self.tool(name)
        return None if item is None else item.raw

    @cached_property
    def annotated_tools(self) -> Mapping[str, Mapping[str, object]]:
        """Tool → input schema, for the few tools whose arguments are repeated in HTTP headers."""
        return {
            tool.name: schema
            for tool in self.tools
            if b"x-mcp-header" in tool.raw and mirrored_properties(schema := _input_schema(tool.raw))
        }

    @cached_property
    def _tools_by_name(self) -> Mapping[str, Item]:
        return {tool.name: tool for tool in reversed(self.tools)}


def _input_schema(tool: bytes) -> Mapping[str, object]:
    try:
        return wire.mapping(wire.members(tool).get("inputSchema"))
    except wire.BadFrame:
        return {}


class ListMethod(msgspec.Struct, frozen=True):
    """How one kind of list is fetched, and where it is kept."""

    feature: str
    """One of `FEATURES`."""
    method: str
    member: str
    key: str
    """The member that names an entry."""
    field: str
    """The field of `Catalog`."""
    noun: str


LIST_METHODS = (
    ListMethod("tools", "tools/list", "tools", "name", "tools", "tool"),
    ListMethod("resources", "resources/list", "resources", "uri", "resources", "resource"),
    ListMethod(
        "resources",
        "resources/templates/list",
        "resourceTemplates",
        "uriTemplate",
        "templates",
        "resource template",
    ),
    ListMethod("prompts", "prompts/list", "prompts", "name", "prompts", "prompt"),
)


def did_you_mean(name: str, entries: Listing) -> str:
    """Return `did you mean …?` with similar names; empty if there are none."""
    near = similar_names(name, (item.name for item in entries))
    return f"did you mean {' or '.join(near)}?" if near else ""


def is_tool_allowed(spec: ServerSpec, tool: str) -> bool:
    """Whether the definition's `includeTools` and `excludeTools` allow this tool. `excludeTools` also
    excludes names that a tolerant server may take for an excluded one."""
    if spec.include_tools is not None and not _matches(tool, spec.include_tools):
        return False
    excluded = spec.exclude_tools
    return not (_matches(tool, excluded) or _matches(fold(tool), tuple(map(fold, excluded))))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def name_of_entry(entry: Raw, key: str) -> str | None:
    try:
        members = wire.members(entry)
        if len(members[key]) > MAX_NAME:
            return None
        name = msgspec.json.decode(members[key], type=str)
        if key == "name" and bytes(members.get("inputSchema", b"null")) != b"null":
            wire.members(members["inputSchema"])
    except (KeyError, *wire.DECODE_ERRORS):
        return None
    return name or None


_PLAIN_SCHEMA = re.compile(rb'"inputSchema": ?\{"type": ?"object"[,}]')


def repair_entry(entry: bytes, member: str) -> bytes:
    """Return an entry of a list without members that are null, and a tool with a schema of type object.

    SDKs reject the whole list because of one entry. `entry` has a name.
    """
    is_tool = member == "tools"
    if b"null" not in entry and (not is_tool or _PLAIN_SCHEMA.search(entry)):
        return entry
    given = wire.members(entry)
    members = _without_nulls(given)
    parts: dict[str, dict[str, Raw]] = {
        name: wire.members_or_empty(members[name]) for name in ("annotations", "execution") if name in members
    }
    repaired = {name: _without_nulls(part) for name, part in parts.items()}
    if is_tool:
        parts["inputSchema"] = schema = wire.members_or_empty(members.get("inputSchema", b"{}"))
        unset = {name for name in ("properties", "required") if bytes(schema.get(name, b"")) == b"null"}
        kept = {name: text for name, text in schema.items() if name not in unset}
        repaired["inputSchema"] = kept if "type" in kept else {"type": Raw(b'"object"'), **kept}
    if members == given and repaired == parts:
        return entry
    for name, part in repaired.items():
        members[name] = Raw(wire.join_members(part))
    return wire.join_members(members)


def _without_nulls(members: Mapping[str, Raw]) -> dict[str, Raw]:
    return {name: text for name, text in members.items() if bytes(text) != b"null"}


def describe_changes(old: Catalog | None, new: Catalog) -> list[tuple[str, str]]:
    """Return each changed feature with a summary like `+1 -1 ~0: +echo -ping`; no names if `old` is None."""
    changes = [(feature, _summarize_changes(feature, old, new)) for feature in FEATURES]
    return [(feature, summary) for feature, summary in changes if summary]


def _summarize_changes(feature: str, old: Catalog | None, new: Catalog) -> str:
    was, now = (old or Catalog()).entries(feature), new.entries(feature)
    added = [name for name in now if name not in was]
    removed = [name for name in was if name not in now]
    changed = [name for name in now if name in was and was[name] != now[name]]
    if sum(len(now[name]) for name in changed) <= _COMPARED:
        changed = [name for name in changed if not _is_same(was[name], now[name])]
    if not (added or removed or changed):
        return ""
    counts = f"+{len(added)} -{len(removed)} ~{len(changed)}"
    signed = [*_name_list("+", added), *_name_list("-", removed), *_name_list("~", changed)]
    return counts if old is None else f"{counts}: {' '.join(signed)}"


def _is_same(was: bytes, now: bytes) -> bool:
    """Return whether only members have another order, as between the eras of an SDK."""
    try:
        return len(was) == len(now) and msgspec.json.decode(was) == msgspec.json.decode(now)
    except wire.DECODE_ERRORS:
        return False


def _name_list(sign: str, names: list[str]) -> list[str]:
    """Return the first names, and how many more there are."""
    changes = [sign + shorten(name, 60) for name in names[:SHOWN_NAMES]]
    return [*changes, f"{sign}…{len(names) - SHOWN_NAMES} more"] if len(names) > SHOWN_NAMES else changes


def summarize(catalog: Catalog | None) -> str:
    """Return what a server offers, for the log: `9 tools, 2 prompts; …`, with everything that is wrong."""
    if catalog is None:
        return ""
    counts = ((len(getattr(catalog, kind.field)), kind.noun) for kind in LIST_METHODS)
    offers = ", ".join(f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts if n)
    return "; ".join((offers or "no tools, resources, or prompts", *catalog.warnings))
