"""What clients want to hear of a server beside its answers: a level, held across its connections.

Clients say what they want, synchronously; the era that is spoken compares with what the server was
told, and acts. A new connection finds the same interests and fulfils them again.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of log messages, the most talkative first."""
_SUBSCRIBED = ""


class NotificationInterests:
    """The interests of any number of holders for one server, each holder by an object of its own.

    What the server does is the union: every resource that somebody follows, and the most talkative
    log level. Nothing here starts a server that sleeps, or waits for one (see `ManagedServer.demand`).
    """

    def __init__(self) -> None:
        self.changed = trio.Event()
        """Set, and replaced by another, whenever `resources` or `log_level` may have changed."""
        self.resources: frozenset[str] = frozenset()
        """What anybody follows; for who fulfils it."""
        self._followed_by: dict[object, frozenset[str]] = {}
        self._levels: dict[object, str] = {}
        self._results: dict[str, str] = {}
        self._subscribed_before: set[str] = set()
        """Resources that were followed at some time, by the same wish."""
        self._result_changed = trio.Event()

    # ── for who is interested ───────────────────────────────────────────────────────────────────

    def follow_resources(self, holder: object, uris: Iterable[str]) -> None:
        """Be told when one of these changes, and of no others any more, as far as this holder goes.

        `notifications/resources/updated` then comes for them; once more for each after a connection
        was lost, since nobody knows what happened meanwhile.
        """
        before, now = self._followed_by.get(holder, frozenset()), frozenset(uris)
        if now:
            self._followed_by[holder] = now
        else:
            self._followed_by.pop(holder, None)
        for uri in now - before:
            if self._results.get(uri):  # refused once; whoever asks anew may find it changed its mind
                del self._results[uri]
        self._recompute()

    def set_log_level(self, holder: object, level: str | None) -> None:
        """Be told of log messages from this level on; None: this holder has no wish.

        A level once set stays the server's, where it is kept there (before 2026-07-28), until another
        is wished for: there is no message to take it back. Raises ValueError for an unknown level.
        """
        if level is None:
            self._levels.pop(holder, None)
        elif level in LEVELS:
            self._levels[holder] = level
        else:
            raise ValueError(level)
        self._recompute()

    def forget(self, holder: object) -> None:
        """This holder is gone."""
        self._followed_by.pop(holder, None)
        self._levels.pop(holder, None)
        self._recompute()

    def subscribe_result(self, uri: str) -> str | None:
        """ "" when the server has agreed to tell of this resource; why it does not; None: not known yet."""
        return self._results.get(uri)

    async def wait_subscribed(self, uri: str) -> str:
        """`outcome`, once it is known: the caller bounds that, for it takes a connection."""
        while (outcome := self._results.get(uri)) is None:
            await self._result_changed.wait()
        return outcome

    # ── for who fulfils ─────────────────────────────────────────────────────────────────────────

    @property
    def log_level(self) -> str | None:
        return min(self._levels.values(), key=LEVELS.index, default=None)

    def confirm(self, uri: str) -> bool:
        """The server tells of this resource from now on. Whether it did so before and then did not."""
        if uri not in self.resources:
            return False
        self._set_result(uri, _SUBSCRIBED)
        again = uri in self._subscribed_before
        self._subscribed_before.add(uri)
        return again

    def reject(self, uri: str, why: str) -> None:
        """The server does not; `why` is for a person."""
        if uri in self.resources:
            self._set_result(uri, why)

    def on_disconnected(self) -> None:
        """The connection is over: what it agreed to or refused says nothing of the next."""
        self._results.clear()

    def _set_result(self, uri: str, outcome: str) -> None:
        self._results[uri] = outcome
        news, self._result_changed = self._result_changed, trio.Event()
        news.set()

    def _recompute(self) -> None:
        wanted = self.resources = frozenset[str]().union(*self._followed_by.values())
        self._subscribed_before &= wanted
        self._results = {uri: words for uri, words in self._results.items() if uri in wanted}
        changed, self.changed = self.changed, trio.Event()
        changed.set()
