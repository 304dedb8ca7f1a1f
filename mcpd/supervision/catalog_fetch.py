"""Fetches a server's lists, page by page, within limits. Problems in usable responses become warnings."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import ProtocolViolation, UpstreamRefused
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import FEATURES, Upstream
from mcpd.supervision.catalog import (
    LIST_METHODS,
    MAX_ENTRIES,
    MAX_NAME,
    SHOWN_NAMES,
    CacheHint,
    Catalog,
    Item,
    Listing,
    ListMethod,
    is_tool_allowed,
    name_of_entry,
)
from mcpd.support.turns import Turns, in_turns
from mcpd.wire import message as wire

MAX_PAGES = 1000
MAX_LIST_BYTES = 16 * 1024 * 1024
"""Limits for one list over all its pages, as is MAX_ENTRIES. It is kept, and every client may fetch it."""
_MAX_CURSOR = 1024 * 1024
"""Bytes of the cursor of the next page, as JSON."""
_LARGE_PAGE = 2 * 1024 * 1024
"""Bytes of a page that is read in several turns."""
_MAX_WARNINGS = 10
"""Tools that are left out with a warning for each."""


async def fetch_catalog(
    upstream: Upstream, spec: ServerSpec, features: Sequence[str] = FEATURES, old: Catalog | None = None
) -> Catalog:
    """Fetch all pages of the lists of `features`; take the other lists from `old`.

    A list that the server refuses is empty and adds a warning. Raises LinkLost, and trio.TooSlowError
    when one list takes longer than `timeouts.list`.
    """
    found: dict[str, Listing] = {}
    hints = {} if old is None else {name: hint for name, hint in old.hints.items() if name not in features}
    warnings: list[str] = []
    dropped_tools = old.dropped_tools if old is not None else 0
    for kind in LIST_METHODS:
        if kind.feature not in features or not upstream.has(kind.feature):
            continue
        with trio.move_on_after(spec.timeouts.list) as waiting:
            pages: list[CacheHint] = []
            items, dropped = await _fetch_list(upstream, kind, warnings, pages)
        if waiting.cancelled_caught:
            raise trio.TooSlowError(f"{kind.method} took longer than {spec.timeouts.list:g} s")
        if kind.member == "tools":
            dropped_tools = dropped
            items = await _select_tools(upstream, spec, items, warnings)
        found[kind.field] = items
        if upstream.era == "modern" and pages:
            pages += [hints[kind.feature]] if kind.feature in hints else []
            hints[kind.feature] = _combine_hints(pages)
    base = old or Catalog()
    return Catalog(
        tools=found.get("tools", base.tools),
        resources=found.get("resources", base.resources),
        templates=found.get("templates", base.templates),
        prompts=found.get("prompts", base.prompts),
        fetched_at=rfc3339(time.time()),
        warnings=tuple(warnings),
        dropped_tools=dropped_tools,
        hints=hints,
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
    turns = Turns()
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
    return tuple(selected)


async def _fetch_list(
    upstream: Upstream, kind: ListMethod, warnings: list[str], pages: list[CacheHint]
) -> tuple[Listing, int]:
    items: dict[str, Item] = {}
    dropped, labels = 0, list[str]()
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    turns = Turns()
    for _ in range(MAX_PAGES):
        try:
            page = await upstream.request(kind.method, {} if cursor is None else {"cursor": cursor})
            size += len(page)
            if size > MAX_LIST_BYTES:
                text = f"is longer than {MAX_LIST_BYTES} bytes; stopped after {len(items)} entries"
                warnings.append(f"{kind.method} {text}")
                break
            is_large = len(page) > _LARGE_PAGE
            members = await in_turns(wire.members_in_steps(bytes(page))) if is_large else wire.members(page)
            await turns.pause()
            entries, too_many = wire.first_items(members.get(kind.member, Raw(b"[]")), MAX_ENTRIES)
            await turns.pause()
            cursor = _read_cursor(members)
        except UpstreamRefused as error:
            if error.upstream_code != -32601 or items:  # "method not found" means that there is no such list
                warnings.append(f"{kind.method} failed: {shorten(error.message, 300)}")
            break
        except (ProtocolViolation, *wire.DECODE_ERRORS) as error:
            warnings.append(f"{kind.method} returned an unusable result: {error}"[:300])
            break
        pages.append(_read_cache_hint(members))
        for entry in entries:
            await turns.pause()
            name = name_of_entry(entry, kind.key)
            if name is None or name in items:
                dropped += 1
                if dropped <= SHOWN_NAMES:
                    labels.append(_entry_label(entry, kind.key, len(items) + dropped))
            elif len(items) < MAX_ENTRIES:
                items[name] = Item(name, bytes(entry))
            else:
                too_many = True
                break
        if too_many:
            warnings.append(f"{kind.method} has more than {MAX_ENTRIES} entries; the others were left out")
            break
        if cursor is None:
            break
        if cursor in seen:  # the empty string is a valid cursor
            warnings.append(f"{kind.method} repeated a cursor; stopped after {len(items)} entries")
            break
        seen.add(cursor)
    else:
        warnings.append(f"{kind.method} has more than {MAX_PAGES} pages; stopped after {len(items)} entries")
    if dropped:
        names = ", ".join(labels) + (f" and {dropped - SHOWN_NAMES} more" if dropped > SHOWN_NAMES else "")
        warnings.append(f"{kind.method}: {dropped} unusable or duplicate entries left out: {names}")
    return tuple(items.values()), dropped


def _read_cursor(page: Mapping[str, Raw]) -> str | None:
    """Raises ProtocolViolation if it is too long, and one of DECODE_ERRORS."""
    raw = page.get("nextCursor", Raw(b"null"))
    if len(raw) > _MAX_CURSOR:
        raise ProtocolViolation(f"`nextCursor` has {len(raw)} bytes, and mcpd accepts at most {_MAX_CURSOR}")
    return msgspec.json.decode(raw, type=str | None)


def _entry_label(entry: Raw, key: str, position: int) -> str:
    """Return the name of an unusable entry, or its position in the list if it has none."""
    try:
        name = wire.members(entry)[key]
        if len(name) > MAX_NAME:
            return f"entry {position} (`{key}` has {len(name)} bytes, and mcpd accepts at most {MAX_NAME})"
        return shorten(msgspec.json.decode(name, type=str), 60) or f"entry {position}"
    except (KeyError, *wire.DECODE_ERRORS):
        return f"entry {position}"
