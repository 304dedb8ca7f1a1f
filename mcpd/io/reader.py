"""Reads many descriptors in one task, without a scheduler round trip for each read.

Waiting for a descriptor takes 12 µs in trio and 1.4 µs with a bare `epoll` (measured, Python 3.11), and a
forwarded call waits four times. So all descriptors that carry messages are registered with one epoll, and
one task passes the data to callbacks. While calls are in progress (`traffic.more_expected`), this task polls
for another millisecond before it returns to the scheduler; every millisecond it lets other tasks run.

A peer that sends much does not delay the others. Work for one descriptor stops after 2 ms, and continues
after the other readable descriptors and the other tasks have had their turn. If many descriptors are
readable, each gets less time, so that a round takes a few milliseconds. Descriptors without unfinished work
go first, so that a peer that sends one request waits for at most one turn of each that sends thousands.
Nothing is lost or reordered, and nothing more is read from a descriptor while work for it waits.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import trio

from mcpd.io.outbox import batch
from mcpd.io.turns import rest

_batch = batch()
REST = object()
"""A step of a large message returns this to let others finish a small request, see `turns.rest`."""
READ_SMALL = 1 << 16
"""Bytes: enough for hundreds of messages. Larger reads are slower (malloc uses mmap from 128 KiB)."""
READ_LARGE = 1 << 20
"""Bytes, after a read of READ_SMALL was full: a large message is arriving."""
LINGER = 0.001
"""Seconds to poll for more data: the finest resolution of epoll. It may delay other tasks."""
_BUSY_POLL = 0.0001
"""Seconds to poll without sleeping. In a virtual machine with idle cores, where waking up is slow, this saves
two thirds of a call's time, and CPU time, too (measured: 180 µs to 65, 110 µs of CPU to 75)."""
_MAX_TURN = 0.001
"""Seconds before other tasks run."""
_MAX_SLICE = 0.002
"""Seconds before other descriptors have their turn: enough for a hundred calls, which leave together."""
_ROUND = 0.005
"""Seconds in which all readable descriptors should have a turn."""
_MIN_SLICE = 0.0001
"""Seconds of one descriptor's turn, even if a round takes longer then. At least one message is handled."""


class Reader:
    """Passes everything read from a non-blocking descriptor to `take`.

    `take` is called in the hub's task and must not block. If it gets many messages, it returns an
    iterator, each step of which handles one of them. The steps run in order, in slices, within `batch()`, and
    all of them before the next read. An exception from `take` or a step ends only this reader. The caller
    closes the descriptor after `run` has ended.
    """

    def __init__(
        self,
        fd: int,
        take: Callable[[bytes], Iterable[object] | None],
        *,
        largest: int = READ_LARGE,
        of_client: Callable[[], bool] | None = None,
    ) -> None:
        """`of_client`: for a client of the daemon, returns whether `hold` may stop here, and not within a
        message."""
        self.fd = fd
        self.of_client = of_client
        self._take = take
        self._largest = largest
        self._size = READ_SMALL
        self._steps: Iterator[object] | None = None
        """The messages of the last read that are not handled yet."""
        self._finished = trio.Event()
        self._error: Exception | None = None
        self.is_paused = False
        self._is_resting = False

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "has work" if self._steps is not None else "waiting"
        return f"<Reader of descriptor {self.fd}: {state}>"

    def pause(self) -> None:
        """Stop reading, and handling what was read, until `resume`. A no-op before and after `run`."""
        if not self.is_paused:
            self.is_paused = self._is_resting or _current_hub().pause(self)

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if not self._is_resting:
                _current_hub().resume(self, has_work=self._steps is not None)

    def finish(self) -> None:
        """Handle everything that was read, at once."""
        if self._steps is not None:
            with _batch:
                deque(self._steps, 0)
            self._steps = None

    async def _rest(self) -> None:
        await rest()
        self._is_resting = False
        if not self.is_paused:
            _current_hub().resume(self, has_work=self._steps is not None)

    async def run(self) -> None:
        """Read until the end of the stream or cancellation. Raises OSError, and exceptions from `take`."""
        hub = _current_hub()
        hub.add(self)
        try:
            await self._finished.wait()
        except trio.Cancelled:
            self._error = None  # it refers back
            raise
        finally:
            hub.remove(self)
            self._steps = None
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # avoid a reference cycle through the traceback

    def on_readable(self) -> bool:
        """Continue what was read before, or read once. Return False if this reader has ended."""
        if self.is_paused:
            return True
        try:
            if self._steps is None:
                portion = os.read(self.fd, self._size)
                if not portion:
                    self._finished.set()
                    return False
                # Many small messages are read in small portions, because each portion is processed at once.
                inside = len(portion) == self._size and b"\n" not in portion
                self._size = self._largest if inside else READ_SMALL
                steps = self._take(portion)
                if steps is None:
                    return True
                self._steps = iter(steps)
            self._run_slice(self._steps)
        except BlockingIOError:
            return True
        except Exception as error:  # raised in `run`
            self._error = error
            self._finished.set()
            return False
        return True

    def _run_slice(self, steps: Iterator[object]) -> None:
        clock = time.monotonic
        hub = _current_hub()
        ends = clock() + hub.slice
        with _batch:
            for step in steps:
                if step is REST:
                    self._is_resting = hub.pause(self)
                    trio.lowlevel.spawn_system_task(self._rest)
                    return
                if self.is_paused:
                    return
                if clock() > ends:
                    hub.resume_later(self)
                    return
        self._steps = None


class _Traffic:
    """Set `more_expected` after forwarding a message: the next data will arrive very soon.

    It is an attribute because it is set for every call; calling a function takes ten times as long.
    """

    more_expected = False


traffic = _Traffic()


class Readable(Protocol):
    """A descriptor with a callback for when it is readable."""

    fd: int

    def on_readable(self) -> bool:
        """Called in the hub's task: must not block or raise. Return False to stop watching."""


def watch(readable: Readable) -> None:
    """Call `on_readable` whenever the descriptor is readable. Call `unwatch` before closing it."""
    _current_hub().add(readable)


def unwatch(readable: Readable) -> None:
    """Stop watching; a no-op if it is not watched."""
    _current_hub().remove(readable)


def hold(*, clients_only: bool) -> None:
    """Read nothing more from any descriptor, or from those of clients, until `release`. What was read is
    handled at once. Call this again for clients that were within a message."""
    _current_hub().hold(clients_only=clients_only)


def release() -> None:
    """Read again."""
    _current_hub().release()


class _EpollHub:
    """The epoll of one `trio.run`, and the task that serves it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Readable] = {}
        self._waiting: dict[int, None] = {}
        """The descriptors that are readable, in the order of their turns."""
        self._unfinished: dict[int, None] = {}
        """Those with unfinished work, in the order of their turns."""
        self._unfinished_begins = False
        self._paused: set[int] = set()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a reader was resumed that has unfinished work, but nothing to read."""
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self.slice = _MAX_SLICE
        """Seconds of one descriptor's turn."""
        self._is_held: Callable[[Readable], bool] = _is_never
        """Whether nothing is read from a descriptor until `release`."""
        self._held: dict[int, None] = {}
        """Those from which something would be read otherwise."""

    def add(self, reader: Readable) -> None:
        self._readers[reader.fd] = reader
        if self._is_held(reader):
            self._paused.add(reader.fd)
            self._held[reader.fd] = None
        else:
            self._epoll.register(reader.fd, select.EPOLLIN)

    def hold(self, *, clients_only: bool) -> None:
        self._is_held = _is_client if clients_only else _is_reader
        for reader in [each for each in self._readers.values() if self._is_held(each)]:
            assert isinstance(reader, Reader)
            if reader.fd not in self._paused:
                self.pause(reader)
                self._held[reader.fd] = None
            self._waiting.pop(reader.fd, None)
            self._unfinished.pop(reader.fd, None)
            reader.finish()

    def release(self) -> None:
        self._is_held = _is_never
        held, self._held = self._held, {}
        for fd in held:
            reader = self._readers.get(fd)
            if isinstance(reader, Reader) and fd in self._paused:
                self.resume(reader, has_work=False)

    def remove(self, reader: Readable) -> None:
        if self._readers.get(reader.fd) is reader:
            del self._readers[reader.fd]
            self._held.pop(reader.fd, None)
            self._waiting.pop(reader.fd, None)
            self._unfinished.pop(reader.fd, None)
            if reader.fd in self._paused:
                self._paused.discard(reader.fd)
            else:
                self._epoll.unregister(reader.fd)

    def pause(self, reader: Readable) -> bool:
        """Ignore a descriptor, even if its peer hangs up. Return whether it was watched."""
        if self._readers.get(reader.fd) is not reader:
            return False
        if self._held.pop(reader.fd, self) is self:
            self._paused.add(reader.fd)
            self._epoll.unregister(reader.fd)
        return True

    def resume(self, reader: Readable, *, has_work: bool) -> None:
        """Undo `pause`. `has_work`: call `on_readable` even if nothing can be read."""
        if self._readers.get(reader.fd) is not reader:
            return
        if self._is_held(reader):
            self._held[reader.fd] = None
        else:
            self._paused.discard(reader.fd)
            self._epoll.register(reader.fd, select.EPOLLIN)
            if has_work:
                self.resume_later(reader)
                os.eventfd_write(self._wake_fd, 1)

    def resume_later(self, reader: Readable) -> None:
        """Call `on_readable` again, after all others that are waiting."""
        if self._readers.get(reader.fd) is reader:
            self._unfinished[reader.fd] = None

    async def run(self) -> None:
        with self._epoll, os.fdopen(self._wake_fd):
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                turn_ends = time.monotonic() + _MAX_TURN
                while self._dispatch(self._poll_next(), turn_ends):
                    if time.monotonic() > turn_ends:
                        await trio.lowlevel.checkpoint()
                        turn_ends = time.monotonic() + _MAX_TURN

    def _poll_next(self) -> list[tuple[int, int]]:
        idle = not self._waiting and not self._unfinished
        return self._poll_ahead() if traffic.more_expected and idle else self._epoll.poll(0)

    def _poll_ahead(self) -> list[tuple[int, int]]:
        """Poll for the next events: first without sleeping, since waking up takes longer than the wait."""
        poll = self._epoll.poll
        until = time.monotonic() + _BUSY_POLL
        while True:
            events = poll(0)
            if events or time.monotonic() > until:
                return events or poll(LINGER)

    def _dispatch(self, events: list[tuple[int, int]], turn_ends: float) -> bool:
        """Let descriptors take their turns until `turn_ends`. Return False if there was nothing to do."""
        traffic.more_expected = False
        waiting, unfinished = self._waiting, self._unfinished
        if len(events) == 1 and not waiting and not unfinished:
            self.slice = _MAX_SLICE
            self._notify(events[0][0])
            return True
        for fd, _ in events:
            if fd not in unfinished:
                waiting.setdefault(fd)
        if not waiting and not unfinished:
            return False
        self.slice = max(_MIN_SLICE, min(_MAX_SLICE, _ROUND / (len(waiting) + len(unfinished))))
        with _batch:  # requests of several clients to one server leave in one write
            # Those with unfinished work go last, but begin every other time, however many others there are.
            self._unfinished_begins = not self._unfinished_begins
            queue = (unfinished or waiting) if self._unfinished_begins else (waiting or unfinished)
            while queue:
                fd = next(iter(queue))
                del queue[fd]
                self._notify(fd)
                if time.monotonic() > turn_ends:
                    break
                queue = waiting or unfinished
        return True

    def _notify(self, fd: int) -> None:
        reader = self._readers.get(fd)
        if fd == self._wake_fd:
            os.eventfd_read(fd)
        elif reader is not None and not reader.on_readable():
            self.remove(reader)


def _is_never(_: Readable) -> bool:
    return False


def _is_reader(readable: Readable) -> bool:
    return isinstance(readable, Reader)


def _is_client(readable: Readable) -> bool:
    return isinstance(readable, Reader) and readable.of_client is not None and readable.of_client()


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
    """Return whether the peer has closed both directions of the connection."""
    poll = select.poll()
    poll.register(fd, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def is_readable(fd: int) -> bool:
    """Return whether data, the end of the stream or an error can be read immediately."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
