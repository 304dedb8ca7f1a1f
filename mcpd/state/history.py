"""The event history: what happened to servers and why. Bounded, and kept over restarts.

Stored as JSON lines in two rotated files of at most 1 MiB each, written in a thread. Lines truncated by a
crash are skipped. If the disk is full, entries are kept in memory only.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from pathlib import Path

import attrs
import msgspec
import trio

from mcpd.files.own_thread import OwnThread
from mcpd.files.rotated import append_lines, last_lines, older
from mcpd.model import codec
from mcpd.model.events import Event, EventKind, History, HistoryEntry, HistoryEventKind
from mcpd.model.status import CONNECTION_LOST, ServerState, parse_timestamp, rfc3339
from mcpd.model.text import shorten

log = logging.getLogger("mcpd.state.history")

MAX_FILE_SIZE = 1024 * 1024
"""Bytes after which a file is rotated."""
MAX_ENTRIES = 200
"""Entries kept in memory for each server, and for the daemon itself."""
_MAX_SERVERS = 1000
MAX_SIZE, MAX_TOTAL_SIZE = 256 * 1024, 4 * 1024 * 1024
"""Bytes of memory for the entries of each server, and of all. The server whose entries take most loses its
oldest one."""
_MAX_UNWRITTEN, _MAX_UNWRITTEN_SIZE = 10_000, 2 * 1024 * 1024
"""Entries, and their bytes of memory, that are kept while the disk does not answer."""
_OVERHEAD = 200
"""Bytes that an entry takes without its texts."""
_STEADY_TIME = 600.0
"""Seconds for which a server must have been connected until its next failure counts as the first one: as long
as mcpd calls a server unstable that has restarted repeatedly."""
_WRITE_INTERVAL = 0.1
"""Seconds between two writes."""
_READ_AT_START = 512 * 1024
_MAX_MESSAGE_LENGTH = 500
_State = tuple[ServerState, int]
"""A state and the hash of its message."""
_decode = msgspec.json.Decoder(HistoryEntry).decode
_KINDS = {
    EventKind.TOOLS: HistoryEventKind.TOOLS,
    EventKind.RESOURCES: HistoryEventKind.RESOURCES,
    EventKind.PROMPTS: HistoryEventKind.PROMPTS,
    EventKind.REMOVED: HistoryEventKind.REMOVED,
    EventKind.CONFIG: HistoryEventKind.CONFIG,
}


class _Entries:
    """The newest entries, limited by their number and by the memory that they take."""

    def __init__(self, max_count: int, max_size: int) -> None:
        self.entries: deque[HistoryEntry] = deque()
        self.size = 0
        self._max_count = max_count
        self._max_size = max_size

    def append(self, entry: HistoryEntry) -> None:
        self.entries.append(entry)
        self.size += _size(entry)
        while len(self.entries) > self._max_count or self.size > self._max_size:
            self.remove_oldest()

    def remove_oldest(self) -> None:
        self.size -= _size(self.entries.popleft())

    def remove_previous(self, repeated: HistoryEntry) -> None:
        """Remove the entry of the previous time that something happened, unless it is to be kept."""
        for index in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[index]
            if (entry.state, entry.message) == (repeated.state, repeated.message):
                if not _is_kept(entry.times):
                    self.size -= _size(entry)
                    del self.entries[index]
                return


def _is_kept(times: int) -> bool:
    """Return whether an entry about the 1st, 2nd, 4th, 8th, … time stays when the next one is added."""
    return not times & (times - 1)


def _size(entry: HistoryEntry) -> int:
    return _OVERHEAD + sum(map(sys.getsizeof, (entry.at, entry.server, entry.message, entry.by)))


class EventHistory:
    """Reads the files when constructed; `run` writes new entries. Recording never blocks or raises."""

    def __init__(self, path: Path, mask: Callable[[str], str]) -> None:
        self.path = path
        self.dropped = 0
        """Entries that could not be written."""
        self._mask = mask
        self._entries: dict[str | None, _Entries] = {}
        self._size = 0
        self._states: dict[str, _State] = {}
        self._repeated: dict[str, dict[_State, int]] = {}
        """How often each state has occurred since the server last was connected for long."""
        self._connected_at: dict[str, str] = {}
        self._logins: dict[str, tuple[int, int]] = {}
        """The hash of the last event of a server's login, and how often it has happened in a row."""
        self._unwritten = _Entries(_MAX_UNWRITTEN, _MAX_UNWRITTEN_SIZE)
        self._unwritten_lock = threading.Lock()
        self._has_unwritten = trio.Event()
        self._thread = OwnThread()
        for file in (older(path), path):
            for entry in _read_entries(file):
                self._remember(entry)

    def record(self, event: Event) -> None:
        """Record an event if it is a change; new details of an unchanged state are ignored."""
        if event.kind is EventKind.STATUS:
            self._record_state(event)
        elif event.kind is EventKind.LOGIN:
            self._record_login(event)
        elif (kind := _KINDS.get(event.kind)) is not None:
            if event.server is not None and kind is HistoryEventKind.REMOVED:
                self._states.pop(event.server, None)
                self._repeated.pop(event.server, None)
                self._connected_at.pop(event.server, None)
                self._logins.pop(event.server, None)
            if event.server is None or kind is HistoryEventKind.REMOVED or ":" in event.message:
                self._add(event, kind)  # without names, it is the first list: no change

    def record_daemon(self, message: str, by: str = "") -> None:
        """Record an entry about mcpd itself."""
        self._append(
            HistoryEntry(
                at=rfc3339(time.time()), what=HistoryEventKind.DAEMON, message=self._masked(message), by=by
            )
        )

    def _record_state(self, event: Event) -> None:
        status = event.status
        if status is None or event.server is None:
            return
        state, failure = status.status, None
        if state in (ServerState.FAILED, ServerState.NEEDS_AUTH):
            failure = status.last_error
        message = failure.message if failure is not None else event.message
        if state is ServerState.PENDING and message in ("connecting", "queued", CONNECTION_LOST):
            return  # always followed by the outcome, which says more
        now = (state, hash(message))  # a server decides how long the message is
        previous, self._states[event.server] = self._states.get(event.server), now
        unchanged = previous is not None and previous[0] is state and failure is None and not event.by
        if unchanged and (state is not ServerState.PENDING or previous == now):
            return  # new details, or the same state in other words
        repeated = self._repeated.setdefault(event.server, {})
        if event.by or len(repeated) > 100 or self._was_steady(event.server, event.at):
            repeated.clear()
        if state is ServerState.CONNECTED:
            self._connected_at[event.server] = event.at
        times = repeated[now] = repeated.get(now, 0) + 1
        self._add(
            event,
            HistoryEventKind.STATE,
            state=state,
            message=message,
            kind=failure.kind if failure else None,
            exit_code=failure.exit_code if failure else None,
            signal=failure.signal if failure else None,
            times=times,
        )

    def _was_steady(self, server: str, at: str) -> bool:
        """Return whether a server that was connected until `at` had been so for long."""
        connected_at = self._connected_at.pop(server, None)
        if connected_at is None:
            return False
        return parse_timestamp(at) - parse_timestamp(connected_at) >= _STEADY_TIME

    def _record_login(self, event: Event) -> None:
        """Record what happened to a login; of many renewals in a row, the 1st, 2nd, 4th, 8th, … one."""
        assert event.server is not None
        now = hash(event.message)
        last, times = self._logins.get(event.server, (0, 0))
        times = times + 1 if last == now else 1
        self._logins[event.server] = (now, times)
        if _is_kept(times):
            self._add(event, HistoryEventKind.LOGIN, times=times)

    def _add(self, event: Event, what: HistoryEventKind, **extra: object) -> None:
        message = self._masked(str(extra.pop("message", event.message)))
        entry = HistoryEntry(at=event.at, what=what, server=event.server, message=message, by=event.by)
        self._append(attrs.evolve(entry, **extra))  # type: ignore[arg-type]  # checked by attrs

    def _masked(self, message: str) -> str:
        # Masks first: a truncated secret would not be recognized.
        return shorten(self._mask(message), _MAX_MESSAGE_LENGTH)

    def _append(self, entry: HistoryEntry) -> None:
        self._remember(entry)
        if not _is_kept(entry.times):
            return  # only in memory, until the next one
        with self._unwritten_lock:
            self._unwritten.append(entry)
        self._has_unwritten.set()

    def _remember(self, entry: HistoryEntry) -> None:
        entries = self._entries.get(entry.server)
        if entries is None:
            entries = self._entries[entry.server] = _Entries(MAX_ENTRIES, MAX_SIZE)
            if len(self._entries) > _MAX_SERVERS:  # forget the servers seen first
                self._size -= self._entries.pop(next(iter(self._entries))).size
        self._size -= entries.size
        if entry.times > 1:
            entries.remove_previous(entry)
        entries.append(entry)
        self._size += entries.size
        while self._size > MAX_TOTAL_SIZE:
            longest = max(self._entries.values(), key=lambda each: each.size)
            self._size -= longest.size
            longest.remove_oldest()
            self._size += longest.size

    def has_entries(self, server: str) -> bool:
        """Return whether the history has entries about `server`."""
        return server in self._entries

    def history(self, server: str | None, limit: int) -> History:
        """Return the newest `limit` entries of one server or of all, oldest first."""
        if server is not None:
            known = self._entries.get(server)
            entries = [] if known is None else list(known.entries)
        else:
            kept = (each.entries for each in self._entries.values())
            entries = sorted(chain.from_iterable(kept), key=lambda entry: entry.at)
        return History(entries=tuple(entries[-limit:] if limit > 0 else ()), dropped=self.dropped)

    async def run(self) -> None:
        """Write new entries as they occur, and the remaining ones when cancelled."""
        try:
            while True:
                await self._has_unwritten.wait()
                self._has_unwritten = trio.Event()
                await self._write_pending()
                await trio.sleep(_WRITE_INTERVAL)  # entries in quick succession are written together
        finally:
            with trio.move_on_after(2, shield=True):
                await self._write_pending()
                await self._thread.wait_idle()

    async def _write_pending(self) -> None:
        while self._unwritten.entries:
            try:
                await self._thread.run(self._append_unwritten)
            except RuntimeError:  # no thread can be started: they are written together with the next entry
                return

    def _append_unwritten(self) -> None:
        """Write all entries. Runs in the thread, also to its end if the caller is cancelled meanwhile."""
        with self._unwritten_lock:
            unwritten, self._unwritten = self._unwritten, _Entries(_MAX_UNWRITTEN, _MAX_UNWRITTEN_SIZE)
        lines = [codec.encode(entry) + b"\n" for entry in unwritten.entries]
        try:
            append_lines(self.path, b"".join(lines), MAX_FILE_SIZE)
        except OSError as error:
            if not self.dropped:
                problem = error.strerror or error
                log.error("cannot write %s: %s; keeping the history in memory only", self.path, problem)
            self.dropped += len(lines)


def _read_entries(path: Path) -> list[HistoryEntry]:
    """Return the valid entries at the end of a file. Never raises: what cannot be read is logged."""
    try:
        lines = last_lines(path, _READ_AT_START)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        log.warning("cannot read the history %s: %s", path, error.strerror or error)
        return []
    entries, damaged = [], 0
    for line in lines:
        try:
            entries.append(_decode(line))
        except (ValueError, RecursionError):
            damaged += 1
    if damaged:
        log.warning("the history %s is damaged: skipped %d of %d lines", path, damaged, len(lines))
    return entries


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
