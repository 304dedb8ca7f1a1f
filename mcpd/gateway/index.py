"""The index of several servers shown as one: public names, merged lists, and the owner of each entry.

It is built in steps: that of 10,000 tools takes 0.1 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw

from mcpd.gateway.views import catalog_items
from mcpd.model.errors import UnknownTool
from mcpd.model.steps import Steps
from mcpd.model.text import shorten
from mcpd.model.tool_names import ClientStyle, GivenNames, OwnedName, public_names_in_steps
from mcpd.supervision.catalog import Catalog
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

SCHEME = "ui://"
_ALIAS_SCHEME = "mcpd://"
_PAGE_ALIAS = f"{SCHEME}mcpd/"
"""For pages of MCP Apps, whose URIs must keep their scheme."""
_ENTRY_COST = 1000
"""An entry takes as long as this many of its bytes, and 10 µs together with as many of them."""
_PORTION = 64 * 1024
"""The cost of one step, which takes up to 0.6 ms, or more for a single long entry."""
_MAX_GIVEN = 20_000
"""Names and URIs that are kept although no server lists them any more."""
_LARGE = 1024 * 1024
"""The cost of lists whose index takes 10 ms."""


class AggregateIndex(msgspec.Struct, frozen=True):
    """The merged catalogs. Rebuilt when one of them changes."""

    tools: Mapping[str, OwnedName]
    prompts: Mapping[str, OwnedName]
    entries: Mapping[str, Sequence[bytes]]
    owners: Mapping[str, Sequence[tuple[str, str]]]
    """For each entry: (server, the server's own name or URI)."""
    resources: Mapping[str, tuple[str, str]]
    """URI or alias → (server, the server's own URI)."""
    template_owners: Mapping[str, tuple[str, str]]
    """Template or alias → (server, the server's own template)."""
    app_tools: Mapping[str, Sequence[OwnedName]]
    """Own name → tools with that name, of servers with MCP Apps."""
    known_calls: dict[bytes, tuple[str, str, bytes]] = msgspec.field(default_factory=dict)
    """First member of a call's params → (server, the tool's own name, first member for the server)."""


class Given(msgspec.Struct, eq=False):
    """What clients of a view were given, by all its indexes: none of it ever means something else."""

    tools: GivenNames = msgspec.field(default_factory=GivenNames)
    prompts: GivenNames = msgspec.field(default_factory=GivenNames)
    resources: dict[str, OwnedName] = msgspec.field(default_factory=dict)
    """URI → (server, the server's own URI)."""
    templates: dict[str, OwnedName] = msgspec.field(default_factory=dict)
    patterns: dict[OwnedName, UriTemplate] = msgspec.field(default_factory=dict)
    """The templates without an alias."""
    app_tools: dict[str, OwnedName] = msgspec.field(default_factory=dict)
    """Own name → the tool that the page of an app has called by it."""

    def limit(self, index: AggregateIndex) -> None:
        """Forget what is not listed any more if it is too much: a server may change its lists endlessly."""
        sizes = map(len, (self.tools.meanings, self.prompts.meanings, self.resources, self.templates))
        if sum(sizes) + len(self.app_tools) <= _MAX_GIVEN + 4 * sum(map(len, index.owners.values())):
            return
        self.tools.keep_only(set(index.tools.values()))
        self.prompts.keep_only(set(index.prompts.values()))
        self.resources, self.templates = dict(index.resources), dict(index.template_owners)
        listed = set(self.templates.values())
        self.patterns = {owned: each for owned, each in self.patterns.items() if owned in listed}
        self.app_tools.clear()


def _cost(entry: bytes) -> int:
    return _ENTRY_COST + len(entry)


def is_large(catalogs: Iterable[Catalog]) -> bool:
    """Return whether the index of these lists should be built in several turns of the event loop."""
    return (
        sum(
            _cost(item.raw)
            for catalog in catalogs
            for items in (catalog.tools, catalog.resources, catalog.templates, catalog.prompts)
            for item in items
        )
        > _LARGE
    )


def build_index(
    style: ClientStyle,
    catalogs: Sequence[tuple[str, Catalog]],
    includes_tool: Callable[[str, str], bool],
    given: Given,
) -> Steps[AggregateIndex]:
    """Merge the lists of servers. `includes_tool` decides by a server and the server's own name of a tool."""
    included = ((s, item.name) for s, c in catalogs for item in c.tools if includes_tool(s, item.name))
    tools = yield from public_names_in_steps(style, included, given=given.tools)
    offered = ((s, item.name) for s, c in catalogs for item in c.prompts)
    prompts = yield from public_names_in_steps(style, offered, given=given.prompts)
    resources: dict[str, OwnedName] = {}
    templates: dict[str, OwnedName] = {}
    listed = {
        "resources": (yield from _unique_entries(resources, given.resources, catalogs, "resources", "uri")),
        "resourceTemplates": (
            yield from _unique_entries(
                templates, given.templates, catalogs, "resourceTemplates", "uriTemplate"
            )
        ),
    }
    pages = yield from _index_pages(resources, given.resources, catalogs)
    listed["tools"] = yield from _rename(
        tools, ((s, item.name, item.raw) for s, c in catalogs for item in c.tools), pages
    )
    listed["prompts"] = yield from _rename(
        prompts, ((s, item.name, item.raw) for s, c in catalogs for item in c.prompts)
    )
    for public, owned in templates.items():
        if public == owned[1] and owned not in given.patterns:
            given.patterns[owned] = parse_template(public)
            yield
    app_tools = _tools_by_own_name(tools, {server for server, _ in pages})
    yield
    entries = {member: tuple(entry for _, _, entry in each) for member, each in listed.items()}
    owners = {member: tuple((server, own) for server, own, _ in each) for member, each in listed.items()}
    index = AggregateIndex(tools, prompts, entries, owners, resources, templates, app_tools)
    given.limit(index)
    return index


def _tools_by_own_name(
    tools: Mapping[str, OwnedName], servers: Collection[str]
) -> Mapping[str, Sequence[OwnedName]]:
    found: dict[str, list[OwnedName]] = {}
    for owned in tools.values():
        if owned[0] in servers:
            found.setdefault(owned[1], []).append(owned)
    return found


_Entry = tuple[str, str, bytes]
"""(server, the server's own name or URI, the entry that clients see)."""


def _rename(
    names: Mapping[str, OwnedName],
    items: Iterable[tuple[str, str, bytes]],
    pages: Mapping[OwnedName, str] | None = None,
) -> Steps[Sequence[_Entry]]:
    """Return the entries under their public names, marked with their server; other bytes are kept. `pages`
    are the public URIs of the pages that they name.
    """
    public = {owned: name for name, owned in names.items()}
    entries, size = [], 0
    for server, name, raw in items:
        if (size := size + _cost(raw)) > _PORTION:
            size = 0
            yield
        public_name = public.get((server, name))
        if public_name is None:
            continue
        members = wire.members(raw)
        members["name"] = Raw(msgspec.json.encode(public_name))
        members.pop("execution", None)  # clients cannot create tasks here; mcpd does it for them
        text = wire.string_or(members, "description")
        members["description"] = Raw(msgspec.json.encode(f"[{server}] {text}".rstrip()))
        if pages and (uri := resource_uri(members)) and (page := pages[server, uri]) != uri:
            replace_resource_uri(members, page)
        entries.append((server, name, msgspec.json.encode(members)))
    return entries


def _unique_entries(
    index: dict[str, OwnedName],
    given: dict[str, OwnedName],
    catalogs: Sequence[tuple[str, Catalog]],
    member: str,
    key: str,
) -> Steps[Sequence[_Entry]]:
    """Return the entries under unique URIs, and add the owner of each to `index`."""
    entries, size = [], 0
    for server, catalog in catalogs:
        for item in catalog_items(catalog, member):
            if (size := size + _cost(item.raw)) > _PORTION:
                size = 0
                yield
            uri, raw = item.name, item.raw
            if uri in index or given.setdefault(uri, (server, uri)) != (server, uri):
                uri = _alias(server, uri)
                raw = replace_member(wire.members(raw), key, uri)
            index[uri] = (server, item.name)
            entries.append((server, item.name, raw))
    return entries


def _index_pages(
    index: dict[str, OwnedName], given: dict[str, OwnedName], catalogs: Sequence[tuple[str, Catalog]]
) -> Steps[Mapping[OwnedName, str]]:
    """Return the public URI of each page of an MCP App, by its server and own URI. Add the owners of pages
    that are not listed to `index`.
    """
    public = {owned: uri for uri, owned in index.items()}
    pages: dict[OwnedName, str] = {}
    size = 0
    for server, catalog in catalogs:
        for item in catalog.tools:
            if (size := size + _cost(item.raw)) > _PORTION:
                size = 0
                yield
            own = resource_uri(wire.members(item.raw)) if b"ui" in item.raw else ""
            if own and (server, own) not in pages:
                uri = public.get((server, own))
                if uri is None:
                    is_free = own not in index and given.setdefault(own, (server, own)) == (server, own)
                    uri = own if is_free else _alias(server, own)
                pages[server, own] = uri
                index[uri] = (server, own)
    return pages


def _alias(server: str, uri: str) -> str:
    """Return the public URI of a resource whose own URI another server uses, too."""
    if uri.startswith(SCHEME):
        return f"{_PAGE_ALIAS}{server}/{uri.removeprefix(SCHEME)}"
    return f"{_ALIAS_SCHEME}{server}/{uri}"


def split_alias(uri: str) -> tuple[str, str]:
    """Return the server and its own URI; empty strings if `uri` is no alias."""
    for prefix, scheme in ((_PAGE_ALIAS, SCHEME), (_ALIAS_SCHEME, "")):
        if uri.startswith(prefix):
            server, _, rest = uri.removeprefix(prefix).partition("/")
            return (server, scheme + rest) if rest else ("", "")
    return "", ""


def replace_member(members: dict[str, Raw], name: str, value: str) -> bytes:
    return wire.join_members({**members, name: Raw(msgspec.json.encode(value))})


_SLOT = r"\{[^{}]*\}"
_MAX_LENGTH = 2000
"""Characters of a template, or of a URI compared with one."""
_MAX_SLOTS = 20
"""Slots; anything matches after the last one."""


class UriTemplate(msgspec.Struct, frozen=True):
    """A parsed URI template, matched without backtracking: a template comes from a server and a URI from a
    client, so a regular expression with twenty slots could run for years. The work here is bounded by slots
    times length.

    `{x}` matches within one path segment; `{+x}`, `{/x}` and similar match anything. Both may be empty.
    """

    start: str
    parts: tuple[tuple[bool, str], ...]
    """For each slot: whether it matches anything, and the literal text after it."""

    def matches(self, uri: str) -> bool:
        if len(uri) > _MAX_LENGTH or not uri.startswith(self.start):
            return False
        ends = {len(self.start)}
        for free, literal in self.parts:
            if not ends:
                return False
            inside, starts, ends = False, ends, set()
            for at in range(min(starts), len(uri) + 1):
                inside = at in starts or (inside and (free or uri[at - 1] != "/"))
                if inside and uri.startswith(literal, at):
                    ends.add(at + len(literal))
        return len(uri) in ends


def parse_template(text: str) -> UriTemplate:
    """Parse a `uriTemplate` as servers list it."""
    text = text[:_MAX_LENGTH]
    slots, literals = re.findall(_SLOT, text), re.split(_SLOT, text)
    parts = [
        (slot[1:2] in tuple("+#/.;?&"), literal) for slot, literal in zip(slots, literals[1:], strict=True)
    ]
    if len(parts) > _MAX_SLOTS:
        parts = [*parts[: _MAX_SLOTS - 1], (True, "")]
    return UriTemplate(literals[0], tuple(parts))


_OLD_MEMBER = "ui/resourceUri"
"""In `_meta`, where servers put it before the specification moved it to `ui.resourceUri`."""


def resource_uri(entry: dict[str, Raw]) -> str:
    """Return the URI of the page that a tool's entry names; empty if it names none."""
    try:
        meta = wire.members(entry["_meta"])
        ui = wire.members_or_empty(meta.get("ui", Raw(b"{}")))
        return wire.string_or(ui, "resourceUri") or wire.string_or(meta, _OLD_MEMBER)
    except (KeyError, BadFrame):
        return ""


def replace_resource_uri(entry: dict[str, Raw], uri: str) -> None:
    """Let a tool's entry name another page, wherever it names one."""
    meta, raw = wire.members(entry["_meta"]), Raw(msgspec.json.encode(uri))
    ui = wire.members_or_empty(meta.get("ui", Raw(b"{}")))
    if "resourceUri" in ui:
        meta["ui"] = Raw(msgspec.json.encode({**ui, "resourceUri": raw}))
    if _OLD_MEMBER in meta:
        meta[_OLD_MEMBER] = raw
    entry["_meta"] = Raw(msgspec.json.encode(meta))


def choose_tool(found: Sequence[OwnedName]) -> OwnedName | None:
    """Return the tool that the page of an app calls by its own name, given all tools with this name.

    The client does not say which page calls. Raises UnknownTool if several servers have such a tool.
    """
    if len(found) > 1:
        servers = ", ".join(server for server, _ in found)
        raise UnknownTool(
            f"several servers with apps have a tool {shorten(found[0][1], 80)!r} ({servers}); use a name "
            "from tools/list, or attach the client to one server (mcpctl bridge --server)"
        )
    return found[0] if found else None
