"""Legacy sessions outlive the daemon: a file has what the next one needs to continue them.

A client of these revisions declares itself and subscribes only once, and many libraries give up when their
session has ended. The file contains only a hash of each session id, so it gives nobody access.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec
import trio
from msgspec import Raw

from mcpd.files.atomic import remove_stale_temporaries, write_atomically
from mcpd.files.own_thread import OwnThread
from mcpd.files.regular import read_regular_file

log = logging.getLogger("mcpd.http")

MAX_SESSIONS = 256
IDLE_TIMEOUT = 4 * 3600.0
"""Seconds without a request or open stream after which a session ends."""
MAX_SIZE = 8 << 20
"""Bytes of the file. Beyond it, the sessions that were used last are kept."""
_MAX_SESSION = 256 << 10
"""Bytes of a session in it. One with longer subscriptions is not kept."""
_SAVE_INTERVAL = 0.1
_SAVE_TIMEOUT = 2.0


class KeptSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session in the file."""

    key: str
    """See `hashed`."""
    scope: str
    """The path that it belongs to."""
    principal: str
    params: Raw
    """See `handshake_params`."""
    log_level: str = ""
    subscribed: list[str] = []
    used_at: float
    """Unix seconds."""


def hashed(session_id: str) -> str:
    return sha256(session_id.encode()).hexdigest()


class SessionFile:
    """The kept sessions. Reads the file when constructed; `run` writes the changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = OwnThread()
        self._changed = trio.Event()
        self._has_failed = False
        remove_stale_temporaries(path)
        self.sessions = self._read()
        """By hash. The owner changes it, and then calls `save_soon`."""

    def save_soon(self) -> None:
        self._changed.set()

    async def run(self, update: Callable[[], None]) -> None:
        """Save changes until cancelled, and then once more. `update` brings `sessions` up to date."""
        try:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                update()
                await self._save()
                await trio.sleep(_SAVE_INTERVAL)
        finally:
            with trio.move_on_after(_SAVE_TIMEOUT, shield=True):
                update()
                await self._save()

    def save_now(self) -> None:
        """Write the file. Raises OSError."""
        self._write(list(self.sessions.values()))

    async def _save(self) -> None:
        """Write the file. A failure is logged once, and the next change tries again."""
        try:
            await self._thread.run(self._write, list(self.sessions.values()))
            self._has_failed = False
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            if not self._has_failed:
                log.warning("cannot write %s, so HTTP sessions end with mcpd: %s", self._path, error)
            self._has_failed = True

    def _write(self, sessions: list[KeptSession]) -> None:
        """Runs in the thread. Raises OSError."""
        lines, size = [], 0
        for each in sorted(sessions, key=lambda each: each.used_at, reverse=True)[:MAX_SESSIONS]:
            line = msgspec.json.encode(each) + b"\n"
            if len(line) <= _MAX_SESSION and (size := size + len(line)) <= MAX_SIZE:
                lines.append(line)
        write_atomically(self._path, b"".join(lines), 0o600)

    def _read(self) -> dict[str, KeptSession]:
        """Return the sessions that had not expired when the file was written, as a daemon that stops does.

        What cannot be read is logged and ignored.
        """
        found: dict[str, KeptSession] = {}
        problem = ""
        try:
            lines = read_regular_file(self._path, MAX_SIZE).splitlines()
            saved_at = self._path.stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return found
        except OSError as error:
            lines, saved_at, problem = [], 0.0, error.strerror or str(error)
        for line in lines[:MAX_SESSIONS]:
            try:
                kept = msgspec.json.decode(line, type=KeptSession)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                problem = str(error)
                continue
            if kept.used_at > saved_at - IDLE_TIMEOUT:
                found[kept.key] = kept
        if problem:
            log.warning("%s cannot be read, so HTTP sessions have ended: %s", self._path, problem)
        return found
