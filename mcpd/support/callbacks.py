"""Many listeners for one source, each called at once: for what must keep its place among other messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("mcpd")

T = TypeVar("T")


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
