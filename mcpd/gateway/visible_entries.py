"""The part of a list that policies let a client see: what it may not use is missing."""

from __future__ import annotations

from collections.abc import Sequence

from mcpd.calls.client_context import ClientContext
from mcpd.gateway.client_session import ClientSession, VisibleEntries
from mcpd.model.policy import Decision, ItemKind

_KINDS: dict[str, ItemKind] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "resourceTemplates": "resource",
}


def visible_entries(session: ClientSession, context: ClientContext, member: str) -> Sequence[bytes]:
    """Return the list `member` of the session's view without the entries that its client may not use.

    The result is kept, because comparing a long list with many rules takes milliseconds. A resource template
    is compared as it is written; each resource is compared again when it is read.
    """
    view, policies = session.view, session.gateway.policies
    entries = view.entries(member)
    servers = view.servers()
    restricted = [server for server in servers if policies.apply_to(server)]
    if not restricted:
        return entries
    client = session.facts(context)
    rules = [policies.rules(server) for server in restricted]
    known = session.visible_entries.get(member)
    if known is not None and known.entries == entries and known.rules == rules and known.client is client:
        return known.visible
    by_name = {server.spec.name: server for server in servers}
    visible = tuple(
        entry
        for entry, (name, own) in zip(entries, view.owners(member), strict=True)
        if (server := by_name.get(name)) is None
        or policies.verdict(client, server, _KINDS[member], own).decision is not Decision.DENY
    )
    session.visible_entries[member] = VisibleEntries(entries, rules, client, visible)
    return visible
