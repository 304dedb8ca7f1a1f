"""Reads what was left out of a long result: for `resources/read`, and as the tool `read_result`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec
import trio

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.kept_results import URI_PREFIX
from mcpd.calls.owner import owner_of
from mcpd.gateway.built_in.tool import Arguments, BuiltInTool
from mcpd.gateway.requests import text_result
from mcpd.gateway.session import ClientSession
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.text import shorten
from mcpd.wire import message as wire

_AT_ONCE = 8000
"""Characters that the tool reads if the client does not say how many."""
_MAX_PLACES = 50
_AROUND = 100
"""Characters before and after a place that was found."""
_MAX_WORDS = 200
_SEARCHED_AT_ONCE = 1 << 20
"""Characters: a few milliseconds."""
_MAX_PARAMS = 4096
_NOT_CACHEABLE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def answer_read(session: ClientSession, request: ClientRequest) -> bool:
    """Answer `resources/read` of a kept result. Return False if the URI is another's. Raises BadFrame,
    Overloaded; a result that is gone, or another client's, is an unknown resource."""
    if b"results/" not in request.params[:_MAX_PARAMS] and b"\\" not in request.params[:_MAX_PARAMS]:
        return False
    uri = wire.string(wire.members(request.params), "uri")
    if not uri.startswith(URI_PREFIX):
        return False

    async def read() -> None:
        path, _, query = uri.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        mime_type, text = await _read(session, request, path, options)
        result = {"contents": [{"uri": uri, "mimeType": mime_type, "text": text}]}
        body = {**_NOT_CACHEABLE, **result} if request.context.modern else result
        session.respond(request, msgspec.json.encode(body))

    session.spawn_request(request, read)
    return True


async def _call(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes:
    uri = wire.string(arguments, "uri").partition("?")[0]
    values = {name: wire.value(raw) for name, raw in arguments.items() if name != "uri"}
    options = {name: str(value) for name, value in values.items() if value is not None}
    start = options.setdefault("from", "0")
    if not _problem("from", start):
        options.setdefault("to", str(int(start) + _AT_ONCE))
    return text_result(request.context, (await _read(session, request, uri, options))[1])


async def _read(
    session: ClientSession, request: ClientRequest, uri: str, options: Mapping[str, str]
) -> tuple[str, str]:
    """Return the MIME type and the text of the part. Raises UnknownResource, InvalidArguments."""
    if problem := next(filter(None, map(_problem, options, options.values())), ""):
        raise InvalidArguments(problem, [Problem("$", problem)])
    owner = owner_of(session, request.context)
    found, text = await session.gateway.kept_results.read(uri.removeprefix(URI_PREFIX), owner)
    await trio.lowlevel.checkpoint_if_cancelled()
    if search := options.get("search"):
        return "text/plain", await _places(text, search)
    start, end = (int(options[name]) if name in options else None for name in ("from", "to"))
    return found.mime_type, text[start:end]


def _problem(option: str, value: str) -> str:
    if option == "search":
        too_long = f"search has {len(value)} characters; at most {_MAX_WORDS} are accepted"
        return too_long if len(value) > _MAX_WORDS else ""
    if option not in ("from", "to"):
        return f"a kept result has no {shorten(option, 40)!r}; use from, to, or search"
    is_number = value.isdecimal() and len(value) < 12
    return "" if is_number else f"{option}={shorten(value, 40)} is not a number of characters"


async def _places(text: str, words: str) -> str:
    """Return where the words are: positions for `from` and `to`, and the text around. Case is ignored.

    Others may run after each part of the text.
    """
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    lines: list[str] = []
    for part in range(0, len(text), _SEARCHED_AT_ONCE):
        for each in pattern.finditer(text, part, part + _SEARCHED_AT_ONCE + len(words) - 1):
            if len(lines) == _MAX_PLACES:
                return "\n".join([*lines, f"(only the first {_MAX_PLACES} places)"])
            start, end = max(each.start() - _AROUND, 0), each.end() + _AROUND
            lines.append(f"{start}-{end}: {' '.join(text[start:end].split())}")
        await trio.lowlevel.checkpoint()
    return "\n".join(lines) or f"{words!r} is not in this result"


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
    handler=_call,
)
