"""Reads what was left out of a long result: for `resources/read`, and as the tool `read_result`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TextIO, TypeVar
from urllib.parse import parse_qsl

import msgspec

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.kept_results import URI_PREFIX, KeptResult
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
_PORTION = 1 << 18
"""Characters that are read of a file at once."""
_MAX_PARAMS = 4096
T = TypeVar("T")
_NOT_CACHEABLE: Mapping[str, object] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def answer_read(session: ClientSession, request: ClientRequest) -> bool:
    """Answer `resources/read` of a kept result. Return False if the URI is another's. Raises BadFrame,
    Overloaded; a result that is gone, or another client's, is an unknown resource."""
    if b"results/" not in request.params[:_MAX_PARAMS] and b"\\" not in request.params[:_MAX_PARAMS]:
        return False
    uri = wire.string(wire.members(request.params), "uri")
    if not uri.startswith(URI_PREFIX) or len(uri) > _MAX_PARAMS:
        return False
    own = _NOT_CACHEABLE if request.context.modern else {}

    def encode(mime_type: str, text: str) -> bytes:
        return msgspec.json.encode({**own, "contents": [{"uri": uri, "mimeType": mime_type, "text": text}]})

    async def read() -> None:
        path, _, query = uri.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        session.respond(request, await _read(session, request, path, options, encode))

    session.spawn_request(request, read)
    return True


async def _call(session: ClientSession, request: ClientRequest, arguments: Arguments) -> bytes:
    uri = wire.string(arguments, "uri").partition("?")[0]
    values = {name: wire.value(raw) for name, raw in arguments.items() if name != "uri"}
    options = {name: str(value) for name, value in values.items() if value is not None}
    start = options.setdefault("from", "0")
    if not _problem("from", start):
        options.setdefault("to", str(int(start) + _AT_ONCE))
    return await _read(session, request, uri, options, lambda _, text: text_result(request.context, text))


async def _read(
    session: ClientSession,
    request: ClientRequest,
    uri: str,
    options: Mapping[str, str],
    encode: Callable[[str, str], T],
) -> T:
    """Return what `encode`, which runs in a thread, returns for the MIME type and the text of the part.

    Raises UnknownResource, InvalidArguments.
    """
    if problem := next(filter(None, map(_problem, options, options.values())), ""):
        raise InvalidArguments(problem, [Problem("$", problem)])

    def read(kept: KeptResult, file: TextIO) -> T:
        if search := options.get("search"):
            return encode("text/plain", _places(file, search))
        return encode(kept.mime_type, _range(file, int(options.get("from", 0)), options.get("to")))

    owner = owner_of(session, request.context)
    return await session.gateway.kept_results.read(uri.removeprefix(URI_PREFIX), owner, read)


def _problem(option: str, value: str) -> str:
    if option == "search":
        too_long = f"search has {len(value)} characters; at most {_MAX_WORDS} are accepted"
        return too_long if len(value) > _MAX_WORDS else ""
    if option not in ("from", "to"):
        return f"a kept result has no {shorten(option, 40)!r}; use from, to, or search"
    is_number = value.isdecimal() and len(value) < 12
    return "" if is_number else f"{option}={shorten(value, 40)} is not a number of characters"


def _range(file: TextIO, start: int, end: str | None) -> str:
    left = start
    while left and (skipped := len(file.read(min(left, _PORTION)))):
        left -= skipped
    return file.read(-1 if end is None else max(int(end) - start, 0))


def _places(file: TextIO, words: str) -> str:
    """Return where the words are: positions for `from` and `to`, and the text around. Case is ignored."""
    wanted = _lower(words)
    lines: list[str] = []
    text, offset, at = "", 0, 0
    """What is read at the moment, its position, and where in it the search goes on."""
    is_end = False
    while not is_end:
        start = max(at - _AROUND, 0)
        more = file.read(_PORTION)
        is_end = not more
        text, offset, at = text[start:] + more, offset + start, at - start
        lower = _lower(text)
        last = len(text) - (0 if is_end else _AROUND)
        while (found := lower.find(wanted, at, last)) >= 0:
            if len(lines) == _MAX_PLACES:
                return "\n".join([*lines, f"(only the first {_MAX_PLACES} places)"])
            start, at = max(found - _AROUND, 0), found + len(words)
            around = " ".join(text[start : at + _AROUND].split())
            lines.append(f"{offset + start}-{offset + at + _AROUND}: {around}")
        at = max(at, last - len(words) + 1)
    return "\n".join(lines) or f"{words!r} is not in this result"


def _lower(text: str) -> str:
    """Return the text in lower case, with as many characters: only one letter would become two."""
    return text.replace("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "i").lower()


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
