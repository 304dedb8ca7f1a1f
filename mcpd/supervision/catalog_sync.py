"""Fetches a server's lists, keeps them up to date, and caches them on disk for clients that come earlier."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NoReturn

import attrs
import msgspec
import trio
from msgspec import Raw

from mcpd.model.errors import McpdError
from mcpd.model.server_spec import ServerSpec
from mcpd.model.steps import run_steps
from mcpd.protocol.upstream_session import FEATURES, Upstream
from mcpd.state.state_file import StateFile
from mcpd.supervision.attachments import Attachments
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
from mcpd.supervision.catalog_fetch import fetch_catalog, find_undeclared_lists
from mcpd.supervision.tool_overrides import change_tools
from mcpd.wire import message as wire

log = logging.getLogger("mcpd.server")
_MIN_REFRESH_INTERVAL = 0.5
"""Seconds between fetches of the same list."""
_MAX_AGE = 60.0
"""Seconds after which a list that has no TTL, and whose changes are not announced, is fetched again when it
is used: without mcpd, every session would fetch it."""
_AGED_LIST_TIMEOUT = 0.5
"""Seconds that clients wait for such a list. A longer fetch continues, and changes are announced."""
_DOUBT_AFTER = 1.0
"""Seconds after which a list is fetched again because something is missing in it."""
_RETRY_AFTER, _MAX_RETRY_PAUSE = 1.0, 60.0
"""Seconds until a list that could not be fetched is fetched again: the first pause, which doubles, and the
longest."""
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
        self.attachments = Attachments()
        """What others keep as long as the lists do not change."""
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
        self._fetched_at: dict[str, float] = {}
        """When each feature's lists were last fetched on this connection (`trio.current_time()`)."""
        self._may_ask_undeclared = True
        """Whether a server without declared lists survives being asked for them."""
        if (cached := store.lists.read(fingerprint)) is not None:
            self.catalog = load_catalog(cached, spec)
            if self.catalog is None:
                log.warning(
                    "%s: ignoring the cached tool list %s: it is damaged, or another version wrote it",
                    spec.name,
                    store.lists.path(fingerprint),
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
        """The features whose lists have outlived the server's TTL, or are old and have none, and whose
        changes it does not announce.

        Nothing is fetched because of time alone, only by `refresh_expired`.
        """
        if self.catalog is None:
            return ()
        now, hints = trio.current_time(), self.catalog.hints
        expired = []
        for feature, fetched_at in self._fetched_at.items():
            if feature not in self._announced_features:
                hint = hints.get(feature)
                fresh_until = fetched_at + _MAX_AGE if hint is None else hint.fresh_until
                if now >= max(fresh_until, fetched_at + _MIN_REFRESH_INTERVAL):
                    expired.append(feature)
        return expired

    async def refresh_expired(self) -> None:
        """Fetch expired lists before they are used. A list that cannot be fetched stays as it is."""
        expired = self.expired_features
        has_ttl = self.catalog is not None and any(feature in self.catalog.hints for feature in expired)
        with trio.move_on_after(self.spec.timeouts.list if has_ttl else _AGED_LIST_TIMEOUT):
            async with trio.open_nursery() as nursery:
                for feature in expired:
                    nursery.start_soon(self.refresh, feature)

    def is_doubtful(self, feature: str) -> bool:
        """Whether a list in which something is missing may have changed since it was fetched."""
        fetched_at = self._fetched_at.get(feature)
        return fetched_at is not None and trio.current_time() >= fetched_at + _DOUBT_AFTER

    @property
    def problem(self) -> str:
        """Why lists are not up to date; empty if they are, or if the server is busy."""
        return "" if self.catalog is None else next(filter(None, self.catalog.failed.values()), "")

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
        catalog = await fetch_catalog(upstream, self.spec, FEATURES, self.catalog)
        self._log_failure(catalog.failed)
        now = trio.current_time()
        self._fetched_at = {feature: now for feature in FEATURES if upstream.has(feature)}
        return catalog

    def resume(self, upstream: Upstream, lists: bytes) -> Catalog:
        """Return the lists of a connection that goes on, as the version before this one dumped them. They are
        fetched again soon."""
        self._announced_features = upstream.announces_changes
        now = trio.current_time()
        self._fetched_at = {feature: now for feature in FEATURES if upstream.has(feature)}
        for feature in self._fetched_at:
            self.mark_stale(feature)
        return load_catalog(lists, self.spec) or self.catalog or Catalog()

    def replace(self, catalog: Catalog, announced: Iterable[str] = ()) -> None:
        """Replace the catalog, and report the differences and the changes that the server `announced`."""
        changes = {**dict.fromkeys(announced, ""), **dict(describe_changes(self.catalog, catalog))}
        self.catalog = catalog
        self.attachments.clear()
        for feature, summary in changes.items():
            self._on_change(feature, summary)

    def save(self) -> None:
        """Cache the lists: clients see them after a restart of the daemon, before the server is up."""
        if self.catalog is not None:
            self._store.lists.keep(self._fingerprint, dump_catalog(self.catalog))

    async def keep_fresh(self, upstream: Upstream) -> None:
        """Fetch lists that were marked stale, until cancelled. Raises when the channel has ended."""
        try:
            await self._keep_fresh(upstream)
        finally:
            _set_all(self._refresh_waiters)  # nothing is fetched from here on

    async def _keep_fresh(self, upstream: Upstream) -> NoReturn:
        pause = _RETRY_AFTER
        while True:
            failed = () if self.catalog is None else self.catalog.failed
            if not failed:
                pause = _RETRY_AFTER
            with trio.move_on_after(pause if failed else math.inf) as waiting:
                await self._stale_event.wait()
            if waiting.cancelled_caught:
                self._stale_features.update(failed)
                pause = min(2 * pause, _MAX_RETRY_PAUSE)
            self._stale_event = trio.Event()
            stale, self._stale_features = sorted(self._stale_features), set()
            announced, self._announced_changes = self._announced_changes, set()
            served = [done for done, feature in self._refresh_waiters.items() if feature in stale]
            try:
                catalog = await fetch_catalog(upstream, self.spec, stale, self.catalog)
            except (trio.TooSlowError, McpdError) as error:
                if upstream.link.end_error is not None:
                    raise
                # That is no reason to fail its calls. While it works on one, it may not answer anything else.
                problem = f"its lists could not be fetched: {str(error).removeprefix(f'{self.spec.name}: ')}"
                is_busy = isinstance(error, trio.TooSlowError) and upstream.link.requests.is_busy
                failed = dict.fromkeys(stale, "" if is_busy else problem)
                self._log_failure(failed)
                known = self.catalog or Catalog()
                self.catalog = attrs.evolve(known, failed={**known.failed, **failed})
                self._announced_changes |= announced
            else:
                self._announced_changes |= announced & catalog.failed.keys()
                self._log_failure(catalog.failed)
                self.replace(catalog, sorted(announced - catalog.failed.keys()))
                self.save()
            now = trio.current_time()
            self._fetched_at.update({feature: now for feature in stale if feature in self._fetched_at})
            _set_all(served)
            await trio.sleep(_MIN_REFRESH_INTERVAL)  # combine bursts of changes

    def _log_failure(self, failed: Mapping[str, str]) -> None:
        """Log that lists could not be fetched, the first time in a row. They are fetched again."""
        problem = next(filter(None, failed.values()), "")
        if problem and not self.problem:
            log.warning("%s: %s; its last list is used", self.spec.name, problem)


def _set_all(served: Iterable[trio.Event]) -> None:
    for done in served:
        done.set()


def dump_catalog(catalog: Catalog) -> bytes:
    """Serialize the lists for the cache, which serves clients before the server has started.

    The first member is a checksum of everything after it.
    """
    fields = [kind.field for kind in LIST_METHODS]
    lists = {
        field: [Raw((item.original or item).raw) for item in getattr(catalog, field)] for field in fields
    }
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
        allowed = (i for i in _load_list(members["tools"], "name") if is_tool_allowed(spec, i.name))
        return Catalog(
            tools=run_steps(change_tools(spec, tuple(allowed), [])),
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
