"""Bounded fan-out: every listener gets every item, or is closed for falling behind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Broadcast(Generic[T]):
    """`send` never waits. A listener whose buffer is full is closed: its channel ends."""

    def __init__(self, buffer: int = 1000) -> None:
        self._buffer = buffer
        self._listeners: set[trio.MemorySendChannel[T]] = set()

    def send(self, item: T) -> None:
        for listener in tuple(self._listeners):
            try:
                listener.send_nowait(item)
            except trio.WouldBlock:
                self._drop(listener)

    @contextmanager
    def listen(self) -> Iterator[trio.MemoryReceiveChannel[T]]:
        """Receive everything sent from here on. The channel ends early only by falling behind."""
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


log = logging.getLogger("mcpd")


class CallbackList(Generic[T]):
    """Calling it calls every listener, in the order they came. Listeners must not block.

    One that raises is logged and keeps listening; it costs neither the others nor the source.
    """

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[T], None]] = {}

    def __call__(self, item: T) -> None:
        for listener in tuple(self._listeners.values()):
            try:
                listener(item)
            except Exception:
                log.exception("an error in mcpd itself, in a listener")

    def add(self, listener: Callable[[T], None]) -> Callable[[], None]:
        """Call it from now on; what is returned ends that (again and again, if need be)."""
        place = object()
        self._listeners[place] = listener

        def end() -> None:
            self._listeners.pop(place, None)

        return end
