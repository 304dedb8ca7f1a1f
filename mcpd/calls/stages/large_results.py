"""The stage that keeps long results of tools out of a model's context.

The client gets the beginning and the end of the text, and where the whole is: in a file, and as a resource
whose parts can be read. Images, audio and links pass unchanged. Structured content stays valid: only long
strings in it are shortened, and if the tool's `outputSchema` restricts strings, the result passes whole.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import msgspec
from msgspec import Raw

from mcpd.calls.call import Call, Scope, Stage
from mcpd.calls.kept_results import KeptResult, KeptResults
from mcpd.calls.owner import owner_of
from mcpd.config.settings import Settings
from mcpd.files.own_thread import OwnThread
from mcpd.files.paths import UnusablePath
from mcpd.protocol.revision_translation import R3
from mcpd.supervision.catalog import Item
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import DECODE_ERRORS, BadFrame

log = logging.getLogger("mcpd.calls.large_results")

DEFAULT_LIMIT = 200_000
"""Characters, about 50,000 tokens."""
_HOSTS = frozenset(
    {
        "claude-ai",
        "cline",
        "codex",
        "codex-mcp-client",
        "cursor",
        "cursor-vscode",
        "gemini",
        "gemini-cli-mcp-client",
        "goose",
        "opencode",
        "visual studio code",
        "vscode",
        "windsurf",
        "windsurf-client",
        "zed",
    }
)
"""The names of clients that put results into a model's context as they are. For others there is no limit
unless the configuration sets one: programs need whole results, and Claude Code keeps long ones itself."""
_HINT = "anthropic/maxResultSizeChars"
_HEAD, _TAIL = 2000, 1000
"""Bytes of the text that the client gets: 750 tokens of English, and again in structured content."""
_LONG_STRING, _STRING_HEAD = 1000, 300
"""Bytes of JSON of a string in structured content that is shortened, and of its part that the client gets."""
_MAX_DEPTH = 16
"""Levels of structured content in which strings are shortened: each level is read again."""
_RESTRICTED = re.compile(rb'"(?:pattern|format|minLength|maxLength|enum|const|contentEncoding)"')
"""What a schema may demand of a string."""


class LargeResultStageFactory:
    is_per_tool = False

    def __init__(self, kept: KeptResults) -> None:
        self._kept = kept
        self._thread = OwnThread()

    def is_enabled(self, scope: Scope, server: ManagedServer, method: str, settings: Settings) -> bool:
        return method == "tools/call" and not scope.is_control

    def make(self, scope: Scope, server: ManagedServer, method: str, name: str) -> LargeResultStage:
        limit = None if scope.profile is None else scope.profile.result_limit
        return LargeResultStage(self._kept, self._thread, limit)


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""


_decode_block = msgspec.json.Decoder(_Block).decode


@attrs.define(eq=False)
class LargeResultStage(Stage):
    kept: KeptResults
    thread: OwnThread
    """Reads one result at a time, since each takes several times its memory."""
    profile_limit: int | None

    def after_large(
        self, call: Call, result: Raw | bytes
    ) -> Raw | bytes | Callable[[], Awaitable[Raw | bytes]]:
        catalog = call.server.catalog
        item = None if catalog is None else catalog.tool(call.tool)
        limit = self._limit(call, item)
        if limit is None or len(result) <= limit or (call.request is not None and call.request.keeps_whole):
            return result
        restricts = item is not None and b'"outputSchema"' in item.raw and _restricts_strings(item)
        return partial(self._shorten, call, result, limit, restricts)

    def _limit(self, call: Call, item: Item | None) -> int | None:
        set_limit = call.server.spec.result_limit if self.profile_limit is None else self.profile_limit
        if set_limit is not None:
            return set_limit
        names = call.caller.facts(call.context).names
        return None if _HOSTS.isdisjoint(map(str.casefold, names)) else _hint(item) or DEFAULT_LIMIT

    async def _shorten(self, call: Call, result: Raw | bytes, limit: int, restricts: bool) -> Raw | bytes:
        """Return the part for the client. If the result cannot be kept, it is passed on as it is."""
        found = await self.thread.run(_read, result, limit, restricts)
        if found is None:
            return result
        owner = owner_of(call.caller, call.context)
        try:
            kept = await self.kept.keep(owner, found.whole or bytes(result), is_text=bool(found.whole))
        except (OSError, UnusablePath) as error:
            log.warning("%s: a long result is passed on whole: %s", call.server.spec.name, error)
            return result
        is_local = not call.caller.identify(call.context).person
        return await self.thread.run(found.shortened, kept, call.tool, is_local, call.context.version >= R3)


@attrs.frozen
class _LongResult:
    members: dict[str, Raw]
    text: str
    """Of all its blocks."""
    others: list[Raw]
    """Its other blocks."""
    whole: bytes
    """Its text, if nothing else of it is left out; otherwise empty."""

    def shortened(self, kept: KeptResult, tool: str, is_local: bool, has_links: bool) -> bytes:
        """Return the result for the client. `has_links`: whether its revision knows `resource_link`."""
        text = _excerpt(self.text, kept, is_local=is_local)
        content: list[object] = [{"type": "text", "text": text}, *self.others]
        if has_links:
            link = {"type": "resource_link", "uri": kept.uri, "name": f"result of {tool}"}
            content.append({**link, "mimeType": kept.mime_type, "size": kept.size})
        result: dict[str, object] = {**self.members, "content": content}
        if "structuredContent" in self.members:
            result["structuredContent"] = _shorten_strings(
                self.members["structuredContent"],
                lambda string: (
                    text
                    if string == self.text
                    else f"{_start(string, _STRING_HEAD)} [mcpd left out the rest: {kept.uri}]"
                ),
            )
        return msgspec.json.encode(result)


def _restricts_strings(tool: Item) -> bool:
    """Return whether the `outputSchema` of a tool may refuse a shorter string."""
    try:
        schema = wire.members(tool.raw).get("outputSchema", b"")
    except BadFrame:
        return True
    return _RESTRICTED.search(bytes(schema)) is not None


def _hint(item: Item | None) -> int:
    """Return how long the results of a tool may be according to its server; 0 if it does not say."""
    if item is None or _HINT.encode() not in item.raw:
        return 0
    try:
        found = wire.value(wire.members_or_empty(wire.members(item.raw).get("_meta", b"{}")).get(_HINT, b"0"))
    except BadFrame:
        return 0
    return found if isinstance(found, int) and found > 0 else 0


def _read(result: Raw | bytes, limit: int, restricts: bool) -> _LongResult | None:
    """Return what a long result consists of; None if it is to be passed on as it is."""
    try:
        members = wire.members(result)
        structured = members.get("structuredContent", Raw(b""))
        if restricts and structured:
            return None
        texts, others = [], []
        for raw in wire.items(members.get("content", b"[]")):
            block = _decode_block(raw)
            if block.type == "text":
                texts.append(block.text)
            else:
                others.append(raw)
        text = "\n".join(texts) or bytes(structured).decode()
        strings: list[str] = []

        def take(string: str) -> str:
            strings.append(string)
            return ""

        rest = _shorten_strings(structured, take)
    except (BadFrame, *DECODE_ERRORS):
        return None  # the client reports the error
    if max(len(text), sum(map(len, strings))) <= limit or len(rest) > limit:
        return None
    is_all = len(texts) == 1 and all(string == text for string in strings)
    return _LongResult(members, text, others, text.encode() if is_all else b"")


def _shorten_strings(raw: Raw, shorten: Callable[[str], str], depth: int = 0) -> Raw:
    """Return JSON with its long strings replaced. Raises BadFrame, one of DECODE_ERRORS."""
    if len(raw) <= _LONG_STRING or depth > _MAX_DEPTH:
        return raw
    match bytes(memoryview(raw)[:1]):
        case b'"':
            return Raw(msgspec.json.encode(shorten(msgspec.json.decode(raw, type=str))))
        case b"{":
            members = wire.members(raw)
            shorter = {key: _shorten_strings(each, shorten, depth + 1) for key, each in members.items()}
            return Raw(msgspec.json.encode(shorter))
        case b"[":
            items = [_shorten_strings(each, shorten, depth + 1) for each in wire.items(raw)]
            return Raw(msgspec.json.encode(items))
    return raw


def _excerpt(text: str, kept: KeptResult, *, is_local: bool) -> str:
    """Return the beginning, what was left out and where it is, and the end."""
    head, tail = _start(text, _HEAD), _start(text[-_TAIL:][::-1], _TAIL)[::-1]
    left_out = len(text) - len(head) - len(tail)
    lines = text.count("\n", len(head), len(text) - len(tail))
    file = f" in the file {kept.path}, and" if is_local else ""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.until))
    what = "The text" if kept.is_text else "The whole result, as JSON,"
    return (
        f"{head}\n\n[mcpd left out {left_out} of {len(text)} characters here"
        + (f", in {lines + 1} lines" if lines else "")
        + f". {what} is until {until}{file} the resource {kept.uri} ({kept.size} bytes). "
        f"Read a part of that with ?from={len(head)}&to={len(head) + 8000} (characters), "
        f"or find places with ?search=WORDS.]\n\n{tail}"
    )


def _start(text: str, size: int) -> str:
    """Return as many characters as fit into `size` bytes of UTF-8."""
    return text[:size].encode(errors="replace")[:size].decode(errors="ignore")
