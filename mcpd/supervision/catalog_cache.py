"""Keeps a server's lists up to date, and cached on disk, so that clients get them before the server is up."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.model.server_spec import ServerSpec
from mcpd.persistent_state import StateFile
from mcpd.protocol.upstream_session import Upstream
from mcpd.supervision.catalog import (
    LIST_METHODS,
    MAX_ENTRIES,
    Catalog,
    Item,
    Listing,
    describe_changes,
    is_tool_allowed,
    name_of_entry,
)
from mcpd.supervision.catalog_fetch import fetch_catalog
from mcpd.supervision.undeclared_lists import find_undeclared_lists
from mcpd.wire import message as wire

log = logging.getLogger("mcpd.server")
_MIN_REFRESH_INTERVAL = 0.5
"""Seconds between fetches of the same list."""
_CHECKSUM = b'{"crc32":"'
_HEAD_SIZE = len(_CHECKSUM) + len('01234567",')


class CatalogSync:
    """Keeps one server's catalog up to date, across its connections.

    `on_change` is called with the feature and a summary for each changed list, after `catalog` was set. It is
    called with an empty summary if a list that the server announced as changed turned out not to be.
    """

    def __init__(
        self, spec: ServerSpec, store: StateFile, fingerprint: str, on_change: Callable[[str, str], None]
    ) -> None:
        self.spec = spec
        self.catalog: Catalog | None = None
        self.routes: dict[tuple[object, str, str | bytes], Any] = {}
        """See `calls.routes`; cleared when the lists change."""
        self._store = store
        self._fingerprint = fingerprint
        self._on_change = on_change
        self._stale_features: set[str] = set()
        self._stale_event = trio.Event()
        self._announced_changes: set[str] = set()
        """The stale features that the server itself has announced as changed."""
        self._refresh_waiters: dict[trio.Event, str] = {}
        """The features whose fetch each event waits for."""
        self._announced_features: Collection[str] = ()
        """The features whose changes the current connection announces."""
        self._may_ask_undeclared = True
        """Whether a server without declared lists survives being asked for them."""
        if (cached := store.cached_lists(fingerprint)) is not None:
            self.catalog = load_catalog(cached, spec)
            if self.catalog is None:
                log.warning(
                    "%s: ignoring the cached tool list %s: it is damaged, or another version wrote it",
                    spec.name,
                    store.cached_lists_path(fingerprint),
                )

    def close(self) -> None:
        """Report no further changes, so that this no longer refers to who created it."""
        self._on_change = lambda feature, summary: None

    def mark_stale(self, feature: str) -> None:
        """Have `keep_fresh` fetch this feature's lists again, if it is running."""
        self._stale_features.add(feature)
        self._stale_event.set()

    def note_announcement(self, feature: str) -> None:
        """The server has announced that this feature's lists have changed. Call `mark_stale` next."""
        self._announced_changes.add(feature)

    async def refresh(self, feature: str) -> None:
        """Wait until this feature's lists have been fetched again, or have failed to: then the old ones stay.

        Requires a running `keep_fresh`; the caller bounds the wait.
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
        """The features whose lists have outlived the server's TTL and whose changes it does not announce.

        Nothing is fetched because of time alone, only by `refresh_expired`.
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
        """Fetch expired lists before they are used. A list that cannot be fetched stays as it is."""
        with trio.move_on_after(self.spec.timeouts.list):
            async with trio.open_nursery() as nursery:
                for feature in self.expired_features:
                    nursery.start_soon(self.refresh, feature)

    async def fetch(self, upstream: Upstream) -> Catalog:
        """Fetch all lists of a new connection without replacing the catalog. Raises as `fetch_catalog`."""
        self._stale_features.clear()
        self._announced_changes.clear()
        if self._may_ask_undeclared:
            try:
                await find_undeclared_lists(upstream)
            finally:
                self._may_ask_undeclared = upstream.link.end_error is None
        self._announced_features = upstream.announces_changes
        return await fetch_catalog(upstream, self.spec)

    def replace(self, catalog: Catalog, announced: Iterable[str] = ()) -> None:
        """Replace the catalog, and report the differences and the changes that the server `announced`."""
        changes = {**dict.fromkeys(announced, ""), **dict(describe_changes(self.catalog, catalog))}
        self.catalog = catalog
        self.routes.clear()
        for feature, summary in changes.items():
            self._on_change(feature, summary)

    def save(self) -> None:
        """Cache the lists: clients see them after a restart of the daemon, before the server is up."""
        if self.catalog is not None:
            self._store.cache_lists(self._fingerprint, dump_catalog(self.catalog))

    async def keep_fresh(self, upstream: Upstream) -> None:
        """Fetch lists that were marked stale, until cancelled. Raises when the channel has ended."""
        try:
            await self._keep_fresh(upstream)
        finally:
            _set_all(self._refresh_waiters)  # nothing is fetched from here on

    async def _keep_fresh(self, upstream: Upstream) -> NoReturn:
        while True:
            await self._stale_event.wait()
            self._stale_event = trio.Event()
            stale, self._stale_features = sorted(self._stale_features), set()
            announced, self._announced_changes = self._announced_changes, set()
            served = [done for done, feature in self._refresh_waiters.items() if feature in stale]
            try:
                catalog = await fetch_catalog(upstream, self.spec, stale, self.catalog)
            except (trio.TooSlowError, McpdError) as error:
                if upstream.link.end_error is not None:
                    raise
                # The server may be busy or rate-limited, which is no reason to fail its calls.
                log.debug("%s: could not refresh the lists: %s", self.spec.name, error)
                _set_all(served)
                self._announced_changes |= announced
                await trio.sleep(self.spec.timeouts.list)
                for feature in stale:
                    self.mark_stale(feature)
                continue
            self.replace(catalog, sorted(announced))
            _set_all(served)
            self.save()
            await trio.sleep(_MIN_REFRESH_INTERVAL)  # combine bursts of changes


def _set_all(served: Iterable[trio.Event]) -> None:
    for done in served:
        done.set()


def dump_catalog(catalog: Catalog) -> bytes:
    """Serialize the lists for the cache, which serves clients before the server has started.

    The first member is a checksum of everything after it.
    """
    fields = [kind.field for kind in LIST_METHODS]
    lists = {field: [Raw(item.raw) for item in getattr(catalog, field)] for field in fields}
    body = msgspec.json.encode({**lists, "fetched_at": catalog.fetched_at})[1:]
    return b'%b%08x",%b' % (_CHECKSUM, zlib.crc32(body), body)


def load_catalog(data: bytes, spec: ServerSpec) -> Catalog | None:
    """Read what `dump_catalog` wrote and apply the definition's current tool filters.

    Returns None for anything else, because clients would get damaged bytes otherwise.
    """
    body = data[_HEAD_SIZE:]
    if data[:_HEAD_SIZE] != b'%b%08x",' % (_CHECKSUM, zlib.crc32(body)):
        return None
    try:
        members = wire.members(data)
        return Catalog(
            tools=tuple(i for i in _load_list(members["tools"], "name") if is_tool_allowed(spec, i.name)),
            resources=_load_list(members["resources"], "uri"),
            templates=_load_list(members["templates"], "uriTemplate"),
            prompts=_load_list(members["prompts"], "name"),
            fetched_at=msgspec.json.decode(members["fetched_at"], type=str),
        )
    except (KeyError, *wire.DECODE_ERRORS):
        return None


def _load_list(data: Raw, key: str) -> Listing:
    named = [(name_of_entry(raw, key), raw) for raw in wire.first_items(data, MAX_ENTRIES)[0]]
    return tuple(Item(name, bytes(raw)) for name, raw in named if name is not None)
