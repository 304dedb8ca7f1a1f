"""Reads secrets from files; a disk that does not answer affects only the servers that need it."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from functools import partial

import msgspec
import trio

from mcpd.config.secret_store import fetch_secret, secrets_path
from mcpd.model.server_spec import SecretReference, UnavailableSecret
from mcpd.model.text import shorten

SECRET_TIMEOUT = 30.0
"""Seconds per secret: a password manager may ask the user for confirmation."""


class _Read(msgspec.Struct, eq=False):
    """A read of one file in a thread."""

    began_at: float
    start: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Taken for ever, by the thread when it begins or by a caller that gives up before."""
    has_finished: bool = False
    """Set by the thread."""
    released: trio.Event = msgspec.field(default_factory=trio.Event)
    """Set when the caller has a result or has given up."""

    @property
    def hangs(self) -> bool:
        return self.released.is_set() and not self.has_finished


class SecretReads:
    """Reads each file at most once at a time, in threads that nothing else uses. Created once by the daemon.

    A read that hangs keeps its thread, because a thread cannot be stopped. Its file is not read again until
    the read has finished, so that there is at most one thread for each file. No other limit applies: a read
    must not wait for one that hangs.
    """

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(math.inf)
        self._reads: dict[str, _Read] = {}

    async def fetch(self, reference: SecretReference, environ: Mapping[str, str]) -> str | UnavailableSecret:
        """Look up any reference except a command, for at most SECRET_TIMEOUT seconds."""
        name = reference.arguments[0]
        place = str(secrets_path(environ)) if reference.kind == "secret" else f"{reference.kind} {name}"
        what = place if reference.kind == "secret" else f"the {place}"
        fetch = partial(fetch_secret, reference, environ)
        with trio.move_on_after(SECRET_TIMEOUT):
            while (other := self._reads.get(place)) is not None and not other.has_finished:
                if other.hangs:
                    seconds = trio.current_time() - other.began_at
                    return _unavailable(f"reading {shorten(what, 200)} has not finished for {seconds:.0f} s")
                await other.released.wait()
            return await self._read(place, fetch)
        return _unavailable(f"reading {shorten(what, 200)} did not finish within {SECRET_TIMEOUT:g} s")

    async def _read(self, place: str, fetch: partial[str | UnavailableSecret]) -> str | UnavailableSecret:
        read = self._reads[place] = _Read(trio.current_time())

        def run() -> str | UnavailableSecret:
            if not read.start.acquire(blocking=False):
                return ""  # nobody waits for it, and the next caller reads the file
            try:
                return fetch()
            finally:
                read.has_finished = True

        try:
            return await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._threads)
        finally:
            read.has_finished = read.has_finished or read.start.acquire(blocking=False)
            read.released.set()
            if read.has_finished and self._reads.get(place) is read:  # another may have begun since
                del self._reads[place]


def _unavailable(message: str) -> UnavailableSecret:
    return UnavailableSecret(message, "check that its disk or network share answers, or move the file")
