"""Desktop notifications that are limited in number, because one event may have many causes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import trio

from mcpd.support.desktop_notification import show_notification


class LimitedNotifications:
    """`min_interval`: seconds between two notifications about the same subject. `is_enabled`: whether the
    user wants them. `start` must run a task that outlives whatever caused the notification.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        is_enabled: Callable[[], bool],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        min_interval: float,
    ) -> None:
        self._environ = environ
        self._is_enabled = is_enabled
        self._start = start
        self._min_interval = min_interval
        self._last: dict[str, float] = {}
        """By subject (`trio.current_time()`)."""

    def show(self, title: str, text: str, subjects: Collection[str] = ("",)) -> None:
        """Show a notification unless there was one about each of its subjects lately. Returns immediately.

        Neither text may contain a secret.
        """
        now, interval = trio.current_time(), self._min_interval
        if all(now - self._last.get(each, -interval) < interval for each in subjects):
            return
        if not self._is_enabled():
            return
        self._last.update(dict.fromkeys(subjects, now))

        async def run() -> None:
            await show_notification(title, text, self._environ)

        self._start(run)
