"""What one client sees: a single server, or several merged into one (`aggregate_server`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec
import trio

from mcpd import __version__
from mcpd.calls.call import Scope, is_name_unique, read_unambiguous, tool_name
from mcpd.calls.routes import DIRECT, Target
from mcpd.calls.stages.login import login_catalog
from mcpd.model.errors import InvalidArguments, Problem, UnknownTool
from mcpd.model.tool_names import OwnedName
from mcpd.operations import Operations
from mcpd.protocol import extensions
from mcpd.protocol.legacy import VERSIONS as LEGACY_VERSIONS
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.catalog import Catalog, Item, is_tool_allowed
from mcpd.supervision.legacy_companion import catalog_for_legacy
from mcpd.supervision.managed_server import ManagedServer
from mcpd.supervision.tool_overrides import original_name
from mcpd.wire.message import BadFrame

LIST_MEMBERS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""List method → the member of its result."""
MAX_TTL = 3600.0
"""Seconds: clients cannot be notified about lists that they cache longer."""
NOT_CACHEABLE = (0, "private")
"""For lists with change notifications: no need to cache, and contents may differ per client."""
CAPABILITIES: Mapping[str, Mapping[str, object]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}

CAPABILITIES_WHILE_UNKNOWN: Mapping[str, object] = {**CAPABILITIES, "extensions": {extensions.UI: {}}}


Source = Callable[[ManagedServer], ManagedServer | None]


def itself(server: ManagedServer) -> ManagedServer | None:
    return server


class View(Protocol):
    """What a client sees. `route` and `resource` raise UnknownTool and UnknownResource."""

    @property
    def scope(self) -> Scope: ...

    @property
    def title(self) -> str: ...

    @property
    def label(self) -> str:
        """A short name: the server's, or `*` and the profile."""

    @property
    def source(self) -> Source:
        """Returns whose lists are shown for a server: its own, or for a person those of that person's server,
        if there is one."""

    @property
    def single(self) -> ManagedServer | None:
        """The server, if the view consists of exactly one; otherwise None."""

    @property
    def must_prepare(self) -> bool:
        """Whether long lists have changed, so that `prepare` should be awaited before anything that looks at
        lists. Otherwise, that takes 10 µs for each entry, in one turn of the event loop."""

    async def prepare(self) -> None: ...
    def servers(self) -> Sequence[ManagedServer]:
        """Return the enabled servers in a stable order."""

    def covers(self, server: ManagedServer) -> bool: ...

    def entries(self, member: str) -> Sequence[bytes]:
        """Return the list `member` as currently known, under the names that `route` accepts."""

    def owners(self, member: str) -> Sequence[tuple[str, str]]:
        """Return, for each of `entries`, the name of its server and the server's own name for it."""

    def names(self, member: str) -> Mapping[str, OwnedName]:
        """Return the owners of the list `tools` or `prompts` by the names that `route` accepts."""

    def route(self, method: str, params: bytes) -> Target: ...
    def resource(self, uri: str) -> tuple[ManagedServer, str]:
        """Return the owner of a resource, and its own URI for it."""

    def capabilities(self, version: str) -> Mapping[str, object]:
        """Return what is offered to a client of that revision. Apart from extensions, it does not depend on
        which servers are up."""

    def instructions(self) -> str: ...

    def freshness(self, member: str) -> tuple[int, str]:
        """Return `ttlMs` and `cacheScope` of a list."""

    def for_person(self, person: str, source: Source) -> View: ...
    def for_legacy_clients(self) -> View:
        """Return the view with the lists of second connections, for the clients that use these (see
        `LegacyCompanions`): their calls may change those lists."""


def server_info(view: View) -> Mapping[str, object]:
    """Return the `serverInfo` for clients of a view: mcpd's name and version, and the title, icons and other
    members of a single server."""
    upstream = None if view.single is None else _upstream(view, view.single)
    own = {} if upstream is None else upstream.own_info
    return {"title": view.title, **own, "name": "mcpd", "version": __version__}


def _upstream(view: View, server: ManagedServer) -> Upstream | None:
    found = view.source(server)
    return None if found is None else found.upstream


def catalog_items(catalog: Catalog, member: str) -> Sequence[Item]:
    return catalog.templates if member == "resourceTemplates" else getattr(catalog, member)


def combined_freshness(catalogs: Sequence[Catalog | None], member: str) -> tuple[int, str]:
    """Return the freshness of a merged list: the shortest TTL, and private if any part is."""
    feature = "resources" if member == "resourceTemplates" else member
    hints = [catalog.hints.get(feature) for catalog in catalogs if catalog is not None]
    known_hints = [hint for hint in hints if hint is not None]
    if not known_hints or len(known_hints) < len(hints):  # a legacy server, which does not say
        return NOT_CACHEABLE
    remaining = min(hint.fresh_until for hint in known_hints) - trio.current_time()
    scope = "private" if any(hint.private for hint in known_hints) else "public"
    return max(0, int(min(remaining, MAX_TTL) * 1000)), scope


class SingleServer(msgspec.Struct, eq=False):
    """One server, unrenamed; only its definition filters tools."""

    scope: ClassVar[Scope] = DIRECT
    must_prepare: ClassVar[bool] = False
    core: Operations
    last: ManagedServer
    """The server as last seen; its name may belong to another server by now, or to none."""
    is_for_legacy: bool = False
    """See `View.for_legacy_clients`."""
    source: Source = itself

    @property
    def single(self) -> ManagedServer:
        if self.last.is_closed:
            self.last = self.core.supervisor.find(self.last.spec.name) or self.last
        return self.last

    @property
    def label(self) -> str:
        return self.single.spec.name

    @property
    def title(self) -> str:
        return f"{self.single.spec.name} through mcpd"

    def servers(self) -> Sequence[ManagedServer]:
        return (self.single,)

    async def prepare(self) -> None:
        """No-op: the lists are those of the server."""
        await trio.lowlevel.checkpoint()

    def covers(self, server: ManagedServer) -> bool:
        return server is self.single

    def entries(self, member: str) -> Sequence[bytes]:
        return tuple(item.raw for item in self._items(member))

    def owners(self, member: str) -> Sequence[tuple[str, str]]:
        return [(self.single.spec.name, item.name) for item in self._items(member)]

    def names(self, member: str) -> Mapping[str, OwnedName]:
        return {own: (server, own) for server, own in self.owners(member)}

    def _items(self, member: str) -> Sequence[Item]:
        server = self.source(self.single)
        if server is None:
            return ()
        catalog = catalog_for_legacy(server) if self.is_for_legacy else server.catalog
        catalog = catalog or login_catalog(server)
        return () if catalog is None else catalog_items(catalog, member)

    def route(self, method: str, params: bytes) -> Target:
        server = self.single if self.last.is_closed else self.last
        spec = server.spec
        if method != "tools/call" or not spec.selects_tools:
            return Target(server=server, params=params)
        tool = tool_name(params)
        own = original_name(spec, tool)
        if not own or not is_tool_allowed(spec, own):
            raise UnknownTool(f"{spec.name}: the definition excludes this tool", server=spec.name)
        if not is_name_unique(params):  # readers may differ in which tool it names
            try:
                params = msgspec.json.encode(read_unambiguous(params))
            except BadFrame as error:
                raise InvalidArguments(f"{method}: {error}", [Problem("$", str(error))]) from None
        return Target(server=server, params=params, tool=tool)

    def resource(self, uri: str) -> tuple[ManagedServer, str]:
        return self.single, uri

    def capabilities(self, version: str) -> Mapping[str, object]:
        """Return what the server declared and mcpd can forward; everything while that is unknown."""
        upstream = _upstream(self, self.single)
        if upstream is None:
            return CAPABILITIES_WHILE_UNKNOWN
        offered: dict[str, object] = {
            name: {
                part: yes for part, yes in parts.items() if part == "listChanged" or upstream.has(name, part)
            }
            for name, parts in CAPABILITIES.items()
            if upstream.has(name) or (name == "logging" and upstream.era == "modern")
        }
        same = upstream.version == version  # then both sides know what mcpd does not
        if same and upstream.has("tasks"):
            offered["tasks"] = upstream.capabilities["tasks"]
        if upstream.has("experimental") and (
            same or (upstream.asks_by_request and version in LEGACY_VERSIONS)
        ):
            offered["experimental"] = upstream.capabilities["experimental"]
        declared = upstream.capabilities.get("extensions")
        if isinstance(declared, Mapping):
            offered["extensions"] = declared if same else extensions.transparent(declared)
        return offered

    def instructions(self) -> str:
        upstream = _upstream(self, self.single)
        return upstream.info.instructions if upstream is not None else ""

    def freshness(self, member: str) -> tuple[int, str]:
        server = self.source(self.single)
        return combined_freshness([None if server is None else server.catalog], member)

    def for_legacy_clients(self) -> View:
        return SingleServer(self.core, self.last, is_for_legacy=True, source=self.source)

    def for_person(self, person: str, source: Source) -> View:
        """Return the view with the lists of that person's servers."""
        return SingleServer(self.core, self.last, source=source)
