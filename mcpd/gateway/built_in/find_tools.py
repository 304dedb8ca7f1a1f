"""`find_tools` and `describe_tool`: what the search surface lists instead of all tools."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from mcpd.calls.client_context import ClientRequest
from mcpd.gateway.built_in.names import listed_tool
from mcpd.gateway.built_in.tool import Arguments, BuiltInTool
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.gateway.signatures import signature, summary
from mcpd.gateway.tool_search import FoundTool
from mcpd.gateway.views import View
from mcpd.io.turns import in_turns
from mcpd.model.steps import Steps
from mcpd.wire import message as wire

_LIMIT, _MAX_LIMIT = 10, 50
_MAX_SERVERS = 60
"""Names of servers in the description."""
_MAX_DESCRIBED = 64 * 1024
"""Bytes of a tool's definition that `describe_tool` returns."""


def _describe(view: View) -> str:
    names = [server.spec.name for server in view.servers()]
    more = f" and {len(names) - _MAX_SERVERS} more" if len(names) > _MAX_SERVERS else ""
    return (
        "Find tools by what they do. Most tools are not listed: search here before you decide that there is "
        f"no tool for a step. They belong to these servers: {', '.join(names[:_MAX_SERVERS])}{more}. Call a "
        "tool that you found with call_tool."
    )


async def _find_tools(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes:
    query = wire.string(arguments, "query")
    limit = wire.value(arguments.get("limit", Raw(b"null")))
    limit = max(1, min(limit if isinstance(limit, int) else _LIMIT, _MAX_LIMIT))
    found = await session.gateway.tool_search.find(
        session.view, query, limit, lambda: session.facts(request.context)
    )
    return text_result(request.context, await in_turns(_report(found.tools, fits=found.fits)))


def _report(found: Sequence[FoundTool], *, fits: bool) -> Steps[str]:
    """Return one line for each tool, grouped by server."""
    if not found:
        return "Nothing fits: no tool contains any of these words. Name the action and its object otherwise."
    servers: dict[str, list[str]] = {}
    for tool in found:
        about = summary(tool.entry, tool.server)
        servers.setdefault(tool.server, []).append(
            f"- {signature(tool.entry)}" + (f": {about}" if about else "")
        )
        yield
    lines = [] if fits else ["Nothing fits well. These tools share the most words with the query:"]
    for server, tools in servers.items():
        lines += [f"{server}:", *tools]
    return "\n".join(lines)


FIND_TOOLS = BuiltInTool(
    name="find_tools",
    describe=_describe,
    arguments={
        "query": {"type": "string", "description": "What the tool should do, such as: create a pull request"},
        "limit": {"type": "integer", "description": f"How many tools to return at most; {_LIMIT} by default"},
    },
    required=("query",),
    handler=_find_tools,
)


def _describe_tool(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes:
    """Return the definition of a tool as its server wrote it, without `_meta` and icons."""
    name = wire.string(arguments, "name")
    members = wire.members(listed_tool(session, request.context, name))
    kept = {key: value for key, value in members.items() if key not in ("_meta", "icons")}
    text = msgspec.json.encode(kept)
    if len(text) > _MAX_DESCRIBED:
        return text_result(
            request.context,
            f"{signature(wire.join_members(members))}\n(its definition has {len(text)} bytes)",
        )
    return text_result(request.context, text.decode("utf-8", "replace"))


DESCRIBE_TOOL = BuiltInTool(
    name="describe_tool",
    describe=lambda _: (
        "Return the full description and the JSON Schemas of a tool that find_tools has found."
    ),
    arguments={"name": {"type": "string", "description": "The name as find_tools returned it"}},
    required=("name",),
    handler=_describe_tool,
)
