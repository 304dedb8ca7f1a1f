"""The index of several servers shown as one: public names, merged lists, and the owner of each entry.

It is built in steps: that of 10,000 tools takes 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw

from mcpd.gateway import mcp_apps
from mcpd.gateway.client_view import catalog_items
from mcpd.gateway.uri_templates import UriTemplate, parse_template
from mcpd.model.steps import Steps
from mcpd.model.tool_names import ClientStyle, OwnedName, public_names_in_steps
from mcpd.supervision.catalog import Catalog
from mcpd.wire import message as wire

_ALIAS_SCHEME = "mcpd://"
_PAGE_ALIAS = f"{mcp_apps.SCHEME}mcpd/"
"""For pages of MCP Apps, whose URIs must keep their scheme."""
_ENTRY_COST = 1000
"""An entry takes as long as this many of its bytes, and 10 µs together with as many of them."""
_PORTION = 64 * 1024
"""The cost of one step, which takes up to 0.6 ms, or more for a single long entry."""
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
    templates: Sequence[tuple[UriTemplate, str]]
    """(template, server) for templates without an alias."""
    template_owners: Mapping[str, tuple[str, str]]
    """Template or alias → (server, the server's own template)."""
    app_tools: Mapping[str, Sequence[OwnedName]]
    """Own name → tools with that name, of servers with MCP Apps."""
    known_calls: dict[bytes, tuple[str, str, bytes]] = msgspec.field(default_factory=dict)
    """First member of a call's params → (server, the tool's own name, first member for the server)."""


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
    style: ClientStyle, catalogs: Sequence[tuple[str, Catalog]], includes_tool: Callable[[str, str], bool]
) -> Steps[AggregateIndex]:
    """Merge the lists of servers. `includes_tool` decides by a server and the server's own name of a tool."""
    included = ((s, item.name) for s, c in catalogs for item in c.tools if includes_tool(s, item.name))
    tools = yield from public_names_in_steps(style, included)
    prompts = yield from public_names_in_steps(
        style, ((s, item.name) for s, c in catalogs for item in c.prompts)
    )
    resources: dict[str, OwnedName] = {}
    templates: dict[str, OwnedName] = {}
    listed = {
        "resources": (yield from _unique_entries(resources, catalogs, "resources", "uri")),
        "resourceTemplates": (
            yield from _unique_entries(templates, catalogs, "resourceTemplates", "uriTemplate")
        ),
    }
    pages = yield from _index_pages(resources, catalogs)
    listed["tools"] = yield from _rename(
        tools, ((s, item.name, item.raw) for s, c in catalogs for item in c.tools), pages
    )
    listed["prompts"] = yield from _rename(
        prompts, ((s, item.name, item.raw) for s, c in catalogs for item in c.prompts)
    )
    patterns = []
    for public, (server, own) in templates.items():
        if public == own:
            patterns.append((parse_template(own), server))
            yield
    with_apps = {server for server, _ in pages}
    app_tools: dict[str, list[OwnedName]] = {}
    for owned in tools.values():
        if owned[0] in with_apps:
            app_tools.setdefault(owned[1], []).append(owned)
    yield
    entries = {member: tuple(entry for _, _, entry in each) for member, each in listed.items()}
    owners = {member: tuple((server, own) for server, own, _ in each) for member, each in listed.items()}
    return AggregateIndex(tools, prompts, entries, owners, resources, patterns, templates, app_tools)


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
        text = wire.string_or(members, "description")
        members["description"] = Raw(msgspec.json.encode(f"[{server}] {text}".rstrip()))
        if pages and (uri := mcp_apps.resource_uri(members)) and (page := pages[server, uri]) != uri:
            mcp_apps.replace_resource_uri(members, page)
        entries.append((server, name, msgspec.json.encode(members)))
    return entries


def _unique_entries(
    index: dict[str, OwnedName], catalogs: Sequence[tuple[str, Catalog]], member: str, key: str
) -> Steps[Sequence[_Entry]]:
    """Return the entries under unique URIs, and add the owner of each to `index`."""
    entries, size = [], 0
    for server, catalog in catalogs:
        for item in catalog_items(catalog, member):
            if (size := size + _cost(item.raw)) > _PORTION:
                size = 0
                yield
            uri, raw = item.name, item.raw
            if uri in index:
                uri = _alias(server, uri)
                raw = replace_member(wire.members(raw), key, uri)
            index[uri] = (server, item.name)
            entries.append((server, item.name, raw))
    return entries


def _index_pages(
    index: dict[str, OwnedName], catalogs: Sequence[tuple[str, Catalog]]
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
            own = mcp_apps.resource_uri(wire.members(item.raw)) if b"ui" in item.raw else ""
            if own and (server, own) not in pages:
                uri = public.get((server, own)) or (_alias(server, own) if own in index else own)
                pages[server, own] = uri
                index[uri] = (server, own)
    return pages


def _alias(server: str, uri: str) -> str:
    """Return the public URI of a resource whose own URI another server uses, too."""
    if uri.startswith(mcp_apps.SCHEME):
        return f"{_PAGE_ALIAS}{server}/{uri.removeprefix(mcp_apps.SCHEME)}"
    return f"{_ALIAS_SCHEME}{server}/{uri}"


def split_alias(uri: str) -> tuple[str, str]:
    """Return the server and its own URI; empty strings if `uri` is no alias."""
    for prefix, scheme in ((_PAGE_ALIAS, mcp_apps.SCHEME), (_ALIAS_SCHEME, "")):
        if uri.startswith(prefix):
            server, _, rest = uri.removeprefix(prefix).partition("/")
            return (server, scheme + rest) if rest else ("", "")
    return "", ""


def replace_member(members: dict[str, Raw], name: str, value: str) -> bytes:
    return wire.join_members({**members, name: Raw(msgspec.json.encode(value))})
