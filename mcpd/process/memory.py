"""Keeps the daemon's memory small: settings of glibc and of the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import linecache
from collections.abc import Callable

import trio

_TRIM_DELAY = 0.5
"""Seconds in which further requests to trim the heap are combined."""
_QUIET = 4.0
"""Seconds without a request after which the heap is trimmed again."""
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1
_KEPT = 32 << 20
"""Bytes of free memory that the heap keeps until it is trimmed. Larger objects are not part of the heap."""
_YOUNG, _OLD = 5_000, 2


def _libc_function(name: str) -> Callable[..., int]:
    """Return a function of the C library, or a no-op if it is missing (as in musl).

    Call this once per name: each lookup creates a class that only the garbage collector can free.
    """
    found: Callable[..., int] = getattr(ctypes.CDLL(None), name, lambda *_: 0)
    return found


_malloc_trim = _libc_function("malloc_trim")
_mallopt = _libc_function("mallopt")


def limit_memory_growth() -> None:
    """Call this once, after all imports and before the first thread.

    All threads share one heap, because free memory in a thread's own heap is useless to the others. This
    causes no contention: the threads hold Python's lock nearly all the time. Memory of large messages stays
    in the heap until `trim_heap_soon`: to get it from the system for each message took half of their time.

    Imported objects live forever and are excluded from garbage collection. Calls create many short-lived
    objects and no cycles, so young collections run rarely. Full collections still run regularly, because
    ended HTTP sessions are old objects in cycles.
    """
    _mallopt(_M_ARENA_MAX, 1)
    _mallopt(_M_MMAP_THRESHOLD, _KEPT)
    _mallopt(_M_TRIM_THRESHOLD, _KEPT)
    linecache.clearcache()  # attrs keeps the source of every method that it has generated: 0.5 MB
    gc.freeze()
    gc.set_threshold(_YOUNG, _OLD, _OLD)


_is_trimming: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("the heap will be trimmed", default=False)
_last_requested: trio.lowlevel.RunVar[float] = trio.lowlevel.RunVar("when a trim was last requested")
_trims_again: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("it will be trimmed again", default=False)


def trim_heap_soon() -> None:
    """Collect garbage and return free memory to the system: within half a second, and again when nobody has
    requested it for some seconds. Does not wait.

    Call this after a large message or the end of a connection: exceptions may refer to the message in
    cycles, and one later object at the end of the heap keeps all free memory before it.
    """
    _last_requested.set(trio.current_time())
    if not _is_trimming.get():
        _is_trimming.set(True)
        trio.lowlevel.spawn_system_task(_trim_later, name="trim the heap")
    if not _trims_again.get():
        _trims_again.set(True)
        trio.lowlevel.spawn_system_task(_trim_again, name="trim the heap again")


async def _trim_later() -> None:
    await trio.sleep(_TRIM_DELAY)
    _is_trimming.set(False)
    _trim()


async def _trim_again() -> None:
    """Return what was still in use when the first trim ran, such as a large message to a slow reader."""
    # An event would have to be set by each request for a trim.
    while trio.current_time() < (quiet := _last_requested.get() + _QUIET):  # noqa: ASYNC110
        await trio.sleep_until(quiet)
    _trims_again.set(False)
    _trim()


def _trim() -> None:
    gc.collect()
    _malloc_trim(0)
