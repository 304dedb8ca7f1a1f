"""Detects changes of files: written in place, replaced by rename, or linked to another target.

Uses inotify on the directories, without polling and without a thread. The watchfiles package is not used: it
waits in a thread and does not follow the symbolic links on the way to a file.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import trio

QUIET_PERIOD = 0.25
"""Seconds without another change before a change is reported: editors save in several steps."""

_ATTRIB, _CLOSE_WRITE = 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORIES = 0x1000000
_WANTED = _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
"""A file that is written in place has changed when it is closed."""
_DIRECTORY_EVENTS = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _OVERFLOW | _IGNORED
_EVENT = struct.Struct("iIII")
_MAX_LINKS = 40


class FileWatcher:
    """Waits for changes of some files, which need not exist. Created by `watch_files`."""

    def __init__(self, descriptor: int, paths: Iterable[str]) -> None:
        self._fd = descriptor
        self._paths = list(paths)
        self._directories: dict[int, str] = {}
        self._names: dict[str, set[str]] = {}
        self._update_watches()

    async def next_change(self) -> None:
        """Wait for a change, and until there was none for a while."""
        while not self._process(await self._read_events()):
            pass
        while True:
            with trio.move_on_after(QUIET_PERIOD) as waiting:
                while not self._process(await self._read_events()):
                    pass  # changes of other files in the same directory do not extend the wait
            if waiting.cancelled_caught:
                self._update_watches()
                return

    async def _read_events(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            with suppress(BlockingIOError):
                return os.read(self._fd, 65536)

    def _process(self, events: bytes) -> bool:
        """Process events; return whether one concerns our files."""
        ours = False
        at = 0
        while at < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size
            name = os.fsdecode(events[at : at + length].rstrip(b"\0"))
            at += length
            ours |= self._concerns_us(watch, mask, name)
        if ours:
            self._update_watches()
        return ours

    def _concerns_us(self, watch: int, mask: int, name: str) -> bool:
        if mask & _IGNORED:
            return self._directories.pop(watch, None) is not None
        if mask & _DIRECTORY_EVENTS:
            if self._directories.pop(watch, None) is not None:  # another directory may have its name now
                _libc().inotify_rm_watch(self._fd, watch)
            return True
        directory = self._directories.get(watch, "")
        if name not in self._names.get(directory, ()):
            return False
        return not (mask & _CREATE and _expects_close(os.path.join(directory, name)))

    def _update_watches(self) -> None:
        """Watch the current directories. Repeat after adding new ones, as they may have changed before."""
        while True:
            self._names = {}
            for path in self._paths:
                for directory, name in _watch_points(path):
                    self._names.setdefault(directory, set()).add(name)
            there = set(self._directories.values())
            for watch, directory in list(self._directories.items()):
                if directory not in self._names:
                    _libc().inotify_rm_watch(self._fd, watch)
                    del self._directories[watch]
            new = self._names.keys() - there
            if not [directory for directory in new if self._add_watch(directory)]:
                return

    def _add_watch(self, directory: str) -> bool:
        libc = _libc()
        watch = libc.inotify_add_watch(self._fd, os.fsencode(directory), _WANTED | _ONLY_DIRECTORIES)
        if watch < 0:
            error = ctypes.get_errno()
            if error in _IGNORABLE_ERRNOS:
                return False
            raise OSError(error, os.strerror(error), directory)
        known = watch in self._directories  # the same directory under another name
        self._directories[watch] = directory
        return not known


_IGNORABLE_ERRNOS = (2, 13, 20)  # ENOENT, EACCES, ENOTDIR: it was removed, or is not accessible


@contextmanager
def watch_files(paths: Iterable[str]) -> Iterator[FileWatcher]:
    """Watch these absolute paths. Raises OSError if inotify is missing, or its limits are reached."""
    libc = _libc()
    if not hasattr(libc, "inotify_init1"):
        raise OSError("this system has no inotify")
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    try:
        yield FileWatcher(descriptor, paths)
    finally:
        trio.lowlevel.notify_closing(descriptor)
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _expects_close(path: str) -> bool:
    """Return whether a new file is still being written, so that another event will follow."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


def _watch_points(path: str) -> Iterator[tuple[str, str]]:
    """Yield the directories and names whose change can affect `path`: the file, every symbolic link on the
    way to it, or the first part that does not exist."""
    current, links = "/", 0
    parts = path.split("/")
    while parts:
        name = parts.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)
            continue
        here = os.path.join(current, name)
        try:
            target = os.readlink(here) if stat.S_ISLNK(os.lstat(here).st_mode) else None
        except OSError:
            yield current, name
            return
        if target is not None and links < _MAX_LINKS:
            yield current, name
            links += 1
            current = "/" if target.startswith("/") else current
            parts = target.split("/") + parts
        elif parts and any(part not in ("", ".") for part in parts):
            current = here
        else:
            yield current, name
            return
