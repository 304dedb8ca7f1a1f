"""The part of a list that policies let a client see: what it may not use is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from mcpd.calls.policies import Policies
from mcpd.gateway.client_view import View
from mcpd.model.policy import ClientFacts, Decision, ItemKind

_KINDS: dict[str, ItemKind] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "resourceTemplates": "resource",
}


class _Known(msgspec.Struct, frozen=True, eq=False):
    """The visible part of a list, and what it was computed from."""

    entries: Sequence[bytes]
    """The whole list."""
    rules: object
    client: ClientFacts
    visible: Sequence[bytes]


class VisibleEntries:
    """The lists of one session. They are kept, because comparing a long list with many rules takes
    milliseconds.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._known: dict[str, _Known] = {}

    def entries(self, view: View, member: str, read_facts: Callable[[], ClientFacts]) -> Sequence[bytes]:
        """Return the list `member` of the session's view without the entries that the client may not use.

        `read_facts` returns the facts of the client; it is called only if policies apply. A resource template
        is compared as it is written; each resource is compared again when it is read.
        """
        entries, servers = view.entries(member), view.servers()
        policies = self._policies
        restricted = [server for server in servers if policies.apply_to(server)]
        if not restricted:
            return entries
        client = read_facts()
        rules = [policies.rules(server) for server in restricted]
        known = self._known.get(member)
        if known is not None and known.entries == entries and known.rules == rules and known.client is client:
            return known.visible
        by_name = {server.spec.name: server for server in servers}
        visible = tuple(
            entry
            for entry, (name, own) in zip(entries, view.owners(member), strict=True)
            if (server := by_name.get(name)) is None
            or policies.verdict(client, server, _KINDS[member], own).decision is not Decision.DENY
        )
        self._known[member] = _Known(entries, rules, client, visible)
        return visible
