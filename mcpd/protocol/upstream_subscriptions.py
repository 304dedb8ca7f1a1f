"""What clients want a server to notify them of. Kept across its connections.

Clients set their interests synchronously. The protocol layer compares them with what the server was told and
sends the difference; a new connection starts from nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import trio

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels, the most verbose first."""
_SUBSCRIBED = ""


class NotificationInterests:
    """The interests of any number of holders in one server; any object can be a holder.

    The server gets the union: every resource that somebody subscribes to, and the most verbose log level.
    Nothing here starts a server or waits for one.
    """

    def __init__(self) -> None:
        self.changed = trio.Event()
        """Set, and replaced by a new event, whenever `resources` or `log_level` may have changed."""
        self._followed_by: dict[object, frozenset[str]] = {}
        self._followers: Counter[str] = Counter()
        """How many holders each wanted resource has."""
        self._resources: frozenset[str] | None = frozenset()
        """See `resources`; None if it must be determined again."""
        self._levels: dict[object, str] = {}
        self._results: dict[str, str] = {}
        self._subscribed_before: set[str] = set()
        """Current resources whose subscription was confirmed before, on this or an earlier connection."""
        self._waiters: dict[str, trio.Event] = {}

    @property
    def resources(self) -> frozenset[str]:
        """The resources that anybody subscribes to."""
        if self._resources is None:
            self._resources = frozenset(self._followers)
        return self._resources

    def follow_resources(self, holder: object, uris: Iterable[str]) -> None:
        """Set the resources that this holder wants `notifications/resources/updated` for.

        After a lost connection, one notification is reported for each resource, because changes may have
        been missed.
        """
        before, now = self._followed_by.get(holder, frozenset()), frozenset(uris)
        if now:
            self._followed_by[holder] = now
        else:
            self._followed_by.pop(holder, None)
        for uri in now - before:
            self._followers[uri] += 1
            if self._results.get(uri):  # refused before, but the server may have changed its mind
                del self._results[uri]
        for uri in before - now:
            self._followers[uri] -= 1
            if not self._followers[uri]:
                del self._followers[uri]
                self._results.pop(uri, None)
                self._subscribed_before.discard(uri)
        self._resources = None
        self._notify_changed()

    def set_log_level(self, holder: object, level: str | None) -> None:
        """Set the least severe log level that this holder wants; None for no preference.

        A legacy server keeps a level until another one is set: the protocol cannot unset it. Raises
        ValueError for an unknown level.
        """
        if level is None:
            self._levels.pop(holder, None)
        elif level in LEVELS:
            self._levels[holder] = level
        else:
            raise ValueError(level)
        self._notify_changed()

    def forget(self, holder: object) -> None:
        """Remove all interests of this holder."""
        self._levels.pop(holder, None)
        self.follow_resources(holder, ())

    def subscribe_result(self, uri: str) -> str | None:
        """Return "" if the server confirmed the subscription, the reason if it refused, else None."""
        return self._results.get(uri)

    async def wait_subscribed(self, uri: str) -> str:
        """Wait for `subscribe_result`. The caller must bound the wait: it takes a connection."""
        while (outcome := self._results.get(uri)) is None:
            decided = self._waiters.setdefault(uri, trio.Event())
            try:
                await decided.wait()
            finally:
                if not decided.is_set() and not decided.statistics().tasks_waiting:
                    self._waiters.pop(uri, None)
        return outcome

    @property
    def log_level(self) -> str | None:
        return min(self._levels.values(), key=LEVELS.index, default=None)

    def confirm(self, uri: str) -> bool:
        """The server confirmed. Returns whether it had done so on an earlier connection."""
        if uri not in self._followers:
            return False
        self._set_result(uri, _SUBSCRIBED)
        was_confirmed = uri in self._subscribed_before
        self._subscribed_before.add(uri)
        return was_confirmed

    def reject(self, uri: str, why: str) -> None:
        """The server has refused the subscription; `why` is shown to users."""
        if uri in self._followers:
            self._set_result(uri, why)

    def on_disconnected(self) -> None:
        """The connection has ended: forget what was confirmed or refused."""
        self._results.clear()

    def _set_result(self, uri: str, outcome: str) -> None:
        self._results[uri] = outcome
        if (decided := self._waiters.pop(uri, None)) is not None:
            decided.set()

    def _notify_changed(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()
