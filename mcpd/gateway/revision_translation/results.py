"""Parameters on their way up, results and errors on their way down."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import attrs
import msgspec
from msgspec import Raw

from mcpd.gateway.revision_translation.content import narrow_content, needs_narrowing
from mcpd.gateway.revision_translation.revisions import R3, R4, R5
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame
from mcpd.wire.request_meta import has_reserved, strip_reserved

_WITH_CONTENT = frozenset({"tools/call", "prompts/get", "resources/read"})
_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32002, -32602, -32603
_NEEDS_PARSING = re.compile(rb'"(?:_meta|resultType|ttlMs|cacheScope)"|\\u')
"""What has to be looked at before a result is completed; an escape may spell any of it otherwise."""
_COMPLETE_FIRST = re.compile(rb'\s*\{\s*"resultType"\s*:\s*"complete"\s*(?:,|(?=\}))')
_ENVELOPE = frozenset({"ttlMs", "cacheScope"})
_HEADER_ERRORS = frozenset({-32020, -32022})
"""What a server says of the request's dress, which is this daemon's own."""


@attrs.frozen
class Translation:
    """From what a client speaks to what a server does, and back."""

    client: str
    server: str
    to_modern: bool
    from_modern: bool
    same: bool
    """Whether nothing has to be changed, or even looked at: both speak the same legacy revision."""
    narrows: bool
    """Whether the server may say what the client's revision does not know."""

    def params(self, method: str, params: bytes) -> bytes:
        """Raises BadFrame for params that are no object."""
        if method == "completion/complete" and self.server < R3:
            return _drop_param(params, "context")
        if method == "tools/call" and self.server != R4 and b'"task"' in params:
            return _drop_param(params, "task")
        return params

    def result(self, method: str, result: Raw) -> Raw | bytes:
        """What cannot be read passes as it is: the client is to see what its server said."""
        if self.to_modern and self.from_modern:
            return result
        narrow = self.narrows and method in _WITH_CONTENT
        if not narrow and not self.to_modern and not self.from_modern:
            return result
        try:
            if not narrow and self.to_modern and not _NEEDS_PARSING.search(result):
                return _add_envelope(method, bytes(result))
            members = wire.members(result)
        except BadFrame:
            return result
        narrow = narrow and needs_narrowing(method, members, self.client)
        if not narrow and self.from_modern and (plain := _strip_envelope(bytes(result), members)) is not None:
            return plain
        if narrow:
            members = narrow_content(method, members, self.client)
        if self.from_modern or self.to_modern:
            for name in ("resultType", "ttlMs", "cacheScope"):
                members.pop(name, None)
        strip_reserved(members)
        body = msgspec.json.encode(members)
        return _add_envelope(method, body) if self.to_modern else body

    def error(self, method: str, error: Raw) -> Raw | bytes:
        """The error object; the distinction between it and a failed tool is kept by not touching either."""
        if self.to_modern == self.from_modern and not self.from_modern:
            return error
        try:
            members = wire.members(error)
            code = msgspec.json.decode(members.get("code", Raw(b"0")), type=int)
        except (BadFrame, msgspec.MsgspecError):
            return error
        changed = _translate_code(method, code, to_modern=self.to_modern, from_modern=self.from_modern)
        if changed == code:
            return error
        if changed == _INTERNAL:
            members["data"] = Raw(
                msgspec.json.encode({"code": code, "data": members.get("data", Raw(b"null"))})
            )
        return msgspec.json.encode({**members, "code": changed})


@functools.lru_cache(maxsize=64)
def translation(client: str, server: str) -> Translation:
    """Between two revisions."""
    return Translation(
        client=client,
        server=server,
        to_modern=client >= R5,
        from_modern=server >= R5,
        same=client == server and client < R5,
        narrows=client < server and client < R5,
    )


def _strip_envelope(result: bytes, members: Mapping[str, Raw]) -> bytes | None:
    """The result without the envelope's members, its other bytes as they are; None where that takes more."""
    found = _COMPLETE_FIRST.match(result)
    if found is None or members.keys() & _ENVELOPE or ("_meta" in members and has_reserved(members["_meta"])):
        return None
    return b"{" + result[found.end() :]


def _translate_code(method: str, code: int, *, to_modern: bool, from_modern: bool) -> int:
    if from_modern and code in _HEADER_ERRORS:
        return _INTERNAL
    if to_modern and not from_modern:
        if code == _NOT_FOUND:
            return _INVALID_PARAMS
        return _INTERNAL if -32019 <= code <= -32000 else code
    if from_modern and not to_modern and code == _INVALID_PARAMS and method == "resources/read":
        return _NOT_FOUND
    return code


def _add_envelope(method: str, body: bytes) -> bytes:
    """A legacy result as the modern revision has it: complete, and of no lasting truth."""
    body = body.lstrip()
    if body[:1] != b"{":
        return body  # no result in any revision: the client is to see what its server said
    rest = body[1:].lstrip()
    head = b'{"resultType":"complete"'
    if method == "resources/read":
        head += b',"ttlMs":0,"cacheScope":"private"'
    return head + (b"," if rest[:1] != b"}" else b"") + rest


def _drop_param(params: bytes, name: str) -> bytes:
    members = wire.members(params or b"{}")
    members.pop(name, None)
    return msgspec.json.encode(members)
