"""Decides what a client of several servers is listed: all tools (`full`), or tools to find them (`search`).

A list costs tokens in each request to a model, but so does a search. Hosts that defer tools and search them
themselves are cheaper with the full list.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mcpd.calls.client_context import ClientContext
from mcpd.gateway.built_in.table import TOOLS
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.model.api import ListedTools
from mcpd.model.policy import Surface
from mcpd.wire import message as wire

SMALL = 10_000
"""Tokens up to which a list is small: 5 % of the context of common models, and some 40 to 60 tools."""
_BYTES_PER_TOKEN = 4


class _Host(msgspec.Struct, frozen=True):
    needs_all: bool = False
    """Whether it searches the tools itself, or is no host of a model at all."""
    max_tools: int = 0
    """Tools of all its servers beyond which it cuts the list; 0 if it does not."""


_CURSOR, _WINDSURF = _Host(max_tools=40), _Host(max_tools=100)
_SEARCHES = _NO_HOST = _Host(needs_all=True)
_HOSTS: dict[str, _Host] = {
    "claude-code": _SEARCHES,
    "codex-mcp-client": _SEARCHES,
    "copilot-cli": _SEARCHES,
    "github-copilot-developer": _SEARCHES,
    "codex": _SEARCHES,
    "visual studio code": _SEARCHES,
    "visual studio code - insiders": _SEARCHES,
    "vscode": _SEARCHES,
    "cursor": _CURSOR,
    "cursor-vscode": _CURSOR,
    "antigravity-client": _WINDSURF,
    "windsurf": _WINDSURF,
    "windsurf-client": _WINDSURF,
    "inspector-cli": _NO_HOST,
    "inspector-client": _NO_HOST,
    "mcp": _NO_HOST,  # the default of the Python SDK, for scripts
    "mcp-inspector": _NO_HOST,
    "mcporter": _NO_HOST,
}
"""By the name in `clientInfo`, or the one that `mcpctl install` gives the bridge, in lower case."""


def estimated_tokens(entries: Sequence[bytes]) -> int:
    """Return about how many tokens a list takes: a token of JSON has four bytes."""
    return sum(map(len, entries)) // _BYTES_PER_TOKEN


def choose_surface(wanted: Surface, clients: Sequence[str], entries: Sequence[bytes]) -> Surface:
    """Return `full` or `search`. `clients` are the names of the client, with or without a version; `entries`
    is all that it may see."""
    if wanted != "auto":
        return wanted
    host = next(filter(None, map(_known_host, clients)), _Host())
    if host.max_tools and len(entries) > host.max_tools:
        return "search"
    return "full" if host.needs_all or estimated_tokens(entries) <= SMALL else "search"


def _known_host(client: str) -> _Host | None:
    name = client.lower().partition(" (via")[0]
    return _HOSTS.get(name) or _HOSTS.get(name.rpartition(" ")[0])


def surface_of(session: ClientSession, context: ClientContext, entries: Sequence[bytes]) -> Surface:
    """Return the surface of a client, given all tools that it may see. What the client was started with takes
    precedence over its profile, and that over its name."""
    if session.view.single is not None:
        return "full"
    profile = session.scope.profile
    wanted = session.client.surface or (profile.surface if profile is not None else None) or "auto"
    return choose_surface(wanted, (context.client_name or session.peer, session.client.name), entries)


def listed_tools(session: ClientSession, context: ClientContext, entries: Sequence[bytes]) -> Sequence[bytes]:
    """Return the entries of `tools/list`, given all tools that the client may see: what its surface lists."""
    surface = surface_of(session, context, entries)
    if session.view.single is None:
        entries = surface_entries(surface, session.view, entries)
    session.listed = cost(surface, entries)
    return entries


def surface_entries(surface: Surface, view: View, entries: Sequence[bytes]) -> Sequence[bytes]:
    """Return what a surface lists, given all tools that a client of several servers may see."""
    own = [tool.entry(view) for tool in TOOLS.values() if surface in tool.surfaces]
    if surface == "full":
        return (*entries, *own) if own else entries
    return (*own, *(entry for entry in entries if _is_always_loaded(entry)))


def cost(surface: Surface, entries: Sequence[bytes]) -> ListedTools:
    return ListedTools(surface=surface, tools=len(entries), tokens=estimated_tokens(entries))


def _is_always_loaded(entry: bytes) -> bool:
    """Return whether a tool says that hosts which search must not defer it."""
    if b"anthropic/alwaysLoad" not in entry:
        return False
    meta = wire.members_or_empty(wire.members(entry).get("_meta", b"{}"))
    return bytes(meta.get("anthropic/alwaysLoad", b"")) == b"true"
