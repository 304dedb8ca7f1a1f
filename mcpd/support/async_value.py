"""A value whose changes can be awaited: for what is true now, where only the latest matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class AsyncValue(Generic[T]):
    """Set it synchronously, from anywhere; wait for it to become what you need."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = trio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        self._value = value
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_until(self, condition: Callable[[T], bool]) -> T:
        """Return the first value that satisfies `is_so`; values set in between may be skipped."""
        while not condition(self._value):
            await self._changed.wait()
        return self._value
