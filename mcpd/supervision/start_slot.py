"""A place among the servers that are starting, so that twenty do not start at once."""

from __future__ import annotations

import trio


class StartSlot:
    """Taken by entering the block; given back by `free`, or at its end."""

    def __init__(self, starts: trio.CapacityLimiter) -> None:
        self._starts = starts
        self._held = False

    async def __aenter__(self) -> StartSlot:
        await self._starts.acquire_on_behalf_of(self)
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.free()

    async def free_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.free()

    def free(self) -> None:
        if self._held:
            self._held = False
            self._starts.release_on_behalf_of(self)
