"""Keeps the daemon's memory small: settings of glibc and of the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import linecache
import resource
import time
from collections.abc import Callable
from pathlib import Path

import trio

_TRIM_DELAY = 0.5
"""Seconds in which further requests to trim the heap are combined."""
_M_ARENA_MAX = -8
_YOUNG, _OLD = 5_000, 2
_LONG_COLLECTION = 0.01
"""Seconds of CPU time of a collection after which the objects that it looked at are left out of the next."""
_GROWTH = 8 * 1024 * 1024
"""Bytes by which the memory grows before objects that were left out are collected, too."""
_MAX_SHARE = 0.01
"""The share of the time in which such complete collections may run."""


def _libc_function(name: str) -> Callable[..., int]:
    """Return a function of the C library, or a no-op if it is missing (as in musl).

    Call this once per name: each lookup creates a class that only the garbage collector can free.
    """
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return lambda *_: 0
    return found


_malloc_trim = _libc_function("malloc_trim")
_mallopt = _libc_function("mallopt")


def limit_memory_growth() -> None:
    """Call this once, after all imports and before the first thread.

    All threads share one heap, because free memory in a thread's own heap is useless to the others. This
    causes no contention: the threads hold Python's lock nearly all the time.

    Imported objects live forever and are excluded from garbage collection. Calls create many short-lived
    objects and no cycles, so young collections run rarely. Full collections still run regularly, because
    ended HTTP sessions are old objects in cycles; with some ten thousand objects, one takes a
    few milliseconds. With more objects, see `GarbageCollection`, which `trim_heap_soon` uses from now on.
    """
    _mallopt(_M_ARENA_MAX, 1)
    linecache.clearcache()  # attrs keeps the source of every method that it has generated: 0.5 MB
    gc.freeze()
    gc.set_threshold(_YOUNG, _OLD, _OLD)
    global _collection
    _collection = GarbageCollection()


def trim_heap() -> None:
    """Return free heap memory to the system. Takes some milliseconds; a no-op without glibc.

    Call this after a large message or the end of a connection: one later object at the end of the heap keeps
    all free memory before it. Without it, 2,400 restarts in a minute left 16 MB of 24 MB free but unreturned.
    """
    _malloc_trim(0)


class GarbageCollection:
    """Collects garbage on request, so that the collections of a daemon with many servers remain short.

    A collection looks at all objects. With 1,700 servers it takes 0.1 s, and every failed attempt to connect
    and every client that leaves asks for one. Objects that have survived a long collection are therefore left
    out of the next ones. They are still freed as soon as nothing refers to them; only cycles of them remain.
    All objects are collected if the memory has grown since this was done last.
    """

    def __init__(self) -> None:
        self._leaves_out = False
        self._least_memory = _resident()
        """The smallest memory in bytes since all objects were collected."""
        self._may_collect_all_at = 0.0
        self._will_collect_all = False

    async def collect(self) -> None:
        """Collect garbage and trim the heap.

        If the memory has grown, wait until all objects may be collected, and collect them.
        """
        self._collect()
        trim_heap()
        if self._has_grown() and not self._will_collect_all:
            self._will_collect_all = True
            await trio.sleep_until(self._may_collect_all_at)
            self._will_collect_all = False
            if self._has_grown():
                self._collect_all()

    def _collect(self) -> float:
        """Collect the objects that are not left out. Return the seconds of CPU time that it took."""
        began = time.thread_time()
        gc.collect()
        taken = time.thread_time() - began
        if taken > _LONG_COLLECTION:
            gc.freeze()
            self._leaves_out = True
        return taken

    def _collect_all(self) -> None:
        gc.unfreeze()  # the imported objects, too
        self._leaves_out = False
        taken = self._collect()
        self._may_collect_all_at = trio.current_time() + taken / _MAX_SHARE
        trim_heap()
        self._least_memory = _resident()

    def _has_grown(self) -> bool:
        """Return whether objects are left out that may be the reason why the memory has grown."""
        if not self._leaves_out:
            return False
        now = _resident()
        self._least_memory = min(self._least_memory, now)
        return now - self._least_memory > _GROWTH


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


_collection: GarbageCollection | None = None
"""Set once the settings of `limit_memory_growth` apply to this process."""
_is_trimming: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("the heap will be trimmed", default=False)
_must_collect: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("garbage is collected before", default=False)


def trim_heap_soon(*, collect: bool = False) -> None:
    """Call `trim_heap` once within half a second, however many ask for it. Does not wait.

    `collect`: collect garbage first, because exceptions about a large message may refer to it in cycles.
    """
    if collect:
        _must_collect.set(True)
    if not _is_trimming.get():
        _is_trimming.set(True)
        trio.lowlevel.spawn_system_task(_trim_later, name="trim the heap")


async def _trim_later() -> None:
    await trio.sleep(_TRIM_DELAY)
    _is_trimming.set(False)
    if _must_collect.get():
        _must_collect.set(False)
        if _collection is not None:
            await _collection.collect()
            return
        gc.collect()
    trim_heap()
