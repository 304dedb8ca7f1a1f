"""On whose behalf something is done: set where a request comes in, read where a change is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_actor: ContextVar[Callable[[], str] | None] = ContextVar("actor", default=None)


@contextmanager
def acting_for(describe: Callable[[], str]) -> Iterator[None]:
    """Everything done in the block, and in tasks started from it, is done for `who()`."""
    token = _actor.set(describe)
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> str:
    """Who asked for what is being done now; empty when it happens by itself."""
    who = _actor.get()
    return "" if who is None else who()
