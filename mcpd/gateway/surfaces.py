"""Decides what a client of several servers is listed: all tools (`full`), or tools to find them (`search`).

A list costs tokens in each request to a model, but so does a search. Hosts that defer tools and search them
themselves are cheaper with the full list.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from mcpd.calls.client_context import ClientContext
from mcpd.gateway.built_in.table import TOOLS
from mcpd.gateway.session import ClientSession
from mcpd.gateway.views import View
from mcpd.model.api import ListedTools
from mcpd.model.policy import Surface
from mcpd.wire import message as wire

_SMALL = 10_000
"""Tokens up to which a list is small: 5 % of the context of common models, and some 40 to 60 tools."""
_BYTES_PER_TOKEN = 4


_NEED_ALL = frozenset(
    {
        "claude-code",
        "codex",
        "codex-mcp-client",
        "copilot-cli",
        "github-copilot-developer",
        "inspector-cli",
        "inspector-client",
        "mcp",  # the default of the Python SDK, for scripts
        "mcp-inspector",
        "mcporter",
        "visual studio code",
        "visual studio code - insiders",
        "vscode",
    }
)
"""Hosts that search the tools themselves, and programs without a model: the names in `clientInfo`, or those
that `mcpctl install` gives the bridge, in lower case."""
_MAX_TOOLS = {
    **dict.fromkeys(("cursor", "cursor-vscode"), 40),
    **dict.fromkeys(("antigravity-client", "windsurf", "windsurf-client"), 100),
}
"""Tools of all its servers beyond which a host cuts the list."""
_ONLY_TOOLS = frozenset({"antigravity-client", "chatgpt", "cherry studio", "crush", "opencode"})
"""Hosts that know neither resources nor prompts."""


def estimated_tokens(entries: Sequence[bytes]) -> int:
    """Return about how many tokens a list takes: a token of JSON has four bytes."""
    return sum(map(len, entries)) // _BYTES_PER_TOKEN


def listed_tools(session: ClientSession, context: ClientContext, entries: Sequence[bytes]) -> Sequence[bytes]:
    """Return the entries of `tools/list`, given all tools that the client may see: what its surface lists."""
    surface: Surface = "full"
    if session.view.single is None:
        names = _known_names(session, context)
        surface = _surface_of(session, names, len(entries), estimated_tokens(entries))
        also = {"only tools"} if _ONLY_TOOLS.intersection(names) else set[str]()
        entries = surface_entries(surface, session.view, entries, also)
    session.listed = cost(surface, entries)
    return entries


def _known_names(session: ClientSession, context: ClientContext) -> Sequence[str]:
    """Return the names by which a host may be known: with and without a version."""
    given = (context.client_name or session.peer, session.client.name)
    names = [name.lower().partition(" (via")[0] for name in given]
    return [each for name in names for each in (name, name.rpartition(" ")[0])]


def _surface_of(session: ClientSession, names: Sequence[str], tools: int, tokens: int) -> Surface:
    """Return `full` or `search`. What the client was started with takes precedence over its profile, and that
    over its name."""
    profile = session.scope.profile
    wanted = session.client.surface or (profile.surface if profile is not None else None) or "auto"
    if wanted != "auto":
        return wanted
    for name in names:
        if name in _NEED_ALL:
            return "full"
        if tools > _MAX_TOOLS.get(name, tools):
            return "search"
    return "full" if tokens <= _SMALL else "search"


def surface_entries(
    surface: Surface, view: View, entries: Sequence[bytes], also: Set[str] = frozenset()
) -> Sequence[bytes]:
    """Return what a surface lists, given all tools that a client of several servers may see. `also`: further
    `BuiltInTool.surfaces` that are listed."""
    own = [tool.entry(view) for tool in TOOLS.values() if {surface, *also} & {*tool.surfaces}]
    if surface == "full":
        return (*entries, *own) if own else entries
    return (*own, *filter(_is_always_loaded, entries))


def cost(surface: Surface, entries: Sequence[bytes]) -> ListedTools:
    return ListedTools(surface=surface, tools=len(entries), tokens=estimated_tokens(entries))


def _is_always_loaded(entry: bytes) -> bool:
    """Return whether a tool says that hosts which search must not defer it."""
    if b"anthropic/alwaysLoad" not in entry:
        return False
    meta = wire.members_or_empty(wire.members(entry).get("_meta", b"{}"))
    return bytes(meta.get("anthropic/alwaysLoad", b"")) == b"true"
