"""`call_tool`: calls any tool of the view, as if the client had called it itself.

Policies, the call log, progress and everything else see the real tool. If it fails because of its arguments,
the client gets the schema that it has not seen.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Raw

from mcpd.calls.call import read_unambiguous
from mcpd.calls.client_context import ClientRequest, Responder
from mcpd.calls.stages.validation import read_schemas
from mcpd.gateway.built_in.names import suggestion, view_entry
from mcpd.gateway.built_in.tool import Arguments, BuiltInTool
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.model.errors import UnknownTool
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_MAX_CHECKED = 64 * 1024
"""Bytes of a response that may be about arguments."""
_MAX_SCHEMA = 16 * 1024
"""Bytes of a schema in an error."""


def _call_tool(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes | None:
    """Forward the call. The other members of its params, such as answers to a question, are for the tool."""
    name = wire.string(arguments, "name")
    given = arguments.get("arguments", Raw(b"{}"))
    if bytes(given).startswith(b'"'):  # some models write the object as a text
        given = Raw(wire.join_members(wire.members(wire.string(arguments, "arguments").encode())))
    if not bytes(given).lstrip().startswith((b"{", b"null")):
        raise BadFrame("`arguments` must be an object: the arguments of the tool")
    members = {**read_unambiguous(request.params), "name": Raw(msgspec.json.encode(name)), "arguments": given}
    params = wire.join_members(members)
    try:
        target = session.view.route("tools/call", params)
    except UnknownTool as error:
        text = f"{error.message}; {suggestion(session, request.context, name)}"
        return text_result(request.context, text, is_error=True)
    if name in session.view.names("tools"):
        reply = _SchemaInErrors(session, request.responder, target.server.spec.name, name, given)
        request = msgspec.structs.replace(request, responder=reply)
    session.forward(request, target)
    return None


class _SchemaInErrors:
    """A Responder that adds the tool's schema to an error if the arguments violate it."""

    def __init__(self, session: ClientSession, reply: Responder, server: str, tool: str, given: Raw) -> None:
        self._session = session
        self._reply = reply
        self._server = server
        self._tool = tool
        self._given = bytes(given)
        self.send = reply.send
        self.drop = reply.drop

    def finish(self, frame: bytes, code: int = 0) -> None:
        if len(frame) <= _MAX_CHECKED and (b'"isError"' in frame or b'"error"' in frame):
            self._session.spawn(partial(self._finish_error, frame, code))
        else:
            self._reply.finish(frame, code)

    async def _finish_error(self, frame: bytes, code: int) -> None:
        schema = read_schemas(view_entry(self._session.view, self._tool))[0]
        findings = None if schema is None else await schema.check(self._server, self._given)
        if schema is not None and findings is not None and findings.problems:
            problems = "; ".join(map(str, findings.problems))
            source = bytes(schema.source).decode("utf-8", "replace")
            text = f"The arguments violate the tool's schema: {problems}\ninputSchema: "
            with suppress(BadFrame):  # the client reports a malformed result
                frame = _with_text(frame, text + source[:_MAX_SCHEMA])
        self._reply.finish(frame, code)


def _with_text(frame: bytes, text: str) -> bytes:
    """Return a failed result or an error with the text behind its own."""
    message = wire.parse(frame)
    if message.error:
        error = wire.members(message.error)
        own = wire.string_or(error, "message")
        return wire.error(
            message.key, wire.join_members({**error, "message": Raw(msgspec.json.encode(f"{own}\n{text}"))})
        )
    result = wire.members(message.result)
    if bytes(result.get("isError", b"")) != b"true":
        return frame
    content = [
        *wire.items(result.get("content", Raw(b"[]"))),
        Raw(msgspec.json.encode({"type": "text", "text": text})),
    ]
    return wire.result(
        message.key, wire.join_members({**result, "content": Raw(msgspec.json.encode(content))})
    )


CALL_TOOL = BuiltInTool(
    name="call_tool",
    describe=lambda _: "Call a tool that find_tools has found, with all of its required arguments.",
    arguments={
        "name": {"type": "string", "description": "The name as find_tools returned it"},
        "arguments": {"type": "object", "description": "The arguments of the tool"},
    },
    required=("name",),
    handler=_call_tool,
    is_read_only=False,
)
