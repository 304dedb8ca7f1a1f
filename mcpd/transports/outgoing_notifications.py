"""Messages that go out over HTTP and nobody waits for, so that somebody has to count them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

_MAX_IN_FLIGHT = 256
"""Under way; a server that asks faster than it reads gets no more of them."""


class OutgoingNotifications:
    """How many responses and notifications are under way, each in a request of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._drained = trio.Event()
        self._drained.set()

    def reserve(self) -> bool:
        """Whether one more may be sent. It counts from now on; whoever sends it does so within `sending`."""
        if self._count >= _MAX_IN_FLIGHT:
            return False
        if not self._count:
            self._drained = trio.Event()
        self._count += 1
        return True

    @contextmanager
    def sending(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._drained.set()

    async def wait_drained(self) -> None:
        await self._drained.wait()
