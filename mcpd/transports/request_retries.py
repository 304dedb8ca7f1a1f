"""Requests that a server refused unread, and that are sent once more when the cause is mended.

Which refusals those are, and what mends them, the era knows (`Dialect.remedy`).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpd.model.errors import McpdError
from mcpd.transports.base import BeforeRetry
from mcpd.transports.outgoing_request import Exchange


class PendingRetries:
    """The exchanges that wait for their remedy: out of the table, and without an answer yet."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Exchange] = {}

    async def retry(
        self, exchange: Exchange, before_retry: BeforeRetry, then: Callable[[bool], None]
    ) -> None:
        """Call `then` when `remedy` is through, with whether it has worked; not when the exchange was
        withdrawn meanwhile. Bounded by the exchange's deadline."""
        worked = False
        exchange.was_retried = True
        try:
            with trio.move_on_at(exchange.deadline):
                await before_retry()
                worked = True
        except McpdError:
            pass  # the error that is there already says more about this request
        finally:
            if self.withdraw(exchange):
                then(worked)

    def add(self, exchange: Exchange) -> None:
        """From now on it is withdrawn here. `retry` is soon called."""
        self._waiting[exchange.key] = exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Whether it was waiting; it is no more."""
        if self._waiting.get(exchange.key) is not exchange:
            return False
        del self._waiting[exchange.key]
        return True
