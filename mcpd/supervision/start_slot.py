"""A place among the servers that are starting, so that twenty do not start at once."""

from __future__ import annotations

import trio


class StartSlot:
    """Taken by entering the block; given back by `free`, or at its end."""

    def __init__(self, starts: trio.CapacityLimiter) -> None:
        self._limiter = starts
        self._held = False

    async def __aenter__(self) -> StartSlot:
        await self._limiter.acquire_on_behalf_of(self)
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def release_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.release()

    def release(self) -> None:
        if self._held:
            self._held = False
            self._limiter.release_on_behalf_of(self)
