"""Translation between protocol revisions: parameters up, results, errors, list entries and questions down.

If both sides speak the same revision, or the client knows everything that the server may send, nothing is
parsed and the bytes pass unchanged. What the newest revision adds to each result is cut off. Otherwise,
members that a revision lacks are dropped or rewritten in its own terms. All functions are pure; the rules
follow from comparing the schemas of the revisions.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from mcpd.model.text import shorten
from mcpd.protocol.content_translation import R1 as R1
from mcpd.protocol.content_translation import R2 as R2
from mcpd.protocol.content_translation import R3 as R3
from mcpd.protocol.content_translation import R4 as R4
from mcpd.protocol.content_translation import R5 as R5
from mcpd.protocol.content_translation import narrow_content, needs_narrowing
from mcpd.wire import message as wire
from mcpd.wire.message import (
    ABSENT,
    DECODE_ERRORS,
    RESERVED_PREFIX,
    BadFrame,
    may_have_member,
    strip_reserved,
)

_WITH_CONTENT = frozenset({"tools/call", "prompts/get", "resources/read"})
_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32002, -32602, -32603
_TRANSLATED = frozenset({"resultType", "ttlMs", "cacheScope", "_meta"})
_MODERN_MEMBERS = (b'"resultType"', b'"_meta"', b'"ttlMs"', b'"cacheScope"')
_MAX_SEARCHED = 1 << 20
"""Bytes of a result that is searched for what must change. Reading the members of a longer one takes
less time."""
_HEADER_ERRORS = frozenset({-32020, -32022})
"""Errors about the headers of our own request."""


class Translation(msgspec.Struct, frozen=True):
    """Translates from a client's revision to a server's, and back."""

    client: str
    server: str
    to_modern: bool
    from_modern: bool
    same: bool
    """Whether both speak the same legacy revision, so that nothing changes."""
    narrows: bool
    """Whether the server may send what the client's revision does not know."""
    types_results: bool
    """Whether the server's results have a type, and may be unfinished."""
    suspects: tuple[bytes, ...] = ()
    """The content of a result without any of these is known to the client's revision."""

    def params(self, method: str, params: bytes) -> bytes:
        """Translate params. Raises BadFrame if they are not an object."""
        if method == "completion/complete" and self.server < R3:
            return _drop_param(params, "context")
        if method == "tools/call" and self.server != R4 and may_have_member(params, b'"task"'):
            return _drop_param(params, "task")
        return params

    def final_result(self, method: str, result: Raw) -> Raw | bytes | None:
        """Translate a result as it came from the server. Return None if it is not the final one."""
        if self.from_modern:
            return self._result_of_modern(method, result, is_final=False)
        if self.types_results and result_type(result) != "complete":
            return None
        return self.result(method, result)

    def result(self, method: str, result: Raw) -> Raw | bytes:
        """Translate a final result. What cannot be parsed passes unchanged."""
        if self.from_modern:
            return self._result_of_modern(method, result, is_final=True) or result
        if self.to_modern:
            if any(word in bytes(result) for word in _MODERN_MEMBERS):
                return self._change(method, bytes(result))
            return _add_envelope(method, bytes(result))
        if not (self.narrows and method in _WITH_CONTENT):
            return result
        data = bytes(result)
        return self._change(method, data) if self._is_suspect(data) else data

    def _result_of_modern(self, method: str, result: Raw, *, is_final: bool) -> Raw | bytes | None:
        """Translate a modern server's result; return None if it is not final.

        If nothing else differs, what the revision adds at the top is cut off, and all other bytes are kept.
        """
        try:
            head = _decode_head(result)
        except DECODE_ERRORS:
            return result  # the client reports the error
        if not is_final and head.kind is not ABSENT and bytes(head.kind) != b'"complete"':
            return None
        if self.to_modern:
            if head.kind is not ABSENT:
                return result
            return _prepend_members(b'{"resultType":"complete"', bytes(result))
        if self.narrows and method in _WITH_CONTENT:
            if self.client < R4:
                data = bytes(result)
                if self._is_suspect(data):
                    return self._change(method, data)
            elif head.structured is not ABSENT and bytes(head.structured)[:1] != b"{":
                return self._change(method, bytes(result))
        return _cut_envelope(result, head) or self._change(method, bytes(result))

    def _is_suspect(self, data: bytes) -> bool:
        """Return whether the content of a result may hold what the client's revision does not know."""
        if len(data) > _MAX_SEARCHED:
            return True
        return any(map(data.__contains__, self.suspects))

    def _change(self, method: str, data: bytes) -> bytes:
        """Translate a result of which more has to be changed than what `result` can cut off or add."""
        try:
            members = wire.members(data)
        except BadFrame:
            return data
        narrowed = None
        if self.narrows and method in _WITH_CONTENT and needs_narrowing(method, members, self.client):
            narrowed = narrow_content(method, members, self.client)
        if narrowed is None and not members.keys() & _TRANSLATED:
            return _add_envelope(method, data) if self.to_modern else data
        members = members if narrowed is None else narrowed
        if self.from_modern or self.to_modern:
            for name in ("resultType", "ttlMs", "cacheScope"):
                members.pop(name, None)
        strip_reserved(members)
        return wire.join_members(members, _envelope(method) if self.to_modern else b"{")

    def error(self, method: str, error: Raw) -> Raw | bytes:
        """Translate an error object. Errors stay errors, and failed tool results stay results."""
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
    return Translation(
        client=client,
        server=server,
        to_modern=client >= R5,
        from_modern=server >= R5,
        same=client == server and client < R5,
        narrows=client < server,
        types_results=server >= R5,
        suspects=_suspects(client, server),
    )


def _suspects(client: str, server: str) -> tuple[bytes, ...]:
    """Return what the content of a result from `server` may contain that has to be changed for `client`."""
    words: list[bytes] = []
    if client < server:
        words += [b'"structuredContent"']
        words += [b'"icons"'] if client < R4 else []
        words += [b'"_meta"', b'"lastModified"', b'"resource_link"'] if client < R3 else []
        words += [b'"audio"'] if client < R2 else []
    return tuple(words)


class _Head(msgspec.Struct, gc=False):
    """The members of a modern server's result that may have to be changed."""

    kind: Raw = msgspec.field(default=ABSENT, name="resultType")
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")
    ttl: Raw = msgspec.field(default=ABSENT, name="ttlMs")
    scope: Raw = msgspec.field(default=ABSENT, name="cacheScope")
    structured: Raw = msgspec.field(default=ABSENT, name="structuredContent")


class _Kind(msgspec.Struct, gc=False):
    kind: Raw = msgspec.field(default=ABSENT, name="resultType")


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_names = msgspec.json.Decoder(dict[str, Raw]).decode


def result_type(result: Raw) -> str:
    """Return the `resultType` of a modern server's result; `complete` if it has none."""
    try:
        kind = _decode_kind(result).kind
    except DECODE_ERRORS:
        return "complete"  # the next parser reports the error
    if kind is ABSENT or bytes(kind) == b'"complete"':
        return "complete"
    try:
        return msgspec.json.decode(kind, type=str)
    except DECODE_ERRORS:
        return shorten(bytes(kind), 40)


_MAX_END = 1024
"""Bytes at the end of a result in which the members that its revision added are looked for."""


def _cut_envelope(result: Raw, head: _Head) -> bytes | None:
    """Return a result without the members that its revision added; all other bytes are kept.

    Return None if something of `_meta` must be kept, or if these members are elsewhere than at the beginning
    or the end, where servers put them.
    """
    if head.ttl is not ABSENT or head.scope is not ABSENT or len(head.meta) > _MAX_END:
        return None
    kind, meta = bytes(head.kind), bytes(head.meta)
    if meta and not _is_reserved(meta):
        return None
    # Whole members before the last brace are at the top level.
    kind, meta = kind and b',"resultType":' + kind, meta and b',"_meta":' + meta
    view = memoryview(result)
    end = bytes(view[-_MAX_END:])
    for added in (kind + meta + b"}", meta + kind + b"}"):
        if end.endswith(added):
            return b"".join((view[: -len(added)], b"}"))
    beginning = b"{" + kind[1:] + b","
    if end.endswith(meta + b"}") and bytes(view[: len(beginning)]) == beginning:
        return b"".join((b"{", view[len(beginning) : -len(meta) - 1], b"}"))
    return None


@functools.lru_cache(maxsize=256)
def _is_reserved(meta: bytes) -> bool:
    """Return whether all members of a `_meta` are reserved. Cached, because servers repeat themselves."""
    try:
        return all(name.startswith(RESERVED_PREFIX) for name in _decode_names(meta))
    except DECODE_ERRORS:
        return False


@functools.lru_cache(maxsize=16)
def no_translation(server: str) -> Translation:
    """Return the translation for callers that take what the server sends."""
    return Translation(
        client=server,
        server=server,
        to_modern=False,
        from_modern=False,
        same=True,
        narrows=False,
        types_results=server >= R5,
    )


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
    """Add what the modern revision requires to a legacy result: complete, and not to be cached."""
    return _prepend_members(_envelope(method), body)


def _envelope(method: str) -> bytes:
    """Return the beginning of the object that `_add_envelope` returns."""
    if method == "resources/read":
        return b'{"resultType":"complete","ttlMs":0,"cacheScope":"private"'
    return b'{"resultType":"complete"'


def _prepend_members(head: bytes, body: bytes) -> bytes:
    """Return the object `body` with the members of the unclosed object `head` before its own."""
    if body[:2] == b'{"':
        return b"".join((head, b",", memoryview(body)[1:]))
    body = body.lstrip()
    if body[:1] != b"{":
        return body  # not a valid result in any revision: the client sees what the server sent
    rest = body[1:].lstrip()
    return head + (b"," if rest[:1] != b"}" else b"") + rest


def _drop_param(params: bytes, name: str) -> bytes:
    members = wire.members(params or b"{}")
    members.pop(name, None)
    return msgspec.json.encode(members)


Entry = Callable[[bytes], bytes]
_MAY_NEED_CHANGE = (b'"execution"', b'"x-mcp-header"', b'"outputSchema"', b"\\u")


def entry_translation(member: str, client: str) -> Entry | None:
    """Return the translation for entries of the list `member`; None if they stay unchanged."""
    if client >= R4 and member != "tools":
        return None
    return functools.partial(_translate_entry_once, member, client)


_MAX_KEPT_ENTRY = 4096


def _translate_entry_once(member: str, client: str, raw: bytes) -> bytes:
    """Translate an entry; keep the result, because clients fetch the same lists again and again."""
    translate = _kept_entries if len(raw) <= _MAX_KEPT_ENTRY else _translate_entry
    return translate(member, client, raw)


def _translate_entry(member: str, client: str, raw: bytes) -> bytes:
    if client >= R4 and not any(word in raw for word in _MAY_NEED_CHANGE):
        return raw
    try:
        entry = wire.members(raw)
        return msgspec.json.encode(
            _translate_tool(entry, client) if member == "tools" else _translate_other(entry, client)
        )
    except (BadFrame, RecursionError):  # the server decides how deeply a schema nests
        return raw


_kept_entries = functools.lru_cache(maxsize=2000)(_translate_entry)


def _translate_tool(tool: dict[str, Raw], client: str) -> dict[str, Raw]:
    if client >= R5:
        tool.pop("execution", None)  # the modern revision has no such member; its servers decide about tasks
        return tool
    output = tool.get("outputSchema")
    if output is not None and (client < R3 or wire.mapping(output).get("type") != "object"):
        del tool["outputSchema"]
    if "inputSchema" in tool and b"x-mcp-header" in bytes(tool["inputSchema"]):
        tool["inputSchema"] = Raw(msgspec.json.encode(_without_headers(wire.value(tool["inputSchema"]))))
    if client < R4:
        tool.pop("execution", None)
    if client == R2 and "title" in tool:
        annotations = wire.mapping(tool.get("annotations"))
        tool["annotations"] = Raw(msgspec.json.encode({"title": tool["title"], **annotations}))
    if client < R2:
        tool.pop("annotations", None)
    return _translate_other(tool, client)


def _translate_other(entry: dict[str, Raw], client: str) -> dict[str, Raw]:
    if client < R4:
        entry.pop("icons", None)
    if client < R3:
        entry.pop("title", None)
        entry.pop("_meta", None)
        annotations = wire.mapping(entry.get("annotations"))
        if "lastModified" in annotations:
            del annotations["lastModified"]
            entry["annotations"] = Raw(msgspec.json.encode(annotations))
    return entry


def _without_headers(schema: object) -> object:
    """Return the schema without `x-mcp-header`, which is for modern clients."""
    if isinstance(schema, Mapping):
        return {name: _without_headers(value) for name, value in schema.items() if name != "x-mcp-header"}
    return [_without_headers(value) for value in schema] if isinstance(schema, list) else schema


_Object = dict[str, Any]


def translate_request(method: str, params: Raw, client: str, label: str) -> bytes | None:
    """Return the params of a server's request in the client's revision, with `label` before its message;
    None if that revision cannot express it. Raises BadFrame if they are not an object."""
    if client < R3 and method == "elicitation/create":
        return None
    members = wire.members(params or b"{}")
    strip_reserved(members)
    if client < R4:
        members.pop("task", None)
    if method == "elicitation/create":
        schema = members.get("requestedSchema")
        if client < R4:
            if wire.value(members.pop("mode", Raw(b'"form"'))) != "form":
                return None
            simple = _simplify_form(wire.mapping(schema))
            if simple is None:
                return None
            members["requestedSchema"] = Raw(msgspec.json.encode(simple))
        elif client < R5 and wire.value(members.get("mode", Raw(b'"form"'))) == "url":
            if "elicitationId" not in members:  # required by this revision
                members["elicitationId"] = Raw(msgspec.json.encode(secrets.token_urlsafe(12)))
        elif client >= R5:
            members.pop("elicitationId", None)
        if label and "message" in members:
            text = wire.value(members["message"])
            members["message"] = Raw(msgspec.json.encode(f"{label}{text}"))
    return msgspec.json.encode(members)


def _simplify_form(schema: _Object) -> _Object | None:
    """Return a form as 2025-06-18 knows it (single choices, boolean defaults only), or None."""
    properties: _Object = {}
    fields = schema.get("properties")
    for name, field in fields.items() if isinstance(fields, dict) else ():
        if not isinstance(field, dict) or field.get("type") == "array":
            return None
        field = dict(field)
        choices = field.pop("oneOf", None)
        if isinstance(choices, list):
            field["enum"] = [str(each.get("const")) for each in choices if isinstance(each, dict)]
            field["enumNames"] = [str(each.get("title")) for each in choices if isinstance(each, dict)]
        if field.get("type") != "boolean":
            field.pop("default", None)
        properties[name] = field
    return {**schema, "properties": properties}
