"""Calls the async methods of `mcpd.client` from threads without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from mcpd.client.errors import NOT_SENT, ConnectionClosed
from mcpd.client.link import CLOSED_BY_US

T = TypeVar("T")


class BlockingCaller:
    """Runs async functions in the event loop of `portal`. Any number of threads may use it."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self.is_closed = False
        """Whether the `with` block of the connection has ended."""

    def close(self) -> None:
        """Refuse all later calls, because the portal stops."""
        self.is_closed = True

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` and return its result, or raise its exception.

        If a signal handler raises an exception here, such as KeyboardInterrupt, this cancels `function` and
        raises the exception. Raises ConnectionClosed after the end of the `with` block.
        """
        if self.is_closed:
            raise ConnectionClosed(CLOSED_BY_US, data=NOT_SENT)
        try:
            future = self._portal.start_task_soon(_outcome, function)
        except RuntimeError:  # of a portal that another thread has stopped just now
            if not self.is_closed:
                raise
            raise ConnectionClosed(CLOSED_BY_US, data=NOT_SENT) from None
        try:
            results, error = future.result()
        except CancelledError:
            raise ConnectionClosed(CLOSED_BY_US) from None
        except BaseException:
            future.cancel()
            raise
        if error is not None:
            raise error
        return results[0]


async def _outcome(function: Callable[[], Awaitable[T]]) -> tuple[list[T], BaseException | None]:
    """Return the result in a list, or the exception of `function`: SystemExit would end the event loop."""
    try:
        return [await function()], None
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as error:
        return [], error
