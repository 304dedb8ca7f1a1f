"""What a name of a tool means to a client, and the nearest known names of an unknown one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from mcpd.calls.client_context import ClientContext
from mcpd.gateway.session import ClientSession
from mcpd.gateway.tool_index import words
from mcpd.gateway.tool_search import tool_permission
from mcpd.gateway.views import View
from mcpd.model.errors import UnknownTool
from mcpd.model.text import shorten, similar_names

_MAX_SIMILAR, _SIMILAR, _CUTOFF = 3, 10, 0.5
_MAX_COMPARED, _MAX_PARTS = 20_000, 5
"""Names, and parts of the unknown one, that are compared, which takes 10 ms."""


def listed_tool(session: ClientSession, context: ClientContext, name: str) -> bytes:
    """Return the entry of a tool that the client may see. Raises UnknownTool."""
    owned = session.view.names("tools").get(name)
    if owned is None or not _permission(session, context)(*owned):
        raise UnknownTool(f"no tool {shorten(name, 80)!r} here; {suggestion(session, context, name)}")
    return view_entry(session.view, name)


def view_entry(view: View, name: str) -> bytes:
    """Return the entry of one of `view.names`; empty if it is gone."""
    owned, owners = view.names("tools").get(name), view.owners("tools")
    return view.entries("tools")[owners.index(owned)] if owned in owners else b""


def suggestion(session: ClientSession, context: ClientContext, name: str) -> str:
    """Return the nearest names that the client may see, for an error about an unknown one."""
    names, may_see = session.view.names("tools"), _permission(session, context)
    compared = list(islice(names, _MAX_COMPARED))
    parts = [part for part in words(name[:200]) if len(part) > 2][:_MAX_PARTS]
    nearer = [each for each in compared if any(part in each.lower() for part in parts)]
    found = [each for each in compared if names[each][1] == name]
    found += similar_names(name, dict.fromkeys((*nearer, *compared)), _SIMILAR, _CUTOFF)
    similar = [each for each in found if may_see(*names[each])][:_MAX_SIMILAR]
    if not similar:
        return "find_tools finds tools by what they do"
    return f"did you mean {' or '.join(dict.fromkeys(similar))}?"


def _permission(session: ClientSession, context: ClientContext) -> Callable[[str, str], bool]:
    return tool_permission(session.gateway.policies, session.view, lambda: session.facts(context))
