"""Several servers shown as one: unique names, merged lists, and the route from a name back to its server.

Tools and prompts get public names and a `[server]` prefix in their descriptions. Resources keep their URIs,
because texts and links mention them. If two servers list the same URI, the later server's is published as
`mcpd://<server>/<uri>`, or as `ui://mcpd/<server>/<rest>` if it begins with `ui://`; these forms are accepted
for every resource.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw

from mcpd.calls.call import Scope, is_name_unique
from mcpd.calls.routes import Target
from mcpd.daemon_operations import Operations
from mcpd.gateway import mcp_apps
from mcpd.gateway.client_view import CAPABILITIES_WHILE_UNKNOWN, catalog_items, combined_freshness
from mcpd.gateway.uri_templates import UriTemplate, parse_template
from mcpd.model.errors import InvalidArguments, Problem, UnknownResource, UnknownServer, UnknownTool
from mcpd.model.policy import ItemKind
from mcpd.model.profile import Profile
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import ServerState
from mcpd.model.steps import Steps, run_steps
from mcpd.model.tags import all_tags, tags_of_tool
from mcpd.model.text import shorten
from mcpd.model.tool_names import ClientStyle, OwnedName, own_name, public_names
from mcpd.protocol import extensions
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.legacy_companion import catalog_for_legacy
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_ALIAS_SCHEME = "mcpd://"
_PAGE_ALIAS = f"{mcp_apps.SCHEME}mcpd/"
"""For pages of MCP Apps, whose URIs must keep their scheme."""
_MAX_INSTRUCTIONS = 8000
"""Total characters of the merged instructions: they end up in a model's context."""
_MAX_SERVER_INSTRUCTIONS = 2000


class _AggregateIndex(msgspec.Struct, frozen=True):
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


_EMPTY = _AggregateIndex({}, {}, {}, {}, {}, (), {}, {})


class AggregateServer:
    """All servers of a profile. The set is looked up on each use, so it is always current."""

    single: ManagedServer | None = None

    def __init__(
        self, core: Operations, profile: Profile, for_all_clients: AggregateServer | None = None
    ) -> None:
        """`for_all_clients`: the view of which this is the one for legacy clients."""
        self._core = core
        self.profile = profile
        self._for_all_clients = for_all_clients
        self._for_legacy_clients: AggregateServer | None = None
        self.scope: Scope = Scope(profile=profile) if for_all_clients is None else for_all_clients.scope
        self.control_scope = Scope(is_control=True, profile=profile)
        """The scope of clients of the control API that use the profile."""
        self.title = f"mcpd: {profile.name}" if profile.name else "mcpd"
        self.label = f"*{profile.name}"
        self._indexed_changes = -1
        """`Supervisor.changes` when the index was last checked: a call must not look at every server."""
        self._indexed_catalogs: list[tuple[str, Catalog | None]] = []
        self._indexed_specs: list[ServerSpec] = []
        self._indexed_style = self.announced_style = self.style
        """The naming style that clients were last notified of; maintained by `Gateway`."""
        self._cached_index = _EMPTY

    def servers(self) -> Sequence[ManagedServer]:
        return [
            server
            for server in self._core.supervisor.servers()
            if server.state is not ServerState.DISABLED and self.covers(server)
        ]

    def covers(self, server: ManagedServer) -> bool:
        patterns, tags = self.profile.servers, self.profile.tags
        if server.original is not None:  # a dedicated server has the lists of its original
            return False
        if tags is not None and not _any_matches(tuple(all_tags(server.spec)), tags):
            return False
        return patterns is None or any(fnmatch.fnmatchcase(server.spec.name, each) for each in patterns)

    def selects(self, server: ManagedServer, kind: ItemKind, name: str) -> bool:
        """Return whether the profile selects an item of a server, which does not have to exist."""
        return self.covers(server) and (kind != "tool" or self._includes_tool(server.spec.name, name))

    def require(self, server: ManagedServer, tool: str = "") -> None:
        """Raise UnknownServer or UnknownTool unless the profile selects the server, and its tool if given."""
        name = server.spec.name
        if not self.covers(server):
            raise UnknownServer(f"{name}: not in the profile {self.profile.name!r}", server=name)
        if tool and not self.selects(server, "tool", tool):
            text = f"{name}: the tool {shorten(tool, 80)!r} is not in the profile {self.profile.name!r}"
            raise UnknownTool(text, server=name)

    def entries(self, member: str) -> Sequence[bytes]:
        return self._index().entries.get(member, ())

    def owners(self, member: str) -> Sequence[tuple[str, str]]:
        return self._index().owners.get(member, ())

    def route(self, method: str, params: bytes) -> Target:
        if method == "tools/call" and (known := self._route_known_call(params)) is not None:
            return known
        return run_steps(self.route_in_steps(method, params))

    def route_in_steps(self, method: str, params: bytes) -> Steps[Target]:
        try:
            members = yield from wire.members_in_steps(params or b"{}")
            yield
            if method == "resources/read":
                public = wire.string(members, "uri")
                server, uri = self.resource(public)
                alias = None if public == uri else (uri, public)
                return Target(server=server, params=_replace_member(members, "uri", uri), alias=alias)
            if method == "completion/complete":
                return self._route_completion(members)
            return self._route_by_name(method, members)
        except BadFrame as error:
            raise InvalidArguments(f"{method}: {error}", [Problem("$", str(error))]) from None

    def _route_known_call(self, params: bytes) -> Target | None:
        """Route a call of a tool that was called before, without parsing the params."""
        end = params.find(b'"', 9) + 1  # usually the name is the first member
        known = self._index().known_calls.get(params[:end])
        if known is None or not is_name_unique(params):
            return None
        server, own, first = known
        return Target(server=self._core.supervisor.get(server), params=first + params[end:], tool=own)

    def _route_by_name(self, method: str, members: dict[str, Raw]) -> Target:
        """Route a tool or prompt by its public name."""
        name = wire.string(members, "name")
        server, own = self._owner_of("prompts" if method == "prompts/get" else "tools", name)
        if method == "tools/call" and server.catalog is not None:
            self._index().known_calls[_name_member(name)] = server.spec.name, own, _name_member(own)
        return Target(server=server, params=_replace_member(members, "name", own), tool=own)

    def _owner_of(self, member: str, name: str) -> tuple[ManagedServer, str]:
        index = self._index()
        owned = (index.tools if member == "tools" else index.prompts).get(name)
        if owned is None and member == "tools":
            owned = mcp_apps.choose_tool(index.app_tools.get(name, ()))
        if owned is None:
            owned = self._find_absent(member, name)
        if owned is None:
            raise UnknownTool(f"no {member[:-1]} {shorten(name, 80)!r} here; {self._name_hint(member)}")
        return self._core.supervisor.get(owned[0]), owned[1]

    def _find_absent(self, member: str, name: str) -> OwnedName | None:
        """Find a name among the servers that are disabled, or that have never worked so far: a client may
        know it from an earlier list.

        If the server waits for a login, the call is sent to it, so that the client is shown the link, and the
        call continues after the login. Raises NotReady for any other server.
        """
        for server in self._core.supervisor.servers():
            is_absent = server.state is ServerState.DISABLED or (
                server.catalog is None and server.state.is_settled and server.upstream is None
            )
            if not is_absent or not self.covers(server):
                continue
            if own := own_name(self.style, server.spec.name, name):
                is_included = member == "prompts" or self._includes_tool(server.spec.name, own)
                if server.state is ServerState.NEEDS_AUTH and is_included:
                    return server.spec.name, own
                raise self._core.not_ready_error(server)
        return None

    def _name_hint(self, member: str) -> str:
        """Say where an unknown name may come from."""
        starting = [s.spec.name for s in self.servers() if s.catalog is None and not s.state.is_settled]
        if starting:
            names = ", ".join(starting[:5]) + (" and others" if len(starting) > 5 else "")
            return f"{member} of servers that are still starting are not known: {names}; try again soon"
        return f"{member}/list shows all of them"

    def _route_completion(self, members: dict[str, Raw]) -> Target:
        ref = wire.members(members.get("ref", Raw(b"{}")))
        if wire.string(ref, "type") == "ref/prompt":
            server, own = self._owner_of("prompts", wire.string(ref, "name"))
            ref["name"] = Raw(msgspec.json.encode(own))
        else:
            uri = wire.string(ref, "uri")
            server, own = self._template_owner(uri) or self.resource(uri)
            ref["uri"] = Raw(msgspec.json.encode(own))
        return Target(server=server, params=msgspec.json.encode({**members, "ref": ref}))

    def _template_owner(self, template: str) -> tuple[ManagedServer, str] | None:
        owned = self._index().template_owners.get(template)
        return None if owned is None else (self._core.supervisor.get(owned[0]), owned[1])

    def resource(self, uri: str) -> tuple[ManagedServer, str]:
        """Find the owner by lists, then templates, then servers with similar URIs. Raises UnknownResource."""
        index, supervisor = self._index(), self._core.supervisor
        if (known := index.resources.get(uri)) is not None:
            return supervisor.get(known[0]), known[1]
        name, own = _split_alias(uri)
        for server in self.servers() if own else ():
            if server.spec.name == name:
                return server, own
        for pattern, name in index.templates:
            if pattern.matches(uri):
                return supervisor.get(name), uri
        able = [s for s in self.servers() if s.upstream is not None and s.upstream.has("resources")]
        scheme = uri.partition(":")[0] + ":"
        alike = [s for s in able if s.catalog and any(i.name.startswith(scheme) for i in s.catalog.resources)]
        for candidates in (alike, able):
            if len(candidates) == 1:
                return candidates[0], uri
        raise UnknownResource(f"none of these servers has the resource {shorten(uri)!r}", uri)

    def capabilities(self, version: str) -> Mapping[str, object]:
        connected = [server.upstream for server in self.servers() if server.upstream is not None]
        declared = (upstream.capabilities.get("extensions") for upstream in connected)
        always = CAPABILITIES_WHILE_UNKNOWN
        return {**always, "extensions": extensions.united([always["extensions"], *declared])}

    def instructions(self) -> str:
        parts = []
        for server in self.servers():
            text = server.upstream.info.instructions if server.upstream is not None else ""
            if text:
                parts.append(f"## {server.spec.name}\n\n{text[:_MAX_SERVER_INSTRUCTIONS]}")
        return "\n\n".join(parts)[:_MAX_INSTRUCTIONS]

    def freshness(self, member: str) -> tuple[int, str]:
        return combined_freshness([server.catalog for server in self.servers()], member)

    def for_legacy_clients(self) -> AggregateServer:
        if self._for_all_clients is not None:
            return self
        if self._for_legacy_clients is None:
            self._for_legacy_clients = AggregateServer(self._core, self.profile, self)
        return self._for_legacy_clients

    @property
    def style(self) -> ClientStyle:
        """The naming style in effect now."""
        return self.profile.style or self._core.config.loaded.settings.client_tool_names

    def release_index(self) -> None:
        """Release the lists, which may be those of servers that are gone. They are merged again on use."""
        self._indexed_changes, self._cached_index = -1, _EMPTY
        self._indexed_catalogs, self._indexed_specs = [], []
        if self._for_legacy_clients is not None:
            self._for_legacy_clients.release_index()

    def _index(self) -> _AggregateIndex:
        changes, style = self._core.supervisor.changes, self.style
        if changes == self._indexed_changes and style is self._indexed_style:
            return self._cached_index
        self._indexed_changes = changes
        now = self._catalogs()
        specs = self._definitions()
        is_same = style is self._indexed_style and specs == self._indexed_specs
        if not is_same or not _same_catalogs(now, self._indexed_catalogs):
            self._indexed_catalogs, self._indexed_style, self._indexed_specs = now, style, specs
            other = self._for_all_clients
            if other is not None and _same_catalogs(now, other._catalogs()):
                self._cached_index = other._index()
            else:
                self._cached_index = self._build_index([(n, c) for n, c in now if c is not None])
        return self._cached_index

    def _catalogs(self) -> list[tuple[str, Catalog | None]]:
        if self._for_all_clients is None:
            return [(server.spec.name, server.catalog) for server in self.servers()]
        return [(server.spec.name, catalog_for_legacy(server)) for server in self.servers()]

    def _definitions(self) -> list[ServerSpec]:
        """Return what the tags of the profile are compared with; nothing if it has none."""
        return [] if self.profile.tags is None else [server.spec for server in self.servers()]

    def _build_index(self, catalogs: Sequence[tuple[str, Catalog]]) -> _AggregateIndex:
        style = self._indexed_style
        tools = public_names(
            style,
            ((s, item.name) for s, c in catalogs for item in c.tools if self._includes_tool(s, item.name)),
        )
        prompts = public_names(style, ((s, item.name) for s, c in catalogs for item in c.prompts))
        resources: dict[str, OwnedName] = {}
        templates: dict[str, OwnedName] = {}
        listed = {
            "resources": _unique_entries(resources, catalogs, "resources", "uri"),
            "resourceTemplates": _unique_entries(templates, catalogs, "resourceTemplates", "uriTemplate"),
        }
        pages = _index_pages(resources, catalogs)
        listed |= {
            "tools": _rename(
                tools, ((s, item.name, item.raw) for s, c in catalogs for item in c.tools), pages
            ),
            "prompts": _rename(
                prompts, ((s, item.name, item.raw) for s, c in catalogs for item in c.prompts)
            ),
        }
        patterns = [
            (parse_template(own), server) for public, (server, own) in templates.items() if public == own
        ]
        with_apps = {server for server, _ in pages}
        app_tools: dict[str, list[OwnedName]] = {}
        for owned in tools.values():
            if owned[0] in with_apps:
                app_tools.setdefault(owned[1], []).append(owned)
        entries = {member: tuple(entry for _, _, entry in each) for member, each in listed.items()}
        owners = {member: tuple((server, own) for server, own, _ in each) for member, each in listed.items()}
        return _AggregateIndex(tools, prompts, entries, owners, resources, patterns, templates, app_tools)

    def _includes_tool(self, server: str, tool: str) -> bool:
        include, exclude = self.profile.include_tools, self.profile.exclude_tools
        names = (tool, f"{tool}@{server}")
        if include is not None and not _any_matches(names, include):
            return False
        if self.profile.tags is not None:
            spec = self._core.supervisor.get(server).spec
            if not _any_matches(tags_of_tool(spec, tool), self.profile.tags):
                return False
        return not _any_matches(names, exclude)


def _name_member(name: str) -> bytes:
    return b'{"name":' + msgspec.json.encode(name)


def _same_catalogs(
    one: Sequence[tuple[str, Catalog | None]], other: Sequence[tuple[str, Catalog | None]]
) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and a[1] is b[1] for a, b in zip(one, other, strict=True)
    )


def _any_matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


_Entry = tuple[str, str, bytes]
"""(server, the server's own name or URI, the entry that clients see)."""


def _rename(
    names: Mapping[str, OwnedName],
    items: Iterable[tuple[str, str, bytes]],
    pages: Mapping[OwnedName, str] | None = None,
) -> Sequence[_Entry]:
    """Return the entries under their public names, marked with their server; other bytes are kept. `pages`
    are the public URIs of the pages that they name.
    """
    public = {owned: name for name, owned in names.items()}
    entries = []
    for server, name, raw in items:
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
) -> Sequence[_Entry]:
    """Return the entries under unique URIs, and add the owner of each to `index`."""
    entries = []
    for server, catalog in catalogs:
        for item in catalog_items(catalog, member):
            uri, raw = item.name, item.raw
            if uri in index:
                uri = _alias(server, uri)
                raw = _replace_member(wire.members(raw), key, uri)
            index[uri] = (server, item.name)
            entries.append((server, item.name, raw))
    return entries


def _index_pages(
    index: dict[str, OwnedName], catalogs: Sequence[tuple[str, Catalog]]
) -> Mapping[OwnedName, str]:
    """Return the public URI of each page of an MCP App, by its server and own URI. Add the owners of pages
    that are not listed to `index`.
    """
    public = {owned: uri for uri, owned in index.items()}
    pages: dict[OwnedName, str] = {}
    for server, catalog in catalogs:
        for item in catalog.tools:
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


def _split_alias(uri: str) -> tuple[str, str]:
    """Return the server and its own URI; empty strings if `uri` is no alias."""
    for prefix, scheme in ((_PAGE_ALIAS, mcp_apps.SCHEME), (_ALIAS_SCHEME, "")):
        if uri.startswith(prefix):
            server, _, rest = uri.removeprefix(prefix).partition("/")
            return (server, scheme + rest) if rest else ("", "")
    return "", ""


def _replace_member(members: dict[str, Raw], name: str, value: str) -> bytes:
    return wire.join_members({**members, name: Raw(msgspec.json.encode(value))})
