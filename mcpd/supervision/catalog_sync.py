"""Keeps the lists of one server as they are there: fetched, fetched again when they change, remembered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NoReturn

import trio

from mcpd.model.errors import McpdError
from mcpd.model.server_spec import ServerSpec
from mcpd.protocol.upstream_session import Upstream
from mcpd.state_file import StateFile
from mcpd.supervision import catalog as lists
from mcpd.supervision.catalog import Catalog

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
            self.catalog = lists.load_catalog(cached, spec)

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
        return await lists.fetch_catalog(upstream, self.spec)

    def replace(self, catalog: Catalog) -> None:
        """Put it in place of the one before, and tell."""
        changes = lists.describe_changes(self.catalog, catalog)
        self.catalog = catalog
        self.validators.clear()
        for feature, words in changes:
            self._on_change(feature, words)

    def save(self) -> None:
        """For the next start of the daemon: clients know what there is before the server has answered."""
        if self.catalog is not None:
            self._store.cache_lists(self._fingerprint, lists.dump_catalog(self.catalog))

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
                catalog = await lists.fetch_catalog(upstream, self.spec, stale, self.catalog)
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
