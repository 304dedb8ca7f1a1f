"""Reads of kept results by their clients: whole, a range of characters, or the places of some words."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

import attrs
import msgspec
import trio

from mcpd.calls.client_context import ClientRequest
from mcpd.calls.kept_results import URI_PREFIX
from mcpd.calls.owner import owner_of
from mcpd.gateway.session import ClientSession
from mcpd.model.errors import InvalidArguments, Problem
from mcpd.model.text import shorten
from mcpd.wire import message as wire

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
    InvalidArguments, Overloaded; a result that is gone, or another client's, is an unknown resource."""
    if b"results/" not in request.params[:_MAX_PARAMS] and b"\\" not in request.params[:_MAX_PARAMS]:
        return False
    uri = wire.string(wire.members(request.params), "uri")
    if not uri.startswith(URI_PREFIX):
        return False
    part = _parse_uri(uri)

    async def read() -> None:
        mime_type, text = await read_part(session, request, part)
        content = {"uri": uri, "mimeType": mime_type, "text": text}
        result = {"contents": [content]}
        body = {**_NOT_CACHEABLE, **result} if request.context.modern else result
        session.respond(request, msgspec.json.encode(body))

    session.spawn_request(request, read)
    return True


@attrs.frozen
class ResultPart:
    """Which part of which result to read."""

    id: str
    start: int | None = None
    end: int | None = None
    """Characters."""
    search: str = ""
    """If it is not empty, the places of these words are returned instead."""


async def read_part(session: ClientSession, request: ClientRequest, part: ResultPart) -> tuple[str, str]:
    """Return the MIME type and the text. Raises UnknownResource, InvalidArguments."""
    if len(part.search) > _MAX_WORDS:
        text = f"search has {len(part.search)} characters; at most {_MAX_WORDS} are accepted"
        raise InvalidArguments(text, [Problem("$", text)])
    owner = owner_of(session, request.context)
    found, text = await session.gateway.kept_results.read(part.id, owner)
    await trio.lowlevel.checkpoint_if_cancelled()
    if part.search:
        return "text/plain", await _places(text, part.search)
    return found.mime_type, text[part.start : part.end]


def _parse_uri(uri: str) -> ResultPart:
    parts = urlsplit(uri)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    found = ResultPart(
        id=parts.path.removeprefix("/"),
        start=_number(query, "from"),
        end=_number(query, "to"),
        search=query.pop("search", ""),
    )
    if query:
        text = f"a kept result has no {shorten(next(iter(query)), 40)!r}; use from, to, or search"
        raise InvalidArguments(text, [Problem("$.uri", text)])
    return found


def _number(query: dict[str, str], name: str) -> int | None:
    """Take a position out of the query. Raises InvalidArguments."""
    written = query.pop(name, None)
    if written is None:
        return None
    if not (written.isdecimal() and len(written) < 12):
        text = f"{name}={shorten(written, 40)} is not a number of characters"
        raise InvalidArguments(text, [Problem("$.uri", text)])
    return int(written)


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
