"""`params._meta`: the names the protocol keeps for itself, and putting ours in place of a client's.

What a client wrote under a reserved name is meant for us, the next hop, never for the server: it is
dropped, and the upstream's own version, capabilities and progress token take its place.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcpd.wire.message import ENVELOPE_START, BadFrame, members, method_json, request

RESERVED_PREFIX = "io.modelcontextprotocol/"


def may_have_meta(params: bytes) -> bool:
    """False when there is surely no `_meta` in there: nearly always, and then nothing need be opened."""
    # An escape may spell it otherwise. `find`, because `in` first tries the needle as a number: 3x the time.
    return params.find(b'_meta"') >= 0 or params.find(b"\\u") >= 0


def request_with_meta(key: bytes, method: str, params: bytes, ours: bytes, *, plain: bool = False) -> bytes:
    """A request line with our members in `params._meta`, as `stamp` puts them there.

    `plain`: `may_have_meta` has said no already, so everything is joined at once.
    """
    if plain and ours and params[:2] == b'{"':
        return b"".join(
            (
                ENVELOPE_START,
                key,
                b',"method":',
                method_json(method),
                b',"params":{"_meta":{',
                ours,
                b"},",
                params[1:],
                b"}\n",
            )
        )
    return request(key, method, merge_meta(params, ours) if ours or params else b"")


def merge_meta(params: Raw | bytes, ours: bytes) -> bytes:
    """Put our members (`"name":value,…` as JSON, may be empty) into `params._meta`.

    A client's `progressToken` and reserved names are dropped; all other members of `params` and of
    `_meta` keep their bytes. Raises BadFrame when params is not an object.
    """
    body = bytes(params)
    if not may_have_meta(body) and body[:2] == b'{"':
        return b"".join((b'{"_meta":{', ours, b"},", body[1:])) if ours else body
    if not body or body == b"{}":
        return b'{"_meta":{%b}}' % ours if ours else b"{}"
    outer = members(body)
    given = outer.pop("_meta", None)
    inner = members(given) if given is not None and bytes(given) != b"null" else {}
    kept = [
        b"%b:%b" % (msgspec.json.encode(name), text)
        for name, text in inner.items()
        if name != "progressToken" and not name.startswith(RESERVED_PREFIX)
    ]
    meta = b",".join([*([ours] if ours else []), *kept])
    rest = b",".join([b"%b:%b" % (msgspec.json.encode(name), text) for name, text in outer.items()])
    both = [*([b'"_meta":{%b}' % meta] if meta else []), *([rest] if rest else [])]
    return b"{%b}" % b",".join(both)


def has_reserved(meta: Raw | bytes) -> bool:
    """Whether a `_meta` says something under a reserved name, or cannot be read."""
    try:
        return any(name.startswith(RESERVED_PREFIX) for name in members(meta))
    except BadFrame:
        return True  # then it has to go


def strip_reserved(outer: dict[str, Raw]) -> None:
    """Reserved names in `_meta` are a word between neighbours; all others pass, trace context among them."""
    raw = outer.get("_meta")
    if raw is None:
        return
    try:
        meta = {name: value for name, value in members(raw).items() if not name.startswith(RESERVED_PREFIX)}
    except BadFrame:
        del outer["_meta"]
        return
    if meta:
        outer["_meta"] = Raw(msgspec.json.encode(meta))
    else:
        del outer["_meta"]
