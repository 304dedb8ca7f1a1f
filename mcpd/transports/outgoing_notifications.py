"""Counting the notifications and responses that are being sent over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

_MAX_IN_FLIGHT = 256
"""A server that sends requests faster than it reads responses gets no more than these."""


class OutgoingNotifications:
    """The number of messages being sent, each in an HTTP request of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._drained = trio.Event()
        self._drained.set()

    def reserve(self) -> bool:
        """Return whether another message may be sent, and count it. Send it within `sending`."""
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
