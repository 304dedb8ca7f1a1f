"""Translation between protocol revisions: parameters up, results, errors, list entries and questions down.

If both sides speak the same revision, or the client knows everything that the server may send, nothing is
parsed and the bytes pass unchanged. Otherwise members that a revision lacks are dropped or rewritten in its
own terms. All functions are pure; the rules follow from comparing the schemas of the revisions.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from mcpd.model.steps import Steps, run_steps
from mcpd.protocol.content_translation import R1 as R1
from mcpd.protocol.content_translation import R2 as R2
from mcpd.protocol.content_translation import R3 as R3
from mcpd.protocol.content_translation import R4 as R4
from mcpd.protocol.content_translation import R5 as R5
from mcpd.protocol.content_translation import narrow_content, needs_narrowing
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame, has_reserved, strip_reserved, strip_reserved_in_steps

_WITH_CONTENT = frozenset({"tools/call", "prompts/get", "resources/read"})
_NOT_FOUND, _INVALID_PARAMS, _INTERNAL = -32002, -32602, -32603
COMPLETE_FIRST = re.compile(rb'\s*\{\s*"resultType"\s*:\s*"complete"\s*(?:,|(?=\}))')
_COMPACT_ENVELOPE = b'{"resultType":"complete",'
_ENVELOPE = frozenset({"ttlMs", "cacheScope"})
_TRANSLATED = _ENVELOPE | {"resultType", "_meta"}
_MAX_SEARCHED = 1 << 20
"""Bytes of a result that is searched for what must change. Reading the members of a longer one takes less
time: up to 1.5 ms per MiB, and each of the searches up to 3 ms."""
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
    suspects: tuple[bytes, ...]
    """A result without any of these needs no parsing. An escape may spell each of them differently."""

    def params(self, method: str, params: bytes) -> bytes:
        """Translate params. Raises BadFrame if they are not an object."""
        if method == "completion/complete" and self.server < R3:
            return _drop_param(params, "context")
        if method == "tools/call" and self.server != R4 and b'"task"' in params:
            return _drop_param(params, "task")
        return params

    def result(self, method: str, result: Raw) -> Raw | bytes:
        """Translate a result. What cannot be parsed passes unchanged."""
        if self.to_modern and self.from_modern:
            return _ensure_result_type(result)
        if not (self.to_modern or self.from_modern or (self.narrows and method in _WITH_CONTENT)):
            return result
        data = bytes(result)
        if len(data) <= _MAX_SEARCHED:
            for word in self.suspects:  # a generator would take three times as long
                if word in data:
                    break
            else:
                if self.to_modern:
                    return _add_envelope(method, data)
                if not self.from_modern:
                    return data
                if data.startswith(_COMPACT_ENVELOPE):
                    return b"{" + data[len(_COMPACT_ENVELOPE) :]
        return run_steps(self._change(method, data))

    def result_in_steps(self, method: str, result: Raw) -> Steps[Raw | bytes]:
        """Do the same as `result`, for a large result: read its members without searching it first."""
        if self.to_modern and self.from_modern:
            return (yield from _ensure_result_type_in_steps(result))
        if not (self.to_modern or self.from_modern or (self.narrows and method in _WITH_CONTENT)):
            return result
        data = bytes(result)
        yield
        return (yield from self._change(method, data))

    def _change(self, method: str, data: bytes) -> Steps[bytes]:
        """Translate a result that probably has to be changed."""
        try:
            members = yield from wire.members_in_steps(data)
        except BadFrame:
            return data
        yield
        narrowed = None
        if self.narrows and method in _WITH_CONTENT and needs_narrowing(method, members, self.client):
            narrowed = yield from narrow_content(method, members, self.client)
            yield
        if narrowed is None:
            if not members.keys() & _TRANSLATED:
                return _add_envelope(method, data) if self.to_modern else data
            if self.from_modern and (plain := _strip_envelope(data, members)) is not None:
                return plain
        else:
            members = narrowed
        if self.from_modern or self.to_modern:
            for name in ("resultType", "ttlMs", "cacheScope"):
                members.pop(name, None)
        yield from strip_reserved_in_steps(members)
        yield
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
        suspects=_suspects(client, server),
    )


def _suspects(client: str, server: str) -> tuple[bytes, ...]:
    """Return what a result from `server` may contain that has to be changed for `client`."""
    words = [b"\\u00"]
    if server >= R5 or client >= R5:
        words += [b'"_meta"', b'"ttlMs"', b'"cacheScope"']
    if client >= R5:
        words += [b'"resultType"']
    if client < server:
        words += [b'"structuredContent"']
        words += [b'"icons"'] if client < R4 else []
        words += [b'"_meta"', b'"lastModified"', b'"resource_link"'] if client < R3 else []
        words += [b'"audio"'] if client < R2 else []
    return tuple(dict.fromkeys(words))


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
        suspects=(),
    )


def _strip_envelope(result: bytes, members: Mapping[str, Raw]) -> bytes | None:
    """Return the result without the envelope's members, other bytes kept; None if that needs re-encoding."""
    found = COMPLETE_FIRST.match(result)
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


def _ensure_result_type(result: Raw) -> Raw | bytes:
    """Add `resultType` to a modern server's result if it is missing: it is required, a client may insist on
    it, and a client of the server itself would take its absence as `complete`."""
    if COMPLETE_FIRST.match(result):
        return result
    data = bytes(result)
    if b'"resultType"' in data or b"\\u00" in data:
        try:
            if "resultType" in wire.members(result):
                return result
        except BadFrame:
            return result
    return _prepend_members(b'{"resultType":"complete"', data)


def _ensure_result_type_in_steps(result: Raw) -> Steps[Raw | bytes]:
    """Do the same as `_ensure_result_type`, for a large result."""
    if COMPLETE_FIRST.match(result):
        return result
    data = bytes(result)
    yield
    try:
        members = yield from wire.members_in_steps(data)
    except BadFrame:
        return result
    if "resultType" in members:
        return result
    yield
    return _prepend_members(b'{"resultType":"complete"', data)


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
