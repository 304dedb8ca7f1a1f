"""The lists that one server provides: fetching them, keeping them fresh, caching them."""

from __future__ import annotations

import difflib
import fnmatch
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NoReturn

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import McpdError, ProtocolViolation, UpstreamRefused
from mcpd.model.server_spec import ServerSpec
from mcpd.model.status import rfc3339
from mcpd.model.text import shorten
from mcpd.protocol.upstream_session import Upstream
from mcpd.state_file import StateFile
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

MAX_PAGES = 1000
_MAX_NAMES = 5
"""Entries that a difference names of each sort."""
_MAX_CANDIDATES, _MAX_COMPARED_LENGTH = 500, 100
"""Entries, and characters of a name, that one which does not exist is compared with: that takes its time
(up to 0.3 s with these), and the lists are the servers'."""


@attrs.frozen
class Item:
    """One entry of a list: the name (or URI) it is asked for by, and its own bytes."""

    name: str
    raw: bytes


Listing = tuple[Item, ...]


@attrs.frozen(kw_only=True)
class CacheHint:
    """What a server of 2026-07-28 says of a feature's lists: how long they are good, and for whom."""

    ttl: float
    """Seconds from `at` on; the least of all pages and of both lists of resources. 0: not at all."""
    received_at: float
    """When the first of these pages came (`trio.current_time()`)."""
    private: bool = True
    """Whether it is for who asked only, by the server's own words for any of the pages."""

    @property
    def fresh_until(self) -> float:
        return self.received_at + self.ttl


@attrs.frozen(kw_only=True)
class Catalog:
    """Complete lists, in the server's order, as of `fetched_at`."""

    tools: Listing = ()
    resources: Listing = ()
    templates: Listing = ()
    prompts: Listing = ()
    fetched_at: str = ""
    warnings: tuple[str, ...] = ()
    """What was wrong with an otherwise usable answer."""
    dropped_tools: int = 0
    hints: Mapping[str, CacheHint] = attrs.field(factory=dict, eq=False)
    """By feature; none of a server that speaks an older revision, which has no such hints."""

    def tool(self, name: str) -> Item | None:
        return next((tool for tool in self.tools if tool.name == name), None)


@attrs.frozen
class _ListMethod:
    method: str
    member: str
    key: str
    """The member that names an entry."""


_LIST_METHODS: Mapping[str, tuple[_ListMethod, ...]] = {
    "tools": (_ListMethod("tools/list", "tools", "name"),),
    "resources": (
        _ListMethod("resources/list", "resources", "uri"),
        _ListMethod("resources/templates/list", "resourceTemplates", "uriTemplate"),
    ),
    "prompts": (_ListMethod("prompts/list", "prompts", "name"),),
}
_FIELDS = {
    "tools": "tools",
    "resources": "resources",
    "resourceTemplates": "templates",
    "prompts": "prompts",
}
FEATURES = tuple(_LIST_METHODS)


async def fetch_catalog(
    upstream: Upstream, spec: ServerSpec, features: Sequence[str] = FEATURES, old: Catalog | None = None
) -> Catalog:
    """Fetch the lists of `features`, all pages; the others stay as they are in `old`.

    A list that the server refuses is empty and becomes a warning. Raises LinkLost, and
    trio.TooSlowError when one list takes longer than `timeouts.list`.
    """
    found: dict[str, Listing] = {}
    hints = {} if old is None else {name: hint for name, hint in old.hints.items() if name not in features}
    warnings: list[str] = []
    dropped_tools = old.dropped_tools if old is not None else 0
    for feature in features:
        if not upstream.has(feature):
            continue
        for kind in _LIST_METHODS[feature]:
            with trio.move_on_after(spec.timeouts.list) as waiting:
                pages: list[CacheHint] = []
                items, dropped = await _fetch_list(upstream, kind, warnings, pages)
            if waiting.cancelled_caught:
                raise trio.TooSlowError(f"{kind.method} took more than {spec.timeouts.list:g} s")
            if kind.member == "tools":
                dropped_tools = dropped
                items = _drop_inadmissible(upstream, items, warnings)
                items = tuple(item for item in items if is_tool_allowed(spec, item.name))
            found[_FIELDS[kind.member]] = items
            if upstream.era == "modern" and pages:
                hints[feature] = _combine_hints([*pages, *([hints[feature]] if feature in hints else [])])
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
    """Missing and senseless values mean: not to be kept, and for nobody else (digest 2.14, 8.4)."""
    try:
        ttl = msgspec.json.decode(page.get("ttlMs", b"0"), type=float) / 1000
        scope = msgspec.json.decode(page.get("cacheScope", b'""'), type=str)
    except msgspec.MsgspecError:
        ttl, scope = 0.0, ""
    return CacheHint(ttl=max(0.0, ttl), received_at=trio.current_time(), private=scope != "public")


def _drop_inadmissible(upstream: Upstream, tools: Listing, warnings: list[str]) -> Listing:
    """The tools that may be offered; the others become warnings."""
    if upstream.admit_tool is None:
        return tools
    admitted = []
    for tool in tools:
        wrong = upstream.admit_tool(tool.name, tool.raw)
        if wrong is None:
            admitted.append(tool)
        else:
            warnings.append(f"tool {shorten(tool.name, 60)} is left out: {wrong}")
    return tuple(admitted)


def did_you_mean(name: str, entries: Listing) -> str:
    """`did you mean …?`, of the entries whose names come near; empty without any."""
    names = [item.name for item in entries[:_MAX_CANDIDATES] if len(item.name) < _MAX_COMPARED_LENGTH]
    near = difflib.get_close_matches(name[:_MAX_COMPARED_LENGTH], names, n=2)
    return f"did you mean {' or '.join(near)}?" if near else ""


def is_tool_allowed(spec: ServerSpec, tool: str) -> bool:
    """Whether the definition's include and exclude lists let this tool through."""
    if spec.include_tools is not None and not _matches(tool, spec.include_tools):
        return False
    return not _matches(tool, spec.exclude_tools)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


async def _fetch_list(
    upstream: Upstream, kind: _ListMethod, warnings: list[str], pages: list[CacheHint]
) -> tuple[Listing, int]:
    items: dict[str, Item] = {}
    dropped = 0
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        try:
            page = await upstream.request(kind.method, {} if cursor is None else {"cursor": cursor})
            members = wire.members(page)
            entries = msgspec.json.decode(members.get(kind.member, Raw(b"[]")), type=list[Raw])
            cursor = msgspec.json.decode(members.get("nextCursor", Raw(b"null")), type=str | None)
        except UpstreamRefused as error:
            if error.upstream_code != -32601 or items:  # "no such method" is how optional lists say: none
                warnings.append(f"{kind.method} failed: {error.message}")
            break
        except (ProtocolViolation, BadFrame, msgspec.MsgspecError, RecursionError) as error:
            warnings.append(f"{kind.method} gave something unusable: {error}"[:300])
            break
        pages.append(_read_cache_hint(members))
        for entry in entries:
            name = _name_of(entry, kind.key)
            if name is None or name in items:
                dropped += 1
            else:
                items[name] = Item(name, bytes(entry))
        if cursor is None:
            break
        if cursor in seen:  # the empty string is a cursor like any other
            warnings.append(f"{kind.method} repeats a cursor; stopped after {len(items)} entries")
            break
        seen.add(cursor)
    else:
        warnings.append(f"{kind.method} has more than {MAX_PAGES} pages; stopped after {len(items)} entries")
    if dropped:
        warnings.append(f"{kind.method}: {dropped} unusable or repeated entries left out")
    return tuple(items.values()), dropped


def _name_of(entry: Raw, key: str) -> str | None:
    try:
        members = wire.members(entry)
        name = msgspec.json.decode(members[key], type=str)
        if key == "name" and "inputSchema" in members:
            msgspec.json.decode(members["inputSchema"], type=dict[str, Raw])
    except (BadFrame, KeyError, msgspec.MsgspecError, RecursionError):
        return None
    return name or None


def describe_changes(old: Catalog | None, new: Catalog) -> list[tuple[str, str]]:
    """Per feature that changed, a few words: `("tools", "+1 -1 ~0: +echo -ping")`; no names at first."""
    before = old or Catalog()
    told = []
    for feature, fields in (
        ("tools", ("tools",)),
        ("resources", ("resources", "templates")),
        ("prompts", ("prompts",)),
    ):
        was = {item.name: item.raw for field in fields for item in getattr(before, field)}
        now = {item.name: item.raw for field in fields for item in getattr(new, field)}
        added = [name for name in now if name not in was]
        removed = [name for name in was if name not in now]
        changed = [name for name in now if name in was and was[name] != now[name]]
        if added or removed or changed:
            counts = f"+{len(added)} -{len(removed)} ~{len(changed)}"
            signed = [*_name_list("+", added), *_name_list("-", removed), *_name_list("~", changed)]
            told.append((feature, counts if old is None else f"{counts}: {' '.join(signed)}"))
    return told


def _name_list(sign: str, names: list[str]) -> list[str]:
    """The first of them, and how many more."""
    told = [sign + shorten(name, 60) for name in names[:_MAX_NAMES]]
    return [*told, f"{sign}…{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else told


def dump_catalog(catalog: Catalog) -> bytes:
    """For the cache: what is known of a server before it has been asked."""
    lists = {
        field: [Raw(item.raw) for item in getattr(catalog, field)]
        for field in ("tools", "resources", "templates", "prompts")
    }
    return msgspec.json.encode({**lists, "fetched_at": catalog.fetched_at})


def load_catalog(data: bytes, spec: ServerSpec) -> Catalog | None:
    """What `dump` wrote, as far as the definition's filters of today let it through.

    None for anything else (a cache is dropped, never repaired).
    """
    try:
        members = wire.members(data)
        fetched_at = msgspec.json.decode(members["fetched_at"], type=str)
        return Catalog(
            tools=tuple(i for i in _load_list(members["tools"], "name") if is_tool_allowed(spec, i.name)),
            resources=_load_list(members["resources"], "uri"),
            templates=_load_list(members["templates"], "uriTemplate"),
            prompts=_load_list(members["prompts"], "name"),
            fetched_at=fetched_at,
        )
    except (BadFrame, KeyError, msgspec.MsgspecError, RecursionError):
        return None


def _load_list(data: Raw, key: str) -> Listing:
    named = [(_name_of(raw, key), raw) for raw in msgspec.json.decode(data, type=list[Raw])]
    return tuple(Item(name, bytes(raw)) for name, raw in named if name is not None)


log = logging.getLogger("mcpd.server")

_MIN_REFRESH_INTERVAL = 0.5


class CatalogSync:
    """The catalog of one server, across its connections.

    `changed` is called with a feature and a few words for each list that is another than before, once
    the new catalog is in place.
    """

    def __init__(
        self, spec: ServerSpec, store: StateFile, fingerprint: str, changed: Callable[[str, str], None]
    ) -> None:
        self.spec = spec
        self.catalog: Catalog | None = None
        self.validators: dict[str, object] = {}
        """Compiled schemas of its tools, by tool; emptied whenever the lists change."""
        self._store = store
        self._fingerprint = fingerprint
        self._on_change = changed
        self._stale_features: set[str] = set()
        self._stale_event = trio.Event()
        self._refresh_waiters: dict[trio.Event, str] = {}
        """Who waits for a list to be fetched after they said so."""
        self._announced_features: Collection[str] = ()
        """Of the connection: the lists whose changes we are told of."""
        if (cached := store.cached_lists(fingerprint)) is not None:
            self.catalog = load_catalog(cached, spec)

    def mark_stale(self, feature: str) -> None:
        """It is no longer what it was: `keep_fresh` fetches it again, if it runs."""
        self._stale_features.add(feature)
        self._stale_event.set()

    async def refresh(self, feature: str) -> None:
        """Until that list has been fetched anew, or could not be: then the old one stays.

        Takes a connection that lasts; the caller bounds the wait.
        """
        done = trio.Event()
        self._refresh_waiters[done] = feature
        self.mark_stale(feature)
        try:
            await done.wait()
        finally:
            self._refresh_waiters.pop(done, None)

    @property
    def expired_features(self) -> Sequence[str]:
        """The features whose lists have outlived what the server said of them.

        That is the server's word for lists whose changes it does not tell (digest 2.14): as long as it
        does tell, a list is good until then. Nothing is fetched on account of time alone, but by `use`.
        """
        if self.catalog is None or not self.catalog.hints:
            return ()
        now = trio.current_time()
        return [
            feature
            for feature, hint in self.catalog.hints.items()
            if now >= max(hint.fresh_until, hint.received_at + _MIN_REFRESH_INTERVAL)
            and feature not in self._announced_features
        ]

    async def refresh_expired(self) -> None:
        """Before the lists are used: fetch again what has expired. What cannot be had stays as it is."""
        with trio.move_on_after(self.spec.timeouts.list):
            async with trio.open_nursery() as nursery:
                for feature in self.expired_features:
                    nursery.start_soon(self.refresh, feature)

    async def fetch(self, upstream: Upstream) -> Catalog:
        """All lists of a new connection; nothing is in place yet (`take`). Raises as `catalog.fetch`."""
        self._stale_features.clear()
        self._announced_features = upstream.announces_changes
        return await fetch_catalog(upstream, self.spec)

    def replace(self, catalog: Catalog) -> None:
        """Put it in place of the one before, and tell."""
        changes = describe_changes(self.catalog, catalog)
        self.catalog = catalog
        self.validators.clear()
        for feature, words in changes:
            self._on_change(feature, words)

    def save(self) -> None:
        """For the next start of the daemon: clients know what there is before the server has answered."""
        if self.catalog is not None:
            self._store.cache_lists(self._fingerprint, dump_catalog(self.catalog))

    async def keep_fresh(self, upstream: Upstream) -> None:
        """Fetch what has been marked stale, until cancelled. Raises when the link has ended."""
        try:
            await self._keep_fresh(upstream)
        finally:
            _set_all(self._refresh_waiters)  # nobody fetches anything any more

    async def _keep_fresh(self, upstream: Upstream) -> NoReturn:
        while True:
            await self._stale_event.wait()
            self._stale_event = trio.Event()
            stale, self._stale_features = sorted(self._stale_features), set()
            served = [done for done, feature in self._refresh_waiters.items() if feature in stale]
            try:
                catalog = await fetch_catalog(upstream, self.spec, stale, self.catalog)
            except (trio.TooSlowError, McpdError) as error:
                if upstream.link.end_error is not None:
                    raise
                # Busy with calls, perhaps, or asked too often: no reason to end them. Whether it lives,
                # others watch.
                log.debug("%s: its lists could not be fetched again: %s", self.spec.name, error)
                _set_all(served)
                await trio.sleep(self.spec.timeouts.list)
                for feature in stale:
                    self.mark_stale(feature)
                continue
            self.replace(catalog)
            _set_all(served)
            self.save()
            await trio.sleep(_MIN_REFRESH_INTERVAL)  # a storm of changes becomes one listing each time


def _set_all(served: Iterable[trio.Event]) -> None:
    for done in served:
        done.set()
