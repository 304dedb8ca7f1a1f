"""Exceptions as responses to MCP clients: with the codes, and in the form, of each revision."""

from __future__ import annotations

import logging

import msgspec

from mcpd.calls.client_context import ClientContext, ClientRequest
from mcpd.model.errors import McpdError, SchemaViolation
from mcpd.protocol.revision_translation import R4, R5
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

log = logging.getLogger("mcpd.gateway")

_INVALID_PARAMS, _INTERNAL = -32602, -32603
_RESOURCE_NOT_FOUND = -32002
"""The legacy revisions' error code for an unknown resource."""


def exception_response(request: ClientRequest, error: Exception, *, is_stopping: bool) -> tuple[bytes, int]:
    """Return the response to a request that failed with `error`, and its error code; 0 if it is a result.

    `is_stopping`: whether the daemon stops, so that the request can be sent again to the next one.
    """
    if isinstance(error, McpdError):
        return _own_error(request, error, is_stopping)
    if isinstance(error, BadFrame):
        code, text = _INVALID_PARAMS, f"params: {error}"
    else:
        method = request.method[:100]
        log.error("an error in mcpd itself, in a client's %s", method, exc_info=error)
        code, text = _INTERNAL, f"{method}: an error in mcpd itself; see its log"
    return wire.error(request.key, wire.error_body(code, text)), code


def _own_error(request: ClientRequest, error: McpdError, is_stopping: bool) -> tuple[bytes, int]:
    context, code, data = request.context, error.rpc, error.data()
    if isinstance(error, SchemaViolation) and context.version >= R4:
        return wire.result(request.key, _tool_error(error.message, context)), 0
    if context.modern and -32019 <= code <= -32000:
        code = _INTERNAL  # the modern revision reserves these codes
    elif code == _INVALID_PARAMS and request.method == "resources/read" and not context.modern:
        code = _RESOURCE_NOT_FOUND
    if is_stopping and error.may_have_run is False:
        data["stopping"] = True
    return wire.error(request.key, wire.error_body(code, error.message, data)), code


def _tool_error(text: str, context: ClientContext) -> bytes:
    """Return a tool execution error, which is how a client learns of invalid arguments since 2025-11-25."""
    result: dict[str, object] = {"content": [{"type": "text", "text": text}], "isError": True}
    if context.version >= R5:
        result = {"resultType": "complete", **result}
    return msgspec.json.encode(result)
