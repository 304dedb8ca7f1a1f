"""What one client sees: a single server as it is, or several as one. Sessions ask; a view does not act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import msgspec
import trio

from mcpd.gateway.forwarded_call import tool_name
from mcpd.model.errors import UnknownTool
from mcpd.operations import Operations
from mcpd.supervision.catalog import Catalog, Item, is_tool_allowed
from mcpd.supervision.managed_server import ManagedServer

LIST_MEMBERS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""A method that lists → the member of its result that is the list."""
MAX_TTL = 3600.0
"""Seconds: what a client keeps longer than that, it cannot be told about."""
NOT_CACHEABLE = (0, "private")
"""A list that tells when it changes need not be kept, and may be another's tomorrow."""
_SAME_REVISION_ONLY = ("tasks", "extensions", "experimental")
"""Capabilities that work only between two that speak the same revision."""
CAPABILITIES: Mapping[str, Mapping[str, object]] = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}


class Route(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Where a request goes, and what it says there."""

    server: ManagedServer
    params: bytes
    tool: str = ""
    """The tool's own name, of a `tools/call`."""
    alias: tuple[str, str] | None = None
    """A resource's own URI, and what the client calls it instead."""


class View(Protocol):
    """Raises UnknownTool for what it does not have."""

    @property
    def title(self) -> str: ...

    @property
    def label(self) -> str:
        """A short name: the server's, or `*` and the profile."""

    @property
    def single(self) -> ManagedServer | None:
        """The one server that this is a view of, and all of it; None for several."""

    def servers(self) -> Sequence[ManagedServer]:
        """In a stable order, without the disabled ones."""

    def covers(self, server: ManagedServer) -> bool: ...

    def entries(self, member: str) -> Sequence[bytes]:
        """The list called `member`, from what is known now, under the names that `route` takes."""

    def route(self, method: str, params: bytes) -> Route: ...

    def resource(self, uri: str) -> tuple[ManagedServer, str]:
        """Whose resource it is, and what that server calls it."""

    def capabilities(self, version: str) -> Mapping[str, object]:
        """What is offered to a client of that revision: kept to whatever servers come and go."""

    def instructions(self) -> str: ...

    def freshness(self, member: str) -> tuple[int, str]:
        """How long that list may be kept, milliseconds, and by whom (`ttlMs`, `cacheScope`)."""


def catalog_items(catalog: Catalog, member: str) -> Sequence[Item]:
    return catalog.templates if member == "resourceTemplates" else getattr(catalog, member)


def combined_freshness(catalogs: Sequence[Catalog | None], member: str) -> tuple[int, str]:
    """What holds for a list of all of them: as long as the first of them, and privately if one is private."""
    feature = "resources" if member == "resourceTemplates" else member
    hints = [catalog.hints.get(feature) for catalog in catalogs if catalog is not None]
    said = [hint for hint in hints if hint is not None]
    if not said or len(said) < len(hints):  # an older server, which says nothing of that
        return NOT_CACHEABLE
    left = min(hint.fresh_until for hint in said) - trio.current_time()
    scope = "private" if any(hint.private for hint in said) else "public"
    return max(0, int(min(left, MAX_TTL) * 1000)), scope


@attrs.define(eq=False)
class SingleServer:
    """A server unrenamed and whole, but for what its definition filters."""

    core: Operations
    last: ManagedServer
    """As it was last seen: its name may by now be another's, or nobody's."""

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

    def covers(self, server: ManagedServer) -> bool:
        return server is self.single

    def entries(self, member: str) -> Sequence[bytes]:
        catalog = self.single.catalog
        return () if catalog is None else tuple(item.raw for item in catalog_items(catalog, member))

    def route(self, method: str, params: bytes) -> Route:
        server = self.single
        spec = server.spec
        if method != "tools/call" or not (
            spec.exclude_tools or spec.include_tools is not None or spec.timeouts.tools
        ):
            return Route(server=server, params=params)
        tool = tool_name(params)
        if not is_tool_allowed(spec, tool):
            raise UnknownTool(
                f"{spec.name}: this tool is excluded by the server's definition", server=spec.name
            )
        return Route(server=server, params=params, tool=tool)

    def resource(self, uri: str) -> tuple[ManagedServer, str]:
        return self.single, uri

    def capabilities(self, version: str) -> Mapping[str, object]:
        """What the server itself declared, as far as it passes; all of it while that is not known."""
        upstream = self.single.upstream
        if upstream is None:
            return CAPABILITIES
        offered: dict[str, object] = {
            name: {
                part: yes for part, yes in parts.items() if part == "listChanged" or upstream.has(name, part)
            }
            for name, parts in CAPABILITIES.items()
            if upstream.has(name) or (name == "logging" and upstream.era == "modern")
        }
        if upstream.version == version:  # then both know what we do not, and it passes through
            offered |= {
                name: upstream.capabilities[name] for name in _SAME_REVISION_ONLY if upstream.has(name)
            }
        return offered

    def instructions(self) -> str:
        upstream = self.single.upstream
        return upstream.info.instructions if upstream is not None else ""

    def freshness(self, member: str) -> tuple[int, str]:
        return combined_freshness([self.single.catalog], member)
