"""Bounded fan-out: every listener gets every item, or is closed for falling behind."""

from __future__ import annotations

from collections.abc import Iterator
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
