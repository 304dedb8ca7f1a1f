"""Finds tools by what they do, for `find_tools`, `mcpctl tools --search` and `Mcp.find_tools`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from mcpd.calls.permissions import Policies
from mcpd.gateway.tool_index import ToolIndex, build_tool_index
from mcpd.gateway.views import View
from mcpd.io.turns import in_turns
from mcpd.model.policy import ClientFacts, Decision
from mcpd.operations import Operations

_MAX_INDEXES = 4
"""Views whose index is kept, at about 2 kB for each tool."""
_MAX_EXAMINED = 1000
"""Tools that are compared with policies until enough are found."""


class FoundTool(NamedTuple):
    server: str
    name: str
    """The server's own name for it."""
    entry: bytes
    """As clients of the view see it."""


class Findings(NamedTuple):
    tools: Sequence[FoundTool]
    """The best first."""
    fits: bool
    """Whether the first one is worth a try; otherwise all of them have little to do with the query."""


class _Known:
    """The index of one view."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.entries: Sequence[bytes] | None = None
        """What it was built from."""
        self.index: ToolIndex | None = None


class ToolSearch:
    """Keeps the indexes of the views in which somebody searches, and builds them again for changed lists."""

    def __init__(self, core: Operations, policies: Policies) -> None:
        self._core = core
        self._policies = policies
        self._known: dict[View, _Known] = {}
        """The most recently used last."""

    async def find(
        self, view: View, query: str, limit: int, read_facts: Callable[[], ClientFacts]
    ) -> Findings:
        """Return tools that fit the query and that the client may see (`tool_permission`)."""
        await self._core.refresh_catalogs([each for each in view.servers() if each.lists_expired])
        await view.prepare()
        known = self._known.pop(view, None) or _Known()
        self._known[view] = known
        if len(self._known) > _MAX_INDEXES:
            del self._known[next(iter(self._known))]
        async with known.lock:
            entries, owners = view.entries("tools"), view.owners("tools")
            if known.index is None or known.entries is not entries:
                known.index = await in_turns(build_tool_index(entries, [server for server, _ in owners]))
                known.entries = entries
            positions, fits = await in_turns(known.index.search(query))
        may_see = tool_permission(self._policies, view, read_facts)
        found = []
        for position in positions[:_MAX_EXAMINED]:
            server, own = owners[position]
            if may_see(server, own):
                found.append(FoundTool(server, own, entries[position]))
                if len(found) == limit:
                    break
        return Findings(found, fits and bool(found))


def tool_permission(
    policies: Policies, view: View, read_facts: Callable[[], ClientFacts]
) -> Callable[[str, str], bool]:
    """Return whether policies let a client see a tool, by the names of its server and its own. `read_facts`
    returns what they may know of the client; it is called only if there are any."""
    restricted = {
        each.spec.name: view.source(each) or each for each in view.servers() if policies.apply_to(each)
    }
    facts = read_facts() if restricted else None

    def may_see(name: str, tool: str) -> bool:
        server = restricted.get(name)
        if server is None or facts is None:
            return True
        return policies.verdict(facts, server, "tool", tool).decision is not Decision.DENY

    return may_see
