"""The lists of the control API without what policies forbid its client, and what its profile leaves out."""

from __future__ import annotations

from typing import Any

import attrs
from msgspec import Raw

from mcpd.api.control.calls import ControlClient
from mcpd.calls.policies import Policies
from mcpd.model.api import PromptsResult, ResourcesResult, ToolsResult
from mcpd.model.policy import Decision, ItemKind
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
