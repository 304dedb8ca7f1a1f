"""Results of tools that were too long for their clients: files in the cache directory, for a day.

Each belongs to the client whose call it answered. Their index is in memory: after a restart of the daemon,
only who reads the files themselves still finds them.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TextIO, TypeVar

import attrs

from mcpd.files.own_thread import OwnThread
from mcpd.files.paths import private_directory
from mcpd.files.regular import open_regular_file
from mcpd.model.errors import UnknownResource

URI_PREFIX = "mcpd://results/"
MAX_AGE = 86_400.0
"""Seconds."""
MAX_BYTES, MAX_BYTES_OF_OWNER = 256 << 20, 64 << 20
"""Of all files, and of those of one client. The oldest are removed first, the newest never."""
T = TypeVar("T")


@attrs.frozen(eq=False)
class KeptResult:
    id: str
    owner: object
    path: Path
    is_text: bool
    """Whether the file is the result's only text. Otherwise it is the whole result, as JSON."""
    size: int
    """Bytes."""
    until: float
    """`time.time()` at which it is removed."""

    @property
    def uri(self) -> str:
        return URI_PREFIX + self.id

    @property
    def mime_type(self) -> str:
        return "text/plain" if self.is_text else "application/json"


class KeptResults:
    """The files in a directory, which only their user can read. It is created with the first one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread, self._reading = OwnThread(), OwnThread()
        self._kept: dict[str, KeptResult] = {}
        self._has_found_earlier = False

    def __repr__(self) -> str:
        return f"<KeptResults in {self._directory}: {len(self._kept)}>"

    async def keep(self, owner: object, data: bytes, *, is_text: bool) -> KeptResult:
        """Write a file and return what is known of it. Raises OSError, UnusablePath."""
        key = secrets.token_hex(16)
        path = self._directory / f"{key}.{'txt' if is_text else 'json'}"
        kept = KeptResult(key, owner, path, is_text, len(data), time.time() + MAX_AGE)
        if not self._has_found_earlier:
            self._has_found_earlier = True
            self._kept = {**await self._thread.run(self._find_earlier), **self._kept}
        old = self._take_old(kept)
        await self._thread.run(self._write, path, data, old)
        self._kept[key] = kept
        return kept

    async def read(self, key: str, owner: object, read: Callable[[KeptResult, TextIO], T]) -> T:
        """Return what `read` returns for a result and its text. It runs in a thread, after all others.

        Raises UnknownResource, also for the result of another client.
        """
        kept = self._kept.get(key)
        if kept is None or kept.owner != owner or kept.until < time.time():
            text = "this client has no such result; mcpd keeps results for a day, until it is restarted"
            raise UnknownResource(text, URI_PREFIX + key)
        try:
            return await self._reading.run(_read, kept, read)
        except OSError as error:
            text = f"the file of this result cannot be read: {error.strerror or error}"
            raise UnknownResource(text, kept.uri) from None

    def _take_old(self, new: KeptResult) -> list[Path]:
        """Forget what has to make room for `new`, and return its files."""
        now, total, of_owner, old = time.time(), new.size, new.size, []
        for kept in reversed(list(self._kept.values())):
            total += kept.size
            of_owner += kept.size if kept.owner == new.owner else 0
            too_much = kept.owner == new.owner and of_owner > MAX_BYTES_OF_OWNER
            if kept.until < now or total > MAX_BYTES or too_much:
                total -= kept.size
                old.append(self._kept.pop(kept.id).path)
        return old

    def _write(self, path: Path, data: bytes, old: list[Path]) -> None:
        private_directory(str(self._directory))
        for each in old:
            with suppress(OSError):
                each.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def _find_earlier(self) -> dict[str, KeptResult]:
        """Return what earlier daemons have left here. It belongs to no client now, but takes room."""
        private_directory(str(self._directory))
        found = []
        for path in filter(Path.is_file, self._directory.iterdir()):
            with suppress(OSError):
                status = path.lstat()
                until = status.st_mtime + MAX_AGE
                found.append(KeptResult(path.stem, None, path, True, status.st_size, until))
        return {each.id: each for each in sorted(found, key=lambda each: each.until)}


def _read(kept: KeptResult, read: Callable[[KeptResult, TextIO], T]) -> T:
    with open_regular_file(kept.path) as (file, _):
        return read(kept, TextIOWrapper(BufferedReader(file), "utf-8", newline=""))
