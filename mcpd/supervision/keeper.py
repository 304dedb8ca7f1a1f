"""Keeps the lists of one server as they are there: fetched, fetched again when they change, remembered."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from mcpd.eras.base import Upstream
from mcpd.model.errors import LinkLost, Overloaded
from mcpd.model.spec import ServerSpec
from mcpd.store import Store
from mcpd.supervision import catalog as lists
from mcpd.supervision.catalog import Catalog

log = logging.getLogger("mcpd.server")

_RELIST_AT_MOST_EVERY = 0.5


class ListKeeper:
    """The catalog of one server, across its connections.

    `changed` is called with a feature and a few words for each list that is another than before, once
    the new catalog is in place.
    """

    def __init__(
        self, spec: ServerSpec, store: Store, fingerprint: str, changed: Callable[[str, str], None]
    ) -> None:
        self.spec = spec
        self.catalog: Catalog | None = None
        self.validators: dict[str, object] = {}
        """Compiled schemas of its tools, by tool; emptied whenever the lists change."""
        self._store = store
        self._fingerprint = fingerprint
        self._changed = changed
        self._stale: set[str] = set()
        self._is_stale = trio.Event()
        if spec.lazy and (cached := store.cached_lists(fingerprint)) is not None:
            self.catalog = lists.load(cached)

    def mark_stale(self, feature: str) -> None:
        """It is no longer what it was: `keep_fresh` fetches it again, if it runs."""
        self._stale.add(feature)
        self._is_stale.set()

    async def fetch(self, upstream: Upstream) -> Catalog:
        """All lists of a new connection; nothing is in place yet (`take`). Raises as `catalog.fetch`."""
        self._stale.clear()
        return await lists.fetch(upstream, self.spec)

    def take(self, catalog: Catalog) -> None:
        """Put it in place of the one before, and tell."""
        changes = lists.differences(self.catalog, catalog)
        self.catalog = catalog
        self.validators.clear()
        for feature, words in changes:
            self._changed(feature, words)

    async def remember(self) -> None:
        """For the next start of a lazy server."""
        if self.spec.lazy and self.catalog is not None:
            await self._store.cache_lists(self._fingerprint, lists.dump(self.catalog))

    async def keep_fresh(self, upstream: Upstream) -> None:
        """Fetch what has been marked stale, until cancelled. Raises when the link has ended."""
        while True:
            await self._is_stale.wait()
            self._is_stale = trio.Event()
            stale, self._stale = sorted(self._stale), set()
            try:
                catalog = await lists.fetch(upstream, self.spec, stale, self.catalog)
            except (trio.TooSlowError, Overloaded, LinkLost) as error:
                if upstream.link.ended is not None:
                    raise
                # Busy with calls, perhaps: no reason to end them. Whether it lives, others watch.
                log.debug("%s: its lists could not be fetched again: %s", self.spec.name, error)
                await trio.sleep(self.spec.timeouts.list)
                for feature in stale:
                    self.mark_stale(feature)
                continue
            self.take(catalog)
            await self.remember()
            await trio.sleep(_RELIST_AT_MOST_EVERY)  # a storm of changes becomes one listing each time
