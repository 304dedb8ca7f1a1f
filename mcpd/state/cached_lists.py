"""The lists of servers, kept for the next start of the daemon: one file for each definition ever used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from mcpd.files.atomic import write_atomically
from mcpd.files.own_thread import OwnThread
from mcpd.files.regular import read_regular_file
from mcpd.model.server_spec import ServerSpec

log = logging.getLogger("mcpd.state.cached_lists")

_MAX_FILES = 500
_MAX_SIZE = 64 << 20
"""Bytes. Larger files were not written by mcpd and are ignored."""


def definition_key(spec: ServerSpec) -> str:
    """Return the key. Definitions have the same one if they lead to the same server in the same way."""
    identity = (spec.person, *spec.identity) if spec.person else spec.identity
    return fingerprint(identity if spec.era == "auto" else (spec.era, *identity))


def fingerprint(identity: object) -> str:
    """Return a stable name for a definition, safe in file names. Does not reveal its secrets."""
    return sha256(repr(identity).encode()).hexdigest()[:32]


class CachedLists:
    """The files in a directory. `StateFile.run` writes them."""

    def __init__(self, directory: Path, on_change: Callable[[], None]) -> None:
        self._directory = directory
        self._on_change = on_change
        self._unsaved: dict[str, bytes] = {}
        self._thread = OwnThread()
        self._has_failed = False
        """The failure was logged already."""

    def __repr__(self) -> str:
        return f"<CachedLists in {self._directory}, {len(self._unsaved)} unsaved>"

    def path(self, key: str) -> Path:
        """Return the file for the definition with this key."""
        return self._directory / f"{key}.json"

    def read(self, key: str) -> bytes | None:
        """Return what was kept. A file that cannot be read is logged and ignored."""
        try:
            return read_regular_file(self.path(key), _MAX_SIZE)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.warning("ignoring the cached tool list %s: %s", self.path(key), error.strerror or error)
            return None

    def keep(self, key: str, data: bytes) -> None:
        """Keep a server's lists for the next start. Does not block."""
        self._unsaved[key] = data
        self._on_change()

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    async def save(self) -> None:
        """Write what is not written yet. A failure is logged once, and the next call tries again."""
        pending = dict(self._unsaved)
        if not pending:
            return
        written: list[str] = []
        try:
            await self._thread.run(self._write, pending, written)
        except (OSError, RuntimeError) as error:
            if not self._has_failed:
                log.warning("cannot write the catalog cache: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False
        for key in written:
            if self._unsaved.get(key) is pending[key]:
                del self._unsaved[key]

    async def wait_idle(self) -> None:
        """Wait until nothing is being written."""
        await self._thread.wait_idle()

    def _write(self, pending: dict[str, bytes], written: list[str]) -> None:
        """Write files, and delete the oldest above the limit. Raises an OSError after all of them."""
        problem: OSError | None = None
        for key, data in pending.items():
            try:
                write_atomically(self.path(key), data, 0o600)
                written.append(key)
            except OSError as error:
                problem = error
        by_age = sorted(self._directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in by_age[:-_MAX_FILES]:
            file.unlink(missing_ok=True)
        if problem is not None:
            raise problem
