"""Requests that are sent once more after the server refused them without executing them.

`Dialect.retry_after_refusal` decides which refusals qualify and what to await first.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from mcpd.model.errors import McpdError
from mcpd.transports.base import BeforeRetry
from mcpd.transports.outgoing_request import Exchange


class PendingRetries:
    """The requests that await their retry: removed from the table, and not answered yet."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Exchange] = {}

    async def retry(
        self, exchange: Exchange, before_retry: BeforeRetry, then: Callable[[bool], None]
    ) -> None:
        """Await `before_retry`, then call `then` with whether it succeeded, unless the request was withdrawn.

        Bounded by the deadline of the request.
        """
        worked = False
        exchange.was_retried = True
        try:
            with trio.move_on_at(exchange.deadline):
                await before_retry()
                worked = True
        except McpdError:
            pass  # the original error says more about this request
        finally:
            if self.withdraw(exchange):
                then(worked)

    def add(self, exchange: Exchange) -> None:
        """Hold the request from now on; `retry` must be called soon."""
        self._waiting[exchange.key] = exchange

    def withdraw(self, exchange: Exchange) -> bool:
        """Remove the request; return whether it was held."""
        if self._waiting.get(exchange.key) is not exchange:
            return False
        del self._waiting[exchange.key]
        return True
