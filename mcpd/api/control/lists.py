"""The lists of the control API, without what policies forbid its client and what its profile leaves out."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
from msgspec import Raw

from mcpd.api.control.calls import ControlClient
from mcpd.calls.policy import Policies
from mcpd.model.api import MissingServer, PromptsResult, ResourcesResult, ToolsResult
from mcpd.model.policy import Decision, ItemKind, tags_of_tool
from mcpd.model.status import ServerState
from mcpd.model.tool_names import qualified_name
from mcpd.operations import Operations
from mcpd.supervision.catalog import Catalog, Item
from mcpd.supervision.supervisor import Supervisor
from mcpd.wire import message as wire

_MEMBERS: tuple[tuple[str, ItemKind, str], ...] = (
    ("tools", "tool", "name"),
    ("prompts", "prompt", "name"),
    ("resources", "resource", "uri"),
    ("resource_templates", "resource", "uriTemplate"),
)
"""Member of a result, what it lists, and the member that names an entry."""


LISTS = (ToolsResult, PromptsResult, ResourcesResult)


def visible_part(
    result: ToolsResult | PromptsResult | ResourcesResult,
    supervisor: Supervisor,
    policies: Policies,
    client: ControlClient,
) -> ToolsResult | PromptsResult | ResourcesResult:
    """Return a list result with the entries that the client's profile selects and no policy forbids it."""
    selection, facts = client.selection, client.client_facts() if policies.exist() else None
    if selection is None and facts is None:
        return result

    def is_visible(entry: Raw, kind: ItemKind, key: str) -> bool:
        server = supervisor.find(_server_of(entry))
        own = wire.string_or(wire.members(entry), key)
        if server is None:
            return selection is None
        if selection is not None and not selection.selects(server, kind, own):
            return False
        if facts is None or not policies.apply_to(server):
            return True
        return policies.verdict(facts, server, kind, own).decision is not Decision.DENY

    changes: Any = {}
    for member, kind, key in _MEMBERS:
        entries: tuple[Raw, ...] | None = getattr(result, member, None)
        if entries:
            changes[member] = tuple(entry for entry in entries if is_visible(entry, kind, key))
    if result.missing and selection is not None:
        covered = {each.spec.name for each in selection.servers()}
        changes["missing"] = tuple(each for each in result.missing if each.server in covered)
    return attrs.evolve(result, **changes)


def _server_of(entry: Raw) -> str:
    """Return the server of an entry. Our own member comes first, whatever else the entry contains."""
    return bytes(entry).removeprefix(b'{"server":"').partition(b'"')[0].decode()


def tools(operations: Operations, name: str | None) -> ToolsResult:
    """Return the tools of one server or of all, from the cached catalogs. Raises UnknownServer."""
    tools: list[Raw] = []
    dropped = 0
    style = operations.config.loaded.settings.tool_names
    for server, catalog in _catalogs(operations, name):
        dropped += catalog.dropped_tools
        tools += [
            _add_server_member(
                tool,
                server,
                qualified_name=qualified_name(style, server, tool.name),
                **_tags(operations, server, tool.name),
            )
            for tool in catalog.tools
        ]
    return ToolsResult(tools=tuple(tools), dropped=dropped, missing=_missing(operations, name))


def _missing(operations: Operations, name: str | None) -> tuple[MissingServer, ...]:
    """Return the servers that a list lacks; none if it is that of one server."""
    return tuple(
        MissingServer(server=each.spec.name, state=each.state, reason=each.explain_state())
        for each in (operations.supervisor.servers() if name is None else ())
        if each.catalog is None and each.state is not ServerState.DISABLED
    )


def _tags(operations: Operations, server: str, tool: str) -> dict[str, object]:
    found = operations.supervisor.find(server)
    tags = () if found is None else tags_of_tool(found.spec, tool)
    return {"tags": tags} if tags else {}


def resources(operations: Operations, name: str | None) -> ResourcesResult:
    catalogs = _catalogs(operations, name)
    return ResourcesResult(
        resources=tuple(_add_server_member(item, server) for server, c in catalogs for item in c.resources),
        resource_templates=tuple(
            _add_server_member(item, server) for server, c in catalogs for item in c.templates
        ),
        missing=_missing(operations, name),
    )


def prompts(operations: Operations, name: str | None) -> PromptsResult:
    return PromptsResult(
        prompts=tuple(
            _add_server_member(item, server)
            for server, c in _catalogs(operations, name)
            for item in c.prompts
        ),
        missing=_missing(operations, name),
    )


def _catalogs(operations: Operations, name: str | None) -> list[tuple[str, Catalog]]:
    servers = operations.supervisor.servers() if name is None else [operations.supervisor.get(name)]
    return [(s.spec.name, s.catalog) for s in servers if s.catalog is not None]


def _add_server_member(item: Item, server: str, **extra: object) -> Raw:
    """Return the server's object with `server` and `extra` added in front; its bytes are unchanged."""
    added = {"server": server, **extra}
    rest = item.raw.lstrip()[1:].lstrip()
    head = msgspec.json.encode(added)[:-1]
    return Raw(head + (b"," if rest != b"}" else b"") + rest)
