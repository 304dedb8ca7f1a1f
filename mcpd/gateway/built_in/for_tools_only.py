"""`read_resource` and `get_prompt`: resources and prompts for hosts that only know tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from mcpd.calls.call import read_unambiguous
from mcpd.calls.client_context import ClientRequest, Responder
from mcpd.gateway.built_in.tool import Arguments, BuiltInTool
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.model.text import shorten
from mcpd.wire import message as wire
from mcpd.wire.message import INTERNAL_ERROR, BadFrame

_MAX_LISTED = 200
_KINDS = {"resources": "uri", "resourceTemplates": "uriTemplate", "prompts": "name"}
"""List → the member that names an entry."""


def _read_resource(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes | None:
    if not (uri := wire.string_or(arguments, "uri")):
        return _list(session, request, "resources", "resourceTemplates")
    _forward(session, request, "resources/read", {"uri": uri}, _resource_content)
    return None


def _get_prompt(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes | None:
    if not (name := wire.string_or(arguments, "name")):
        return _list(session, request, "prompts")
    given = arguments.get("arguments", Raw(b"{}"))
    _forward(session, request, "prompts/get", {"name": name, "arguments": given}, _prompt_content)
    return None


def _list(session: ClientSession, request: ClientRequest, *kinds: str) -> bytes:
    """Return the names of what the client may see, each with its arguments and description."""
    lines: list[str] = []
    more = 0
    for kind in kinds:
        entries = session.visible.entries(session.view, kind, lambda: session.facts(request.context))
        room = _MAX_LISTED - len(lines)
        more += max(0, len(entries) - room)
        for members in map(wire.members, entries[:room]):
            about = wire.string_or(members, "description") or wire.string_or(members, "title")
            needed = bytes(members.get("arguments", b"")).decode("utf-8", "replace")
            parts = wire.string_or(members, _KINDS[kind]), needed, shorten(about, 120)
            lines.append(" ".join(("-", *filter(None, parts))))
    if more:
        lines.append(f"and {more} more")
    return text_result(request.context, "\n".join(lines) or "There are none.")


def _forward(
    session: ClientSession,
    request: ClientRequest,
    method: str,
    params: Mapping[str, object],
    content: Callable[[dict[str, Raw]], list[object]],
) -> None:
    """Send the request in its own method, and its result as that of a tool."""
    others = {key: each for key, each in read_unambiguous(request.params).items() if key not in _OWN}
    data = msgspec.json.encode({**others, **params})
    reply = _AsToolResult(request.responder, content)
    request = msgspec.structs.replace(request, method=method, params=data, responder=reply)
    session.forward(request, session.view.route(method, data))


_OWN = ("name", "arguments")


class _AsToolResult:
    """A Responder that sends a result as that of a `tools/call`."""

    def __init__(self, reply: Responder, content: Callable[[dict[str, Raw]], list[object]]) -> None:
        self._reply = reply
        self._content = content
        self.send = reply.send
        self.drop = reply.drop

    def finish(self, frame: bytes, code: int = 0) -> None:
        message = wire.parse(frame)
        try:
            result = {} if message.error else wire.members(message.result)
            if result and "inputRequests" not in result:
                body: dict[str, object] = {**result, "content": self._content(result)}
                kept = {name: body[name] for name in ("resultType", "_meta", "content") if name in body}
                frame = wire.result(message.key, msgspec.json.encode(kept))
        except BadFrame as error:
            text = f"the server's result is malformed: {error}"
            frame = wire.error(message.key, wire.error_body(INTERNAL_ERROR, text))
        self._reply.finish(frame, code)


def _resource_content(result: dict[str, Raw]) -> list[object]:
    return [{"type": "resource", "resource": each} for each in wire.items(result.get("contents", Raw(b"[]")))]


def _prompt_content(result: dict[str, Raw]) -> list[object]:
    messages = map(wire.members, wire.items(result.get("messages", Raw(b"[]"))))
    return [each["content"] for each in messages if "content" in each]


READ_RESOURCE = BuiltInTool(
    name="read_resource",
    describe=lambda _: "Read a resource by its URI. Without `uri`, list the resources.",
    arguments={"uri": {"type": "string"}},
    handler=_read_resource,
    surfaces=("only tools",),
)
GET_PROMPT = BuiltInTool(
    name="get_prompt",
    describe=lambda _: "Get a prompt with its arguments filled in. Without `name`, list the prompts.",
    arguments={"name": {"type": "string"}, "arguments": {"type": "object"}},
    handler=_get_prompt,
    surfaces=("only tools",),
)
