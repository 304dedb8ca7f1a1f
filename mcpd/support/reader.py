"""Reading many descriptors without a trip through the scheduler for each portion.

Waiting for a descriptor costs trio 12 µs a time, a bare `epoll` 1.4 µs (measured here, Python 3.11), and a
relayed call waits four times. So all descriptors that carry messages are registered once with an epoll of
our own, whose one task hands each portion to its owner's callback. While calls are going to and fro
(`traffic.more_expected`), that task looks for the next portion itself for a millisecond before it goes
back to the scheduler; each millisecond it lets the other tasks run.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Protocol

import trio

from mcpd.support.outbox import batch

_batch = batch()
READ_SMALL = 1 << 16
"""Enough for hundreds of messages; more makes each read dearer (malloc turns to mmap at 128 KiB)."""
READ_LARGE = 1 << 20
"""For a descriptor that fills the small size: a big message is under way."""
LINGER = 0.001
"""Seconds to look on for more; the finest that epoll takes. Other tasks may be late by that."""
_BUSY_POLL = 0.0001
"""Seconds to look on without sleeping: where a wake-up is dear (a virtual machine with idle cores), that is a
third of a call's time, and less of the processor's besides (measured: 180 µs to 65, 110 µs of CPU to 75)."""
_MAX_TURN = 0.001
"""Seconds after which other tasks get their turn."""


class Reader:
    """Hands everything that comes from a non-blocking descriptor to `take`, portion by portion.

    `take` is called in the hub's task: it must not block. What it raises ends this reader only.
    The descriptor stays the caller's to close, after `run` has ended.
    """

    def __init__(self, fd: int, take: Callable[[bytes], None], *, largest: int = READ_LARGE) -> None:
        self.fd = fd
        self._take = take
        self._largest = largest
        self._size = READ_SMALL
        self._finished = trio.Event()
        self._error: Exception | None = None

    async def run(self) -> None:
        """Read until the end of the stream, or cancellation. Raises OSError, and what `take` raised."""
        hub = _current_hub()
        hub.add(self)
        try:
            await self._finished.wait()
        finally:
            hub.remove(self)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which must not hold it

    def on_readable(self) -> bool:
        """Read once. False when this reader is over."""
        try:
            portion = os.read(self.fd, self._size)
            if portion:
                # A flood of small messages is taken in small portions: each is handled in one go.
                inside = len(portion) == self._size and b"\n" not in portion
                self._size = self._largest if inside else READ_SMALL
                self._take(portion)
                return True
        except BlockingIOError:
            return True
        except Exception as error:  # the owner's task raises it
            self._error = error
        self._finished.set()
        return False


class _Traffic:
    """Set `more_expected` when a call has been passed on, in one direction or the other: the next portion
    will be here at once. (An attribute, because it is set for every call; a function costs ten times that.)
    """

    more_expected = False


traffic = _Traffic()


class Readable(Protocol):
    """A descriptor, and what is to be done when it can be read."""

    fd: int

    def on_readable(self) -> bool:
        """Called in the hub's task: must neither block nor raise. False: no more, until watched again."""


def watch(readable: Readable) -> None:
    """Have `on_readable` called, from now on, whenever there is something to read. `unwatch` it before its
    descriptor is closed."""
    _current_hub().add(readable)


def unwatch(readable: Readable) -> None:
    """Ignored when it is not watched."""
    _current_hub().remove(readable)


class _EpollHub:
    """All readers of one `trio.run`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Readable] = {}

    def add(self, reader: Readable) -> None:
        self._readers[reader.fd] = reader
        self._epoll.register(reader.fd, select.EPOLLIN)

    def remove(self, reader: Readable) -> None:
        if self._readers.get(reader.fd) is reader:
            del self._readers[reader.fd]
            self._epoll.unregister(reader.fd)

    async def run(self) -> None:
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                turn_ends = time.monotonic() + _MAX_TURN
                while self._dispatch(self._poll_ahead() if traffic.more_expected else self._epoll.poll(0)):
                    if time.monotonic() > turn_ends:
                        await trio.lowlevel.checkpoint()
                        turn_ends = time.monotonic() + _MAX_TURN

    def _poll_ahead(self) -> list[tuple[int, int]]:
        """What comes next, looked for awake at first: being woken costs more than what is waited for."""
        poll = self._epoll.poll
        until = time.monotonic() + _BUSY_POLL
        while True:
            events = poll(0)
            if events or time.monotonic() > until:
                return events or poll(LINGER)

    def _dispatch(self, events: list[tuple[int, int]]) -> bool:
        traffic.more_expected = False
        if len(events) == 1:
            self._notify(events[0][0])
        else:
            with _batch:  # what many clients ask of one server leaves together
                for fd, _ in events:
                    self._notify(fd)
        return bool(events)

    def _notify(self, fd: int) -> None:
        reader = self._readers.get(fd)
        if reader is not None and not reader.on_readable():
            self.remove(reader)


_current: trio.lowlevel.RunVar[_EpollHub] = trio.lowlevel.RunVar("reader hub")


def _current_hub() -> _EpollHub:
    try:
        return _current.get()
    except LookupError:
        hub = _EpollHub()
        _current.set(hub)
        trio.lowlevel.spawn_system_task(hub.run, name="reader hub")
        return hub


def has_hung_up(fd: int) -> bool:
    """Whether the other side has closed the connection altogether, not only its own direction."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def is_readable(fd: int) -> bool:
    """Whether there are bytes, an end or an error to be read at once."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
