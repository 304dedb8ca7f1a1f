"""A value whose changes can be awaited. Waiters see the latest value; earlier ones may be skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class AsyncValue(Generic[T]):
    """Set the value synchronously; wait until it satisfies a condition."""

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
        """Return the first value that satisfies `condition`; values set in between may be skipped."""
        while not condition(self._value):
            await self._changed.wait()
        return self._value
