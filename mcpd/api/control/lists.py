"""The lists of the control API without what policies forbid its client, and what its profile leaves out."""

from __future__ import annotations

from typing import Any

import attrs
from msgspec import Raw

from mcpd.calls.policies import Policies
from mcpd.daemon_operations import Operations
from mcpd.gateway.aggregate import AggregateServer
from mcpd.model.api import PromptsResult, ResourcesResult, ToolsResult
from mcpd.model.policy import ClientFacts, Decision, ItemKind
from mcpd.wire import message as wire

_MEMBERS: tuple[tuple[str, ItemKind, str], ...] = (
    ("tools", "tool", "name"),
    ("prompts", "prompt", "name"),
    ("resources", "resource", "uri"),
    ("resource_templates", "resource", "uriTemplate"),
)
"""Member of a result, what it lists, and the member that names an entry."""


LISTS = (ToolsResult, PromptsResult, ResourcesResult)


def selected(
    result: ToolsResult | PromptsResult | ResourcesResult, operations: Operations, selection: AggregateServer
) -> ToolsResult | PromptsResult | ResourcesResult:
    """Return a list result with the entries that a profile selects."""

    def is_selected(entry: Raw, kind: ItemKind, key: str) -> bool:
        server = operations.supervisor.find(_server_of(entry))
        own = wire.string_or(wire.members(entry), key)
        return server is not None and selection.selects(server, kind, own)

    changes: Any = {}
    for member, kind, key in _MEMBERS:
        entries: tuple[Raw, ...] | None = getattr(result, member, None)
        if entries:
            changes[member] = tuple(entry for entry in entries if is_selected(entry, kind, key))
    if result.missing:
        covered = {each.spec.name for each in selection.servers()}
        changes["missing"] = tuple(each for each in result.missing if each.server in covered)
    return attrs.evolve(result, **changes)


def without_denied(
    result: ToolsResult | PromptsResult | ResourcesResult,
    operations: Operations,
    policies: Policies,
    client: ClientFacts,
) -> ToolsResult | PromptsResult | ResourcesResult:
    """Return a list result with the entries that this client may use."""
    changes: Any = {}
    for member, kind, key in _MEMBERS:
        entries: tuple[Raw, ...] | None = getattr(result, member, None)
        if entries:
            changes[member] = tuple(
                entry for entry in entries if _is_allowed(entry, kind, key, operations, policies, client)
            )
    return attrs.evolve(result, **changes)


def _is_allowed(
    entry: Raw, kind: ItemKind, key: str, operations: Operations, policies: Policies, client: ClientFacts
) -> bool:
    server = operations.supervisor.find(_server_of(entry))
    if server is None or not policies.apply_to(server):
        return True
    verdict = policies.verdict(client, server, kind, wire.string_or(wire.members(entry), key))
    return verdict.decision is not Decision.DENY


def _server_of(entry: Raw) -> str:
    """Return the server of an entry. Our own member comes first, whatever else the entry contains."""
    return bytes(entry).removeprefix(b'{"server":"').partition(b'"')[0].decode()
