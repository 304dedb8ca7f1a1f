"""The journal: what happened to servers and why, kept over restarts, bounded, written beside the loop.

One JSON object a line in two files of at most a mebibyte each. A line that a crash cut in two is
skipped; a disk that takes nothing costs the entries their duration, not the daemon its work.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import attrs
import msgspec
import trio

from mcpd.model import codec
from mcpd.model.events import Event, EventKind, History, HistoryEntry, HistoryEventKind
from mcpd.model.status import ServerState, rfc3339
from mcpd.model.text import shorten

log = logging.getLogger("mcpd.event_history")

MAX_FILE_SIZE = 1024 * 1024
"""Bytes of a file, after which it becomes the older one."""
MAX_ENTRIES = 200
"""Entries in memory for each server, and for what concerns none."""
_MAX_SERVERS = 1000
_READ_AT_START = 512 * 1024
_MAX_MESSAGE_LENGTH = 500
_decode = msgspec.json.Decoder(HistoryEntry).decode
_KINDS = {
    EventKind.TOOLS: HistoryEventKind.TOOLS,
    EventKind.RESOURCES: HistoryEventKind.RESOURCES,
    EventKind.PROMPTS: HistoryEventKind.PROMPTS,
    EventKind.REMOVED: HistoryEventKind.REMOVED,
    EventKind.CONFIG: HistoryEventKind.CONFIG,
}


class EventHistory:
    """Reads once, at construction; `run` writes what has been noted since. Noting never blocks or raises."""

    def __init__(self, path: Path, mask: Callable[[str], str]) -> None:
        self.path = path
        self.dropped = 0
        """Entries that could not be written."""
        self._mask = mask
        self._entries: dict[str | None, deque[HistoryEntry]] = {}
        self._states: dict[str, tuple[ServerState, str]] = {}
        self._repeated: dict[str, dict[tuple[ServerState, str], int]] = {}
        self._unwritten: list[HistoryEntry] = []
        self._has_unwritten = trio.Event()
        for older in (path.with_name(path.name + ".1"), path):
            for entry in _read_entries(older):
                self._remember(entry)

    # ── noting ──────────────────────────────────────────────────────────────────────────────────

    def record(self, event: Event) -> None:
        """Write down what is worth it: changes, not new evidence for a state that stays."""
        if event.kind is EventKind.STATUS:
            self._record_state(event)
        elif (kind := _KINDS.get(event.kind)) is not None:
            if event.server is not None and kind is HistoryEventKind.REMOVED:
                self._states.pop(event.server, None)
                self._repeated.pop(event.server, None)
            if event.server is None or kind is HistoryEventKind.REMOVED or ":" in event.message:
                self._add(event, kind)  # a list without names is the first one: no change

    def record_daemon(self, message: str, by: str = "") -> None:
        """About mcpd itself."""
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
        if state is ServerState.PENDING and message in ("connecting", "queued"):
            return  # it always comes before the outcome, which says more
        previous, self._states[event.server] = self._states.get(event.server), (state, message)
        unchanged = previous is not None and previous[0] is state and failure is None and not event.by
        if unchanged and (state is not ServerState.PENDING or previous == (state, message)):
            return  # new evidence, or the same in other words
        repeated = self._repeated.setdefault(event.server, {})
        if state is ServerState.CONNECTED or event.by or len(repeated) > 100:
            repeated.clear()
        times = repeated[state, message] = repeated.get((state, message), 0) + 1
        if times & (times - 1):
            return
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

    def _add(self, event: Event, what: HistoryEventKind, **extra: object) -> None:
        message = self._masked(str(extra.pop("message", event.message)))
        entry = HistoryEntry(at=event.at, what=what, server=event.server, message=message, by=event.by)
        self._append(attrs.evolve(entry, **extra))  # type: ignore[arg-type]  # checked by attrs

    def _masked(self, message: str) -> str:
        return shorten(
            self._mask(message), _MAX_MESSAGE_LENGTH
        )  # in this order: half a secret would not be known

    def _append(self, entry: HistoryEntry) -> None:
        self._remember(entry)
        self._unwritten.append(entry)
        self._has_unwritten.set()

    def _remember(self, entry: HistoryEntry) -> None:
        entries = self._entries.get(entry.server)
        if entries is None:
            entries = self._entries[entry.server] = deque(maxlen=MAX_ENTRIES)
            if len(self._entries) > _MAX_SERVERS:  # names that have come and gone over the years
                del self._entries[next(iter(self._entries))]
        entries.append(entry)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────

    def has_entries(self, server: str) -> bool:
        """Whether anything is remembered of a server of that name."""
        return server in self._entries

    def history(self, server: str | None, limit: int) -> History:
        """The newest `limit` entries, of one server or of everything, oldest first."""
        if server is not None:
            entries = list(self._entries.get(server, ()))
        else:
            entries = sorted((e for kept in self._entries.values() for e in kept), key=lambda entry: entry.at)
        return History(entries=tuple(entries[-limit:] if limit > 0 else ()), dropped=self.dropped)

    # ── the file ────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Write what was noted, soon. When cancelled, what is unwritten is written first."""
        try:
            while True:
                await self._has_unwritten.wait()
                self._has_unwritten = trio.Event()
                await self._write_pending()
        finally:
            with trio.move_on_after(2, shield=True):
                await self._write_pending()

    async def _write_pending(self) -> None:
        while self._unwritten:
            entries, self._unwritten = self._unwritten, []
            data = b"".join(codec.encode(entry) + b"\n" for entry in entries)
            try:
                await trio.to_thread.run_sync(append_lines, self.path, data)
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
                if not self.dropped:
                    log.error(
                        "cannot write %s: %s; history is kept in memory only",
                        self.path,
                        getattr(error, "strerror", None) or error,
                    )
                self.dropped += len(entries)


def append_lines(path: Path, data: bytes, max_size: int = MAX_FILE_SIZE) -> None:
    """Add whole lines to a file, starting a new one where it would grow over `quota`. Blocks; raises OSError.

    Where the last writer was cut off in the middle of a line, that line is ended first.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        size = os.stat(path, follow_symlinks=False).st_size
        if size and size + len(data) > max_size:
            os.replace(path, path.with_name(path.name + ".1"))
    handle = os.open(path, flags, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def _read_entries(path: Path) -> list[HistoryEntry]:
    """The entries at the end of a file, those that can be read; nothing when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_AT_START))
            data = file.read()
    except OSError:
        return []
    entries = []
    for line in data.splitlines():
        try:
            entries.append(_decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # cut off by a crash, or the rest of a line that begins before what was read
    return entries
