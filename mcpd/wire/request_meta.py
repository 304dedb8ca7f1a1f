"""`params._meta`: replaces a client's reserved members by mcpd's own.

Members with reserved names are for the next hop, which is mcpd, not for the server. They are dropped, and the
version, capabilities and progress token of the upstream session take their place.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from mcpd.model.steps import Steps
from mcpd.wire.message import (
    ENVELOPE_START,
    BadFrame,
    join_members,
    members,
    members_in_steps,
    method_json,
    request,
)

RESERVED_PREFIX = "io.modelcontextprotocol/"


def may_have_meta(params: bytes) -> bool:
    """Return False if `params` certainly has no `_meta`, which is nearly always the case."""
    # Escapes can hide it. `find` takes a third of the time of `in`, which first tries to read a number.
    return params.find(b'_meta"') >= 0 or params.find(b"\\u") >= 0


def request_with_meta(
    key: bytes, method: str, params: Raw | bytes, ours: bytes, token: bytes = b"", *, plain: bool = False
) -> bytes:
    """Return the line of a request with `ours` in `params._meta`, as `merge_meta` adds it.

    `token`: the value of the last member of `ours`, if that ends with a colon. `plain`: `may_have_meta` has
    returned False, so the line is joined in one step.
    """
    body = bytes(params)
    if plain and ours and body[:2] == b'{"':
        name, head = method_json(method), b',"params":{"_meta":{'
        return b"".join(
            (ENVELOPE_START, key, b',"method":', name, head, ours, token, b"},", body[1:], b"}\n")
        )
    return request(key, method, merge_meta(body, ours + token) if ours or body else b"")


def merge_meta(params: Raw | bytes, ours: bytes) -> bytes:
    """Add members (`"name":value,…` as JSON, possibly empty) to `params._meta`.

    The client's `progressToken` and reserved members are dropped. All other members of `params` and `_meta`
    keep their bytes. Raises BadFrame if `params` is not an object.
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
    """Return whether `_meta` has reserved members or is unreadable."""
    try:
        return any(name.startswith(RESERVED_PREFIX) for name in members(meta))
    except BadFrame:
        return True


def strip_reserved(outer: dict[str, Raw]) -> None:
    """Remove the reserved members of `_meta`. All others stay, such as the trace context."""
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


def strip_reserved_in_steps(outer: dict[str, Raw]) -> Steps[None]:
    """Do the same as `strip_reserved`, in steps."""
    raw = outer.get("_meta")
    if raw is None:
        return
    data = bytes(raw)
    yield
    try:
        meta = yield from members_in_steps(data)
    except BadFrame:
        del outer["_meta"]
        return
    kept = {name: value for name, value in meta.items() if not name.startswith(RESERVED_PREFIX)}
    yield
    if kept:
        outer["_meta"] = Raw(join_members(kept))
    else:
        del outer["_meta"]
