"""Several servers shown as one: unique names, merged lists, and the route from a name back to its server.

Tools and prompts get public names and a `[server]` prefix in their descriptions. Resources keep their URIs,
because texts and links mention them. If two servers list the same URI, the later server's is published as
`mcpd://<server>/<uri>`, or as `ui://mcpd/<server>/<rest>` if it begins with `ui://`; these forms are accepted
for every resource. A name or URI that clients were given keeps its meaning, also when its server is gone.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

import msgspec
import trio
from msgspec import Raw

from mcpd.calls.call import Scope, is_name_unique, read_unambiguous
from mcpd.calls.routes import Target
from mcpd.calls.stages.login import LOGIN_TOOL, login_catalog, may_offer_login
from mcpd.gateway.index import (
    AggregateIndex,
    Given,
    build_index,
    choose_tool,
    is_large,
    replace_member,
    split_alias,
)
from mcpd.gateway.views import (
    CAPABILITIES_WHILE_UNKNOWN,
    Source,
    catalog_items,
    combined_freshness,
    itself,
)
from mcpd.io.turns import in_turns
from mcpd.model.errors import InvalidArguments, Problem, UnknownResource, UnknownServer, UnknownTool
from mcpd.model.policy import ItemKind, Profile, all_tags, tags_of_tool
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import ServerState
from mcpd.model.steps import Steps, run_steps
from mcpd.model.text import shorten
from mcpd.model.tool_names import ClientStyle, OwnedName, own_name
from mcpd.operations import Operations
from mcpd.protocol import extensions
from mcpd.supervision.catalog import Catalog
from mcpd.supervision.legacy_companion import catalog_for_legacy
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_MAX_INSTRUCTIONS = 8000
"""Total characters of the merged instructions: they end up in a model's context."""
_MAX_SERVER_INSTRUCTIONS = 2000
_MAX_PREPARATIONS = 3


_EMPTY = AggregateIndex({}, {}, {}, {}, {}, {}, {})


class AggregateServer:
    """All servers of a profile. The set is looked up on each use, so it is always current."""

    single: ManagedServer | None = None

    def __init__(
        self, core: Operations, profile: Profile, for_all_clients: AggregateServer | None = None
    ) -> None:
        """`for_all_clients`: the view of which this is the one for legacy clients."""
        self._core = core
        self.source: Source = itself if for_all_clients is None else for_all_clients.source
        self._of_people: WeakValueDictionary[str, AggregateServer] = WeakValueDictionary()
        self.profile = profile
        self._for_all_clients = for_all_clients
        self._for_legacy_clients: AggregateServer | None = None
        self.scope: Scope = Scope(profile=profile) if for_all_clients is None else for_all_clients.scope
        self.control_scope = Scope(is_control=True, profile=profile)
        """The scope of clients of the control API that use the profile."""
        self.title = f"mcpd: {profile.name}" if profile.name else "mcpd"
        self.label = f"*{profile.name}"
        self.announced_style = self.style
        """The naming style that clients were last notified of; maintained by `Gateway`."""
        above = for_all_clients.lists if for_all_clients is not None else None
        self.lists: MergedLists = MergedLists(core, self, above)

    def use_profile(self, profile: Profile) -> None:
        """Select by a changed definition of the profile from now on."""
        self.scope.profile = self.control_scope.profile = profile
        for view in self._variants():
            view.profile = profile
        self.release_lists()

    def release_lists(self) -> None:
        """Release the lists, which may be those of servers that are gone. They are merged again on use."""
        for view in self._variants():
            view.lists.release()

    def _variants(self) -> Iterator[AggregateServer]:
        """Yield the view, and those for some clients only."""
        yield self
        if self._for_legacy_clients is not None:
            yield self._for_legacy_clients
        for view in list(self._of_people.values()):
            yield from view._variants()

    def for_person(self, person: str, source: Source) -> AggregateServer:
        """See `View.for_person`."""
        view = self._of_people.get(person)
        if view is None:
            view = self._of_people[person] = AggregateServer(self._core, self.profile)
            view.scope, view.source = self.scope, source
        return view

    def _sources(self) -> list[ManagedServer]:
        """Return the servers whose lists are shown."""
        return [found for server in self.servers() if (found := self.source(server)) is not None]

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
        return self.covers(server) and (kind != "tool" or self.includes_tool(server.spec.name, name))

    def require(self, server: ManagedServer, tool: str = "") -> None:
        """Raise UnknownServer or UnknownTool unless the profile selects the server, and its tool if given."""
        name = server.spec.name
        if not self.covers(server):
            raise UnknownServer(f"{name}: not in the profile {self.profile.name!r}", server=name)
        if tool and not self.selects(server, "tool", tool):
            text = f"{name}: the tool {shorten(tool, 80)!r} is not in the profile {self.profile.name!r}"
            raise UnknownTool(text, server=name)

    def entries(self, member: str) -> Sequence[bytes]:
        return self.lists.index().entries.get(member, ())

    def owners(self, member: str) -> Sequence[tuple[str, str]]:
        return self.lists.index().owners.get(member, ())

    def names(self, member: str) -> Mapping[str, OwnedName]:
        index = self.lists.index()
        return index.tools if member == "tools" else index.prompts

    def route(self, method: str, params: bytes) -> Target:
        if method == "tools/call":
            if wire.may_have_member(params, b'"task"'):
                params = _without_task(params)
            # A tool that was called before is found without parsing the params.
            end = params.find(b'"', 9) + 1  # usually the name is the first member
            known = self.lists.index().known_calls.get(params[:end])
            if known is not None and is_name_unique(params):
                name, own, first = known
                owner = self._core.supervisor.get(name)
                return Target(server=owner, params=first + params[end:], tool=own)
        try:
            members = read_unambiguous(params or b"{}")
            if method == "resources/read":
                public = wire.string(members, "uri")
                server, uri = self.resource(public)
                alias = None if public == uri else (uri, public)
                return Target(server=server, params=replace_member(members, "uri", uri), alias=alias)
            if method == "completion/complete":
                return self._route_completion(members)
            return self._route_by_name(method, members)
        except BadFrame as error:
            raise InvalidArguments(f"{method}: {error}", [Problem("$", str(error))]) from None

    def _route_by_name(self, method: str, members: dict[str, Raw]) -> Target:
        """Route a tool or prompt by its public name."""
        name, index = wire.string(members, "name"), self.lists.index()
        server, own = self._owner_of("prompts" if method == "prompts/get" else "tools", name, index)
        is_tool = method == "tools/call"
        if is_tool and server.catalog is not None:
            index.known_calls[_name_member(name)] = server.spec.name, own, _name_member(own)
        tool = own if is_tool else ""
        return Target(server=server, params=replace_member(members, "name", own), tool=tool)

    def _owner_of(self, member: str, name: str, index: AggregateIndex) -> tuple[ManagedServer, str]:
        given = self.lists.given
        owned = (index.tools if member == "tools" else index.prompts).get(name)
        if owned is None:
            meanings = (given.tools if member == "tools" else given.prompts).meanings
            if (meaning := meanings.get(name)) is not None:
                return self._given_item(member, name, *meaning), meaning[1]
        if owned is None and member == "tools":
            owned = choose_tool(index.app_tools.get(name, ()))
            if owned is not None and (first := given.app_tools.setdefault(name, owned)) != owned:
                choose_tool((first, owned))
        if owned is None:
            owned = self._find_absent(member, name)
        if owned is None:
            raise UnknownTool(f"no {member[:-1]} {shorten(name, 80)!r} here{self._name_hint(member)}")
        return self._core.supervisor.get(owned[0]), owned[1]

    def _given_item(self, member: str, name: str, owner: str, own: str) -> ManagedServer:
        """Return the server of a tool or prompt that a client knows from an earlier list. Raises UnknownTool
        or NotReady, also if another server has such a tool by now: the client means the one that it knows.
        """
        what = f"the {member[:-1]} {shorten(name, 80)!r}"
        server = self._given_owner(what, owner)
        if member == "tools" and not self.includes_tool(owner, own):
            raise UnknownTool(f"{owner}: {what} is not in the profile {self.profile.name!r} any more")
        if member == "tools" and own == LOGIN_TOOL and may_offer_login(server.spec):
            return server
        source = self.source(server)
        if source is None or (source is not server and source.catalog is None):
            return server  # the call starts it
        catalog = source.catalog
        if catalog is None:
            if server.state not in (ServerState.PENDING, ServerState.NEEDS_AUTH):
                raise self._core.not_ready_error(server)
        elif all(item.name != own for item in catalog_items(catalog, member)):
            source.doubt_list(member)
            raise UnknownTool(f"{owner}: it does not offer {what} any more{self._name_hint(member)}")
        return server

    def _given_owner(self, what: str, owner: str) -> ManagedServer:
        """Return the server to which something belongs that a client was given. Raises UnknownServer,
        NotReady."""
        server = self._core.supervisor.find(owner)
        if server is None:
            raise UnknownServer(f"{what} belongs to the server {owner!r}, which was removed", server=owner)
        if not self.covers(server):
            text = (
                f"{what} belongs to the server {owner!r}, which is not in the profile {self.profile.name!r}"
            )
            raise UnknownServer(f"{text} any more", server=owner)
        if server.state is ServerState.DISABLED:
            raise self._core.not_ready_error(server)
        return server

    def _find_absent(self, member: str, name: str) -> OwnedName | None:
        """Find a name among the servers whose lists are unknown, or that are disabled: a client may know it
        from an earlier list.

        A call of a server that starts waits for it, also after a change of its definition. If the server
        waits for a login, the call is sent to it, so that the client is shown the link, and the call
        continues after the login. Raises NotReady for any other server.
        """
        for server in self._core.supervisor.servers():
            if not self.covers(server):
                continue
            own = own_name(self.style, server.spec.name, name)
            is_included = member == "prompts" or self.includes_tool(server.spec.name, own)
            if own == LOGIN_TOOL and member == "tools" and is_included and may_offer_login(server.spec):
                return server.spec.name, own  # it was listed until somebody logged in
            source, is_off = self.source(server), server.state is ServerState.DISABLED
            may_start = source is not server and not is_off  # the call starts the server of the person
            is_absent = source is None or (source.catalog is None and source.upstream is None)
            if own and (is_absent or is_off):
                is_starting = server.state in (ServerState.PENDING, ServerState.NEEDS_AUTH)
                if (may_start or is_starting) and is_included:
                    return server.spec.name, own
                raise self._core.not_ready_error(server)
            if own and source is not None:
                source.doubt_list(member)  # it may have such an item by now
        return None

    def _name_hint(self, member: str) -> str:
        """Say where an unknown name may come from."""
        starting = [s.configured_name for s in self._sources() if s.is_first_start]
        if starting:
            names = ", ".join(starting[:5]) + (" and others" if len(starting) > 5 else "")
            return f"; {member} of servers that are still starting are not known: {names}; try again soon"
        return ""

    def _route_completion(self, members: dict[str, Raw]) -> Target:
        ref = wire.members(members.get("ref", Raw(b"{}")))
        if wire.string(ref, "type") == "ref/prompt":
            server, own = self._owner_of("prompts", wire.string(ref, "name"), self.lists.index())
            ref["name"] = Raw(msgspec.json.encode(own))
        else:
            uri = wire.string(ref, "uri")
            known = self.lists.index().template_owners.get(uri)
            server, own = (self._core.supervisor.get(known[0]), known[1]) if known else self.resource(uri)
            ref["uri"] = Raw(msgspec.json.encode(own))
        return Target(server=server, params=msgspec.json.encode({**members, "ref": ref}))

    def resource(self, uri: str) -> tuple[ManagedServer, str]:
        """Find the owner by lists, then templates, then servers with similar URIs. Raises UnknownResource."""
        index, given, what = self.lists.index(), self.lists.given, f"the resource {shorten(uri)!r}"
        if (known := index.resources.get(uri)) is not None:
            return self._core.supervisor.get(known[0]), known[1]
        if (known := given.resources.get(uri)) is not None:
            return self._given_owner(what, known[0]), known[1]
        name, own = split_alias(uri)
        for server in self.servers() if own else ():
            if server.spec.name == name:
                return server, own
        for (name, _), pattern in given.patterns.items():
            if pattern.matches(uri):
                return self._given_owner(what, name), uri
        found = self._owner_by_similar_uris(uri)
        given.resources[uri] = found.spec.name, uri
        return found, uri

    def _owner_by_similar_uris(self, uri: str) -> ManagedServer:
        """Return the only server that lists resources with this scheme, or has resources at all."""
        able = [s for s in self._sources() if s.upstream is not None and s.upstream.has("resources")]
        scheme = uri.partition(":")[0] + ":"
        alike = [s for s in able if s.catalog and any(i.name.startswith(scheme) for i in s.catalog.resources)]
        for candidates in (alike, able):
            if len(candidates) == 1:
                return candidates[0].original or candidates[0]
        raise UnknownResource(f"none of these servers has the resource {shorten(uri)!r}", uri)

    def capabilities(self, version: str) -> Mapping[str, object]:
        connected = [server.upstream for server in self._sources() if server.upstream is not None]
        declared = (upstream.capabilities.get("extensions") for upstream in connected)
        always = CAPABILITIES_WHILE_UNKNOWN
        return {**always, "extensions": extensions.united([always["extensions"], *declared])}

    def instructions(self) -> str:
        parts = []
        for server in self._sources():
            text = server.upstream.info.instructions if server.upstream is not None else ""
            if text:
                parts.append(f"## {server.configured_name}\n\n{text[:_MAX_SERVER_INSTRUCTIONS]}")
        return "\n\n".join(parts)[:_MAX_INSTRUCTIONS]

    def freshness(self, member: str) -> tuple[int, str]:
        return combined_freshness([server.catalog for server in self._sources()], member)

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

    @property
    def must_prepare(self) -> bool:
        """See `View.must_prepare`."""
        return self.lists.must_prepare

    async def prepare(self) -> None:
        """See `View.prepare`."""
        await self.lists.prepare()

    def includes_tool(self, server: str, tool: str) -> bool:
        include, exclude = self.profile.include_tools, self.profile.exclude_tools
        names = (tool, f"{tool}@{server}")
        if include is not None and not _any_matches(names, include):
            return False
        if self.profile.tags is not None:
            found = self._core.supervisor.find(server)  # None if it was removed while the index was built
            if found is None or not _any_matches(tags_of_tool(found.spec, tool), self.profile.tags):
                return False
        return not _any_matches(names, exclude)


class MergedLists:
    """The lists of the servers of a view, merged, and merged again when one of them has changed."""

    def __init__(self, core: Operations, view: AggregateServer, for_all_clients: MergedLists | None) -> None:
        """`for_all_clients`: those of the view of which this is the one for legacy clients."""
        self._core = core
        self._view = view
        self._for_all_clients = for_all_clients
        self.given: Given = Given() if for_all_clients is None else for_all_clients.given
        self._indexed_changes = -1
        """`Supervisor.changes` when the index was last checked: a call must not look at every server."""
        self._indexed_catalogs: list[tuple[str, Catalog | None]] = []
        self._indexed_specs: list[ServerSpec] = []
        self._indexed_style = view.style
        self._index = _EMPTY
        self._preparing = trio.Lock()

    def release(self) -> None:
        self._indexed_changes, self._index = -1, _EMPTY
        self._indexed_catalogs, self._indexed_specs = [], []

    @property
    def must_prepare(self) -> bool:
        if not self._is_outdated():
            return False
        return is_large(catalog for _, catalog in self._catalogs() if catalog is not None)

    async def prepare(self) -> None:
        """Merge long lists in several turns. Gives up if the lists change again and again."""
        async with self._preparing:
            for _ in range(_MAX_PREPARATIONS):
                if not self.must_prepare:
                    break
                await in_turns(self._rebuild())

    def index(self) -> AggregateIndex:
        if self._is_outdated():
            run_steps(self._rebuild())
        return self._index

    def _is_outdated(self) -> bool:
        """Return whether the index differs from the lists."""
        changes, style = self._core.supervisor.changes, self._view.style
        if changes == self._indexed_changes and style is self._indexed_style:
            return False
        if style is not self._indexed_style or self._definitions() != self._indexed_specs:
            return True
        if not _same_catalogs(self._catalogs(), self._indexed_catalogs):
            return True
        self._indexed_changes = changes
        return False

    def _rebuild(self) -> Steps[None]:
        """Build the index of the lists as they are now, and then use it."""
        changes, style = self._core.supervisor.changes, self._view.style
        catalogs, specs, other = self._catalogs(), self._definitions(), self._for_all_clients
        if other is not None and _same_catalogs(catalogs, other._catalogs()):
            if other._is_outdated():
                yield from other._rebuild()
            index = other._index
        else:
            known = [(name, catalog) for name, catalog in catalogs if catalog is not None]
            index = yield from build_index(style, known, self._view.includes_tool, self.given)
        self._indexed_changes, self._indexed_style = changes, style
        self._indexed_catalogs, self._indexed_specs = catalogs, specs
        self._index = index

    def _catalogs(self) -> list[tuple[str, Catalog | None]]:
        for_legacy = self._for_all_clients is not None
        found = ((server.spec.name, self._view.source(server)) for server in self._view.servers())
        return [
            (name, (catalog_for_legacy(own) if for_legacy else own.catalog) or login_catalog(own))
            for name, own in found
            if own is not None
        ]

    def _definitions(self) -> list[ServerSpec]:
        """Return what the tags of the profile are compared with; nothing if it has none."""
        return [] if self._view.profile.tags is None else [server.spec for server in self._view.servers()]


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


def _without_task(params: bytes) -> bytes:
    """Return the params of a call without `task`: mcpd does not offer tasks here, and MCP says to run such a
    call as any other."""
    members = wire.members_or_empty(params)
    if members.pop("task", None) is None:
        return params
    return wire.join_members(members)
