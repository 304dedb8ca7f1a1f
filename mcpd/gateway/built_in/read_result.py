"""`read_result`: reads what was left out of a long result, for clients that cannot read resources."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import Raw

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.kept_results import URI_PREFIX
from mcpd.gateway.built_in.tool import Arguments, BuiltInTool
from mcpd.gateway.kept_results import ResultPart, read_part
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_AT_ONCE = 8000
"""Characters that are read if the client does not say how many."""


def _start(session: ClientSession, request: ClientRequest, arguments: Arguments) -> Awaitable[bytes]:
    start = _position(arguments, "from") or 0
    end = _position(arguments, "to")
    part = ResultPart(
        id=wire.string(arguments, "uri").removeprefix(URI_PREFIX).partition("?")[0],
        start=start,
        end=start + _AT_ONCE if end is None else end,
        search=wire.string_or(arguments, "search"),
    )
    return _read(session, request, part)


def _position(arguments: Arguments, name: str) -> int | None:
    found = wire.value(arguments.get(name, Raw(b"null")))
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise BadFrame(f"`{name}` must be a number of characters")
    return found


async def _read(session: ClientSession, request: ClientRequest, part: ResultPart) -> bytes:
    _, text = await read_part(session, request, part)
    return text_result(request.context, text)


READ_RESULT = BuiltInTool(
    name="read_result",
    describe=lambda _: "Read or search the whole of a result of which a part was left out.",
    arguments={
        "uri": {"type": "string", "description": "The resource that the result names: mcpd://results/..."},
        "from": {"type": "integer", "description": "The first character to read"},
        "to": {"type": "integer", "description": "Where to stop; 8,000 characters later by default"},
        "search": {"type": "string", "description": "Return the places of these words instead"},
    },
    required=("uri",),
    handler=_start,
)
