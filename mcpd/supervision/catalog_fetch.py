"""Fetches the lists of a server: all pages, without what is unusable, and within limits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import trio
from msgspec import Raw

from mcpd.io.turns import TurnLimit, in_turns
from mcpd.model.errors import McpdError, ProtocolViolation, UpstreamRefused
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import FEATURES, Upstream
from mcpd.supervision.catalog import (
    LIST_METHODS,
    MAX_ENTRIES,
    CacheHint,
    Catalog,
    Item,
    Listing,
    ListMethod,
    is_tool_allowed,
    name_of_entry,
    repair_entry,
)
from mcpd.supervision.tool_overrides import change_tools
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_TIMEOUT = 5.0
"""Seconds for an answer: a server that ignores unknown methods must not be kept from connecting for long."""


async def find_undeclared_lists(upstream: Upstream) -> None:
    """Ask for `tools/list` if the server declared no tools, and for all lists if it declared none of them.

    A feature whose list the server answers counts as declared (`Upstream.has`) from then on. Raises LinkLost
    if the connection ends.
    """
    async with trio.open_nursery() as nursery:
        for feature in _undeclared(upstream):
            nursery.start_soon(_ask, upstream, feature)
    if upstream.link.end_error is not None:
        raise upstream.link.end_error


def _undeclared(upstream: Upstream) -> Iterable[str]:
    if not any(upstream.has(feature) for feature in FEATURES):
        return FEATURES
    return () if upstream.has("tools") else ("tools",)


async def _ask(upstream: Upstream, feature: str) -> None:
    try:
        result = await upstream.request(f"{feature}/list", {}, timeout=_TIMEOUT)
        members = wire.members(result)
    except (McpdError, BadFrame):
        return
    if bytes(members.get(feature, b"")).startswith(b"["):
        upstream.capabilities = {**upstream.capabilities, feature: {}}


MAX_PAGES = 1000
MAX_LIST_BYTES = 16 * 1024 * 1024
"""Limits for one list over all its pages, as is MAX_ENTRIES. It is kept, and every client may fetch it."""
_MAX_CURSOR = 1024 * 1024
"""Bytes of the cursor of the next page, as JSON."""
_EMPTY = Raw(b"[]")
"""Also for `null`, which programs in Go write for a list without entries."""
_MAX_WARNINGS = 10
"""Tools that are left out with a warning for each."""


async def fetch_catalog(
    upstream: Upstream, spec: ServerSpec, features: Sequence[str] = FEATURES, old: Catalog | None = None
) -> Catalog:
    """Fetch all pages of the lists of `features`; take the other lists from `old`, and those that the server
    answers with an error (`Catalog.failed`). Raises LinkLost, and trio.TooSlowError
    when one list takes longer than `timeouts.list`.
    """
    found: dict[str, Listing] = {}
    base = old or Catalog()
    failed = {feature: why for feature, why in base.failed.items() if feature not in features}
    hints = {} if old is None else {name: hint for name, hint in old.hints.items() if name not in features}
    warnings: list[str] = []
    dropped_tools = base.dropped_tools
    for kind in LIST_METHODS:
        if kind.feature not in features:
            continue
        if not upstream.has(kind.feature):
            found[kind.field] = ()
            continue
        with trio.move_on_after(spec.timeouts.list) as waiting:
            reader = _ListReader(upstream, kind, warnings, is_known=bool(getattr(base, kind.field)))
            await reader.read()
        if waiting.cancelled_caught:
            raise trio.TooSlowError(f"{kind.method} took longer than {spec.timeouts.list:g} s")
        items, pages = tuple(reader.items.values()), reader.hints
        if reader.failure:
            failed.setdefault(kind.feature, f"{kind.method} {reader.failure}")
            if getattr(base, kind.field):
                continue
        if kind.member == "tools":
            dropped_tools = reader.dropped
            items = await _select_tools(upstream, spec, items, warnings)
        found[kind.field] = items
        if upstream.sends_cache_hints and pages:
            pages += [hints[kind.feature]] if kind.feature in hints else []
            hints[kind.feature] = _combine_hints(pages)
    return Catalog(
        tools=found.get("tools", base.tools),
        resources=found.get("resources", base.resources),
        templates=found.get("templates", base.templates),
        prompts=found.get("prompts", base.prompts),
        fetched_at=rfc3339(time.time()),
        warnings=tuple(warnings),
        dropped_tools=dropped_tools,
        hints=hints,
        failed=failed,
    )


def _combine_hints(hints: Sequence[CacheHint]) -> CacheHint:
    at = min(hint.received_at for hint in hints)
    fresh_until = min(hint.fresh_until for hint in hints)
    return CacheHint(ttl=fresh_until - at, received_at=at, private=any(hint.private for hint in hints))


def _read_cache_hint(page: Mapping[str, Raw]) -> CacheHint:
    """A missing or invalid `ttlMs` or `cacheScope` means 0 and "private"."""
    try:
        ttl = msgspec.json.decode(page.get("ttlMs", b"0"), type=float) / 1000
        scope = msgspec.json.decode(page.get("cacheScope", b'""'), type=str)
    except ValueError:
        ttl, scope = 0.0, ""
    return CacheHint(ttl=max(0.0, ttl), received_at=trio.current_time(), private=scope != "public")


async def _select_tools(upstream: Upstream, spec: ServerSpec, tools: Listing, warnings: list[str]) -> Listing:
    """Return the tools that may be offered to clients; add warnings for those that must not be."""
    turns = TurnLimit()
    selected = []
    refused = []
    for tool in tools:
        await turns.pause()
        wrong = None if upstream.admit_tool is None else upstream.admit_tool(tool.name, tool.raw)
        if wrong is not None:
            refused.append(f"tool {shorten(tool.name, 60)} was left out: {shorten(wrong, 300)}")
        elif is_tool_allowed(spec, tool.name):
            selected.append(tool)
    warnings += refused[:_MAX_WARNINGS]
    if len(refused) > _MAX_WARNINGS:
        warnings.append(f"{len(refused) - _MAX_WARNINGS} more tools were left out")
    return (
        await in_turns(change_tools(spec, tuple(selected), warnings))
        if spec.changes_tools
        else tuple(selected)
    )


class _ListReader:
    """Reads one list page by page. Whatever is wrong with it is added to `warnings`."""

    def __init__(self, upstream: Upstream, kind: ListMethod, warnings: list[str], *, is_known: bool) -> None:
        """`is_known`: whether the server has answered with such a list before."""
        self.items: dict[str, Item] = {}
        self.hints: list[CacheHint] = []
        """One for each page."""
        self.dropped = 0
        """Entries that are unusable or duplicates."""
        self.failure = ""
        """What is wrong with a list that could not be fetched."""
        self._upstream, self._kind, self._warnings = upstream, kind, warnings
        self._is_known = is_known
        self._size = 0
        self._turns = TurnLimit()

    async def read(self) -> None:
        cursor = b""
        seen: set[bytes] = set()
        for _ in range(MAX_PAGES):
            try:
                cursor = await self._read_page({"cursor": Raw(cursor)} if cursor else {})
            except UpstreamRefused as error:
                if (
                    error.upstream_code != -32601 or self.items or self._is_known
                ):  # otherwise there is no such list
                    problem = error.message.removeprefix(f"{error.server}: ")
                    self.failure = f"failed: {shorten(problem, 300)}"
                break
            except (ProtocolViolation, *wire.DECODE_ERRORS) as error:
                self.failure = shorten(f"returned an unusable result: {error}", 300)
                break
            if not cursor:
                break
            if cursor in seen:
                self._warn(f"repeated a cursor; stopped after {len(self.items)} entries")
                break
            seen.add(cursor)
        else:
            self._warn(f"has more than {MAX_PAGES} pages; stopped after {len(self.items)} entries")
        if self.failure:
            self._warn(self.failure)
        if self.dropped:
            self._warn(f"has {self.dropped} unusable or duplicate entries, which were left out")

    def _warn(self, problem: str) -> None:
        self._warnings.append(f"{self._kind.method} {problem}")

    async def _read_page(self, params: Mapping[str, object]) -> bytes:
        """Return the cursor of the next page as JSON; empty if no other page is to be read."""
        page = await self._upstream.request(self._kind.method, params)
        self._size += len(page)
        if self._size > MAX_LIST_BYTES:
            self._warn(f"is longer than {MAX_LIST_BYTES} bytes; stopped after {len(self.items)} entries")
            return b""
        members = wire.members(page)
        if self._is_known and self._kind.member not in members:
            raise ProtocolViolation(f"it has no `{self._kind.member}`")
        await self._turns.pause()
        listed = members.get(self._kind.member, _EMPTY)
        entries, too_many = wire.first_items(_EMPTY if bytes(listed) == b"null" else listed, MAX_ENTRIES)
        await self._turns.pause()
        cursor = _read_cursor(members)
        self.hints.append(_read_cache_hint(members))
        for entry in entries:
            await self._turns.pause()
            too_many = not self._add(entry) or too_many
        if too_many:
            self._warn(f"has more than {MAX_ENTRIES} entries; the others were left out")
            return b""
        return cursor

    def _add(self, entry: Raw) -> bool:
        """Return False if there is no room for the entry."""
        name = name_of_entry(entry, self._kind.key)
        if name is not None and name not in self.items:
            if len(self.items) == MAX_ENTRIES:
                return False
            self.items[name] = Item(name, repair_entry(bytes(entry), self._kind.member))
            return True
        self.dropped += 1
        return True


def _read_cursor(page: Mapping[str, Raw]) -> bytes:
    """Return the cursor as JSON: the empty string is a valid one, and some servers count. Raises
    ProtocolViolation if it is too long."""
    raw = page.get("nextCursor", Raw(b""))
    if len(raw) > _MAX_CURSOR:
        raise ProtocolViolation(f"`nextCursor` has {len(raw)} bytes, and mcpd accepts at most {_MAX_CURSOR}")
    return b"" if bytes(raw) in (b"null", b"false") else bytes(raw)
