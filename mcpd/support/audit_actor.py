"""Who requested the current action: set where a request arrives, read where a change is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_actor: ContextVar[Callable[[], str] | None] = ContextVar("actor", default=None)


@contextmanager
def acting_for(describe: Callable[[], str]) -> Iterator[None]:
    """Attribute everything in the block, and in tasks started from it, to `describe()`."""
    token = _actor.set(describe)
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> str:
    """Return who requested the current action, or an empty string if nobody did."""
    who = _actor.get()
    return "" if who is None else who()
