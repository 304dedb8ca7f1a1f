"""Values and events with many listeners: Broadcast (channels), CallbackList (calls), AsyncValue (waiters)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

log = logging.getLogger("mcpd")

T = TypeVar("T")


class Broadcast(Generic[T]):
    """Each listener gets every item in its own buffer. If the buffer is full, the listener's channel ends."""

    def __init__(self, buffer: int = 1000) -> None:
        self._buffer = buffer
        self._listeners: set[trio.MemorySendChannel[T]] = set()

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def send(self, item: T) -> None:
        for listener in tuple(self._listeners):
            try:
                listener.send_nowait(item)
            except trio.WouldBlock:
                self._drop(listener)

    @contextmanager
    def listen(self) -> Iterator[trio.MemoryReceiveChannel[T]]:
        """Receive everything sent from now on. The channel ends early only if the listener is too slow."""
        send, receive = trio.open_memory_channel[T](self._buffer)
        self._listeners.add(send)
        try:
            yield receive
        finally:
            self._drop(send)
            receive.close()

    def _drop(self, listener: trio.MemorySendChannel[T]) -> None:
        self._listeners.discard(listener)
        listener.close()


class CallbackList(Generic[T]):
    """Calls every listener in the order of registration. Listeners must not block.

    An exception in a listener is logged; it affects neither the other listeners nor the caller.
    """

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[T], None]] = {}

    def __call__(self, item: T) -> None:
        for listener in tuple(self._listeners.values()):
            try:
                listener(item)
            except Exception:
                log.exception("internal error in a listener")

    def add(self, listener: Callable[[T], None]) -> Callable[[], None]:
        """Register a listener. Returns a function that removes it, and may be called more than once."""
        place = object()
        self._listeners[place] = listener

        def end() -> None:
            self._listeners.pop(place, None)

        return end

    def clear(self) -> None:
        """Remove all listeners, so that this no longer refers to them."""
        self._listeners.clear()


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
