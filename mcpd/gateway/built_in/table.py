"""The tools of mcpd itself, and how a client's call of one is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial

from msgspec import Raw

from mcpd.calls.call import read_unambiguous, tool_name
from mcpd.calls.client_context import ClientRequest
from mcpd.gateway.built_in.call_tool import CALL_TOOL
from mcpd.gateway.built_in.find_tools import DESCRIBE_TOOL, FIND_TOOLS
from mcpd.gateway.built_in.for_tools_only import GET_PROMPT, READ_RESOURCE
from mcpd.gateway.built_in.names import suggestion
from mcpd.gateway.built_in.read_result import READ_RESULT
from mcpd.gateway.built_in.run_code import RUN_CODE
from mcpd.gateway.built_in.tool import BuiltInTool
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.model.errors import InvalidArguments, UnknownTool
from mcpd.process.code_sandbox import is_installed
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

TOOLS: Mapping[str, BuiltInTool] = {
    each.name: each
    for each in (FIND_TOOLS, DESCRIBE_TOOL, CALL_TOOL, READ_RESULT, RUN_CODE, READ_RESOURCE, GET_PROMPT)
    if each is not RUN_CODE or is_installed()
}
"""By name, in the order of the list."""
_MISTAKES = (BadFrame, InvalidArguments, UnknownTool)


def answer_unknown_tool(session: ClientSession, request: ClientRequest, error: UnknownTool) -> None:
    """Answer a `tools/call` for a name that no server has: it may be one of these tools. Otherwise, raise the
    error, with the nearest names."""
    if request.method != "tools/call" or session.view.single is not None:
        raise error
    name = tool_name(request.params)
    tool = TOOLS.get(name)
    if tool is None:
        raise UnknownTool(
            f"{error.message}; {suggestion(session, request.context, name)}", server=error.server
        )
    try:
        arguments = wire.members(read_unambiguous(request.params).get("arguments", Raw(b"{}")))
        result = tool.handler(session, request, arguments)
    except _MISTAKES as mistake:
        result = text_result(request.context, f"{name}: {mistake}", is_error=True)
    if isinstance(result, bytes):
        session.respond(request, result)
    elif result is not None:
        session.spawn_request(request, partial(_respond, session, request, name, result))


async def _respond(
    session: ClientSession, request: ClientRequest, name: str, awaitable: Awaitable[bytes]
) -> None:
    try:
        result = await awaitable
    except _MISTAKES as mistake:
        result = text_result(request.context, f"{name}: {mistake}", is_error=True)
    session.respond(request, result)
