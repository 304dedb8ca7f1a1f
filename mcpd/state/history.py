"""The event history: what happened to servers and why. Bounded, and kept over restarts.

Stored as JSON lines in two rotated files of at most 1 MiB each, written in a thread. Lines truncated by a
crash are skipped. If the disk is full, entries are kept in memory only.
"""

from __future__ import annotations

import logging
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
MAX_ENTRIES, MAX_TOTAL = 200, 5000
"""Entries kept in memory for each server (or the daemon itself), and for all. The one with most of them loses
its oldest entry."""
_MAX_UNWRITTEN = 2000
"""Entries that are kept while the disk does not answer."""
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


@attrs.define(eq=False)
class _Seen:
    """What was seen of a server, to tell changes from repetitions."""

    state: _State | None = None
    repeated: dict[_State, int] = attrs.field(factory=dict)
    """How often each state has occurred since the server last was connected for long."""
    connected_at: str = ""
    """When it was connected; empty if it is not."""
    login: tuple[int, int] = (0, 0)
    """The hash of the last event of its login, and how often it has happened in a row."""

    def count_state(self, event: Event, state: ServerState, message: str, *, failed: bool) -> int:
        """Return how often the server has come into this state; 0 if it already was, or soon leaves it."""
        if state is ServerState.PENDING and message in ("connecting", "queued", CONNECTION_LOST):
            return 0  # always followed by the outcome, which says more
        now = (state, hash(message))  # a server decides how long the message is
        previous, self.state = self.state, now
        is_known = not event.by or previous == now  # the server's second connection repeats what was asked
        unchanged = previous is not None and previous[0] is state and not failed and is_known
        if unchanged and (state is not ServerState.PENDING or previous == now):
            return 0  # new details, or the same state in other words
        connected_at, self.connected_at = self.connected_at, ""
        steady = connected_at and parse_timestamp(event.at) - parse_timestamp(connected_at) >= _STEADY_TIME
        if event.by or steady or len(self.repeated) > 100:
            self.repeated.clear()
        if state is ServerState.CONNECTED:
            self.connected_at = event.at
        self.repeated[now] = self.repeated.get(now, 0) + 1
        return self.repeated[now]

    def count_login(self, event: Event) -> int:
        """Return how often this has happened in a row."""
        now = hash(event.message)
        self.login = (now, self.login[1] + 1 if self.login[0] == now else 1)
        return self.login[1]


def _is_kept(times: int) -> bool:
    """Return whether an entry about the 1st, 2nd, 4th, 8th, … time stays when the next one is added."""
    return not times & (times - 1)


class EventHistory:
    """Reads the files when constructed; `run` writes new entries. Recording never blocks or raises."""

    def __init__(self, path: Path, mask: Callable[[str], str]) -> None:
        self.path = path
        self.dropped = 0
        """Entries that could not be written."""
        self._mask = mask
        self._entries: dict[str | None, deque[HistoryEntry]] = {}
        self._total = 0
        self._seen: dict[str, _Seen] = {}
        self._unwritten: deque[HistoryEntry] = deque(maxlen=_MAX_UNWRITTEN)
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
        elif event.kind is EventKind.LOGIN and event.server is not None:
            times = self._seen_of(event.server).count_login(event)
            if _is_kept(times):
                self._add(event, HistoryEventKind.LOGIN, times=times)
        elif (kind := _KINDS.get(event.kind)) is not None:
            if event.server is not None and kind is HistoryEventKind.REMOVED:
                self._seen.pop(event.server, None)
            if event.server is None or kind is HistoryEventKind.REMOVED or ":" in event.message:
                self._add(event, kind)  # without names, it is the first list: no change

    def _seen_of(self, server: str) -> _Seen:
        return self._seen.setdefault(server, _Seen())

    def record_daemon(self, message: str, by: str = "") -> None:
        """Record an entry about mcpd itself."""
        self._append(
            HistoryEntry(
                at=rfc3339(time.time()),
                what=HistoryEventKind.DAEMON,
                message=self._masked(message),
                by=self._masked(by),
            )
        )

    def _record_state(self, event: Event) -> None:
        status = event.status
        if status is None or event.server is None:
            return
        has_failed = status.status in (ServerState.FAILED, ServerState.NEEDS_AUTH)
        failure = status.last_error if has_failed else None
        message = event.message if failure is None else failure.message
        seen = self._seen_of(event.server)
        times = seen.count_state(event, status.status, message, failed=failure is not None)
        if times:
            cause: dict[str, object] = {}
            if failure is not None:
                cause = {"kind": failure.kind, "exit_code": failure.exit_code, "signal": failure.signal}
            what = HistoryEventKind.STATE
            self._add(event, what, state=status.status, message=message, times=times, **cause)

    def _add(self, event: Event, what: HistoryEventKind, **extra: object) -> None:
        message = self._masked(str(extra.pop("message", event.message)))
        entry = HistoryEntry(
            at=event.at, what=what, server=event.server, message=message, by=self._masked(event.by)
        )
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
        entries = self._entries.setdefault(entry.server, deque())
        self._total -= len(entries)
        if entry.times > 1:
            _remove_previous(entries, entry)
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            entries.popleft()
        self._total += len(entries)
        if self._total > MAX_TOTAL:
            longest = max(self._entries, key=lambda each: len(self._entries[each]))
            self._entries[longest].popleft()
            if not self._entries[longest]:
                del self._entries[longest]
            self._total -= 1

    def has_entries(self, server: str) -> bool:
        """Return whether the history has entries about `server`."""
        return server in self._entries

    def history(self, server: str | None, limit: int) -> History:
        """Return the newest `limit` entries of one server or of all, oldest first."""
        if server is not None:
            entries = list(self._entries.get(server, ()))
        else:
            entries = sorted(chain.from_iterable(self._entries.values()), key=lambda entry: entry.at)
        return History(entries=tuple(entries[-limit:] if limit > 0 else ()), dropped=self.dropped)

    async def run(self) -> None:
        """Write new entries as they occur, and the remaining ones when cancelled."""
        try:
            while True:
                await self._has_unwritten.wait()
                self._has_unwritten = trio.Event()
                await self.flush()
                await trio.sleep(_WRITE_INTERVAL)  # entries in quick succession are written together
        finally:
            with trio.move_on_after(2, shield=True):
                await self.flush()
                await self._thread.wait_idle()

    async def flush(self) -> None:
        """Write what is not written yet."""
        while self._unwritten:
            try:
                await self._thread.run(self._append_unwritten)
            except RuntimeError:  # no thread can be started: they are written together with the next entry
                return

    def _append_unwritten(self) -> None:
        """Write all entries. Runs in the thread, also to its end if the caller is cancelled meanwhile."""
        with self._unwritten_lock:
            unwritten, self._unwritten = self._unwritten, deque(maxlen=_MAX_UNWRITTEN)
        lines = [codec.encode(entry) + b"\n" for entry in unwritten]
        try:
            append_lines(self.path, b"".join(lines), MAX_FILE_SIZE)
        except OSError as error:
            if not self.dropped:
                problem = error.strerror or error
                log.error("cannot write %s: %s; keeping the history in memory only", self.path, problem)
            self.dropped += len(lines)


def _remove_previous(entries: deque[HistoryEntry], repeated: HistoryEntry) -> None:
    """Remove the entry of the previous time that something happened, unless it is to be kept."""
    for index in range(len(entries) - 1, -1, -1):
        if (entries[index].state, entries[index].message) == (repeated.state, repeated.message):
            if not _is_kept(entries[index].times):
                del entries[index]
            return


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
