"""The lists of the control API, without what policies forbid its client and what its profile leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import msgspec
from msgspec import Raw

from mcpd.api.control.calls import ControlClient
from mcpd.calls.permissions import Policies
from mcpd.gateway.signatures import signature
from mcpd.gateway.surfaces import cost, estimated_tokens, surface_entries
from mcpd.gateway.tool_search import ToolSearch, tool_permission
from mcpd.gateway.views import View
from mcpd.model.api import (
    FindToolsParams,
    FoundTools,
    MissingServer,
    PromptsResult,
    ResourcesResult,
    ToolCost,
    ToolCosts,
    ToolsResult,
)
from mcpd.model.policy import Decision, ItemKind, Surface, tags_of_tool
from mcpd.model.status import ServerState
from mcpd.model.tool_names import qualified_name
from mcpd.operations import Operations
from mcpd.supervision.catalog import Catalog, Item, Listing
from mcpd.supervision.managed_server import ManagedServer

_MAX_FOUND = 100


@attrs.frozen(eq=False)
class ListReader:
    """Makes the lists of one server or of all, as one client may see them."""

    operations: Operations
    policies: Policies
    client: ControlClient

    async def load(self, name: str | None) -> None:
        """Wait until the lists are known. Raises NotReady, and UnknownServer if there is none or the client's
        profile excludes it.
        """
        servers = self._servers(name)
        if (person := self.client.person) is not None:
            servers = person.gateway.dedicated_servers.sources(person, servers)
        if name is None:
            await self.operations.refresh_catalogs(servers)
        else:
            self.client.require(self.operations.supervisor, name)
            await self.operations.load_catalog(servers[0])

    def tools(self, name: str | None) -> ToolsResult:
        style = self.operations.config.loaded.settings.tool_names
        tools: list[Raw] = []
        for server, catalog in self._catalogs(name):
            own = server.spec.name
            for item in self._visible(server, "tool", catalog.tools):
                tags = tags_of_tool(server.spec, item.name)
                extra: dict[str, object] = {"tags": tags} if tags else {}
                qualified = qualified_name(style, own, item.name)
                tools.append(_add_server_member(item, own, qualified_name=qualified, **extra))
        dropped = sum(catalog.dropped_tools for _, catalog in self._catalogs(name))
        return ToolsResult(tools=tuple(tools), dropped=dropped, missing=self._missing(name))

    async def find(self, params: FindToolsParams, search: ToolSearch, view: View) -> FoundTools:
        """Search the tools of a view, which is that of the client's profile."""
        limit = max(1, min(params.limit, _MAX_FOUND))
        found = await search.find(view, params.query, limit, self.client.client_facts)
        style, tools = self.operations.config.loaded.settings.tool_names, []
        for tool in found.tools:
            server = self.operations.supervisor.find(tool.server)
            server = None if server is None else self.client.source(server)
            item = None if server is None or server.catalog is None else server.catalog.tool(tool.name)
            if item is not None:
                qualified = qualified_name(style, tool.server, tool.name)
                line = signature(item.raw)
                tools.append(_add_server_member(item, tool.server, qualified_name=qualified, signature=line))
        return FoundTools(tools=tuple(tools), fits=found.fits)

    async def costs(self, view: View) -> ToolCosts:
        """Return what the tools of a view cost, which is that of the client's profile."""
        await view.prepare()
        may_see = tool_permission(self.policies, view, self.client.client_facts)
        owned = zip(view.entries("tools"), view.owners("tools"), strict=True)
        seen = [(entry, server, own) for entry, (server, own) in owned if may_see(server, own)]
        entries = [entry for entry, _, _ in seen]
        surfaces: tuple[Surface, ...] = ("full", "search")
        return ToolCosts(
            tools=tuple(
                ToolCost(server=server, name=own, tokens=estimated_tokens([entry]))
                for entry, server, own in seen
            ),
            surfaces=tuple(cost(each, surface_entries(each, view, entries)) for each in surfaces),
        )

    def resources(self, name: str | None) -> ResourcesResult:
        return ResourcesResult(
            resources=self._entries(name, "resource", lambda catalog: catalog.resources),
            resource_templates=self._entries(name, "resource", lambda catalog: catalog.templates),
            missing=self._missing(name),
        )

    def prompts(self, name: str | None) -> PromptsResult:
        prompts = self._entries(name, "prompt", lambda catalog: catalog.prompts)
        return PromptsResult(prompts=prompts, missing=self._missing(name))

    def _entries(
        self, name: str | None, kind: ItemKind, listed: Callable[[Catalog], Listing]
    ) -> tuple[Raw, ...]:
        return tuple(
            _add_server_member(item, server.spec.name)
            for server, catalog in self._catalogs(name)
            for item in self._visible(server, kind, listed(catalog))
        )

    def _catalogs(self, name: str | None) -> list[tuple[ManagedServer, Catalog]]:
        shown = [(each, self.client.source(each)) for each in self._servers(name)]
        return [(each, found.catalog) for each, found in shown if found is not None and found.catalog]

    def _servers(self, name: str | None) -> Sequence[ManagedServer]:
        supervisor = self.operations.supervisor
        return supervisor.servers() if name is None else [supervisor.get(name)]

    def _visible(self, server: ManagedServer, kind: ItemKind, items: Listing) -> Iterator[Item]:
        """Return what the client's profile selects and no policy forbids it."""
        selection = self.client.selection
        facts = self.client.client_facts() if self.policies.apply_to(server) else None
        for item in items:
            if selection is not None and not selection.selects(server, kind, item.name):
                continue
            if (
                facts is None
                or self.policies.verdict(facts, server, kind, item.name).decision is not Decision.DENY
            ):
                yield item

    def _missing(self, name: str | None) -> tuple[MissingServer, ...]:
        """Return the servers that a list lacks; none if it is that of one server."""
        selection = self.client.selection
        return tuple(
            MissingServer(server=each.spec.name, state=source.state, reason=source.explain_state())
            for each in (self._servers(None) if name is None else ())
            if (source := self.client.source(each) or each).catalog is None
            and each.state is not ServerState.DISABLED
            and (selection is None or selection.covers(each))
        )


def _add_server_member(item: Item, server: str, **extra: object) -> Raw:
    """Return the server's object with `server` and `extra` added in front; its bytes are unchanged."""
    added = {"server": server, **extra}
    rest = item.raw.lstrip()[1:].lstrip()
    head = msgspec.json.encode(added)[:-1]
    return Raw(head + (b"," if rest != b"}" else b"") + rest)
