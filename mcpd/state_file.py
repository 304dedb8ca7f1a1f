"""State that must last: toggles, what was learnt about eras, an applied set, the servers' lists.

The user's own file is never written from here. Saving happens beside the loop and is atomic; a file
that cannot be read is kept aside, and the daemon starts with an empty one.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import trio

from mcpd.model import codec
from mcpd.support.atomic_files import remove_stale_temporaries, write_atomically

log = logging.getLogger("mcpd.state_file")

_RETRY_INTERVAL = 2.0
"""Seconds until the next attempt to write what a full disk would not take."""
_MAX_CACHED_LISTS = 500
"""Files of lists that are kept: one for each definition that there ever was."""


@attrs.frozen(kw_only=True)
class AppliedSet:
    """A set of servers that came through the API: in force until the configuration changes."""

    servers: Mapping[str, Mapping[str, object]]
    config_digest: str
    """Of the configuration it replaced: when that is no longer what is on disk, the file wins."""


@attrs.frozen(kw_only=True)
class PersistentState:
    """Everything in the state file."""

    toggles: Mapping[str, bool | float] = attrs.field(factory=dict)
    """Name → on or off, or off until that moment (seconds since 1970) and on from then; for servers a person
    has toggled, and wins over `enabled` in the definition."""
    eras: Mapping[str, str] = attrs.field(factory=dict)
    """Fingerprint of a definition → `modern` or `legacy`."""
    quiet: tuple[str, ...] = ()
    """Fingerprints of servers that have shown that they never ask in the middle of a call."""
    applied: AppliedSet | None = None


class StateFile:
    """Reads once, at construction; `run` writes whatever has been changed since."""

    def __init__(self, state_dir: Path, cache_dir: Path) -> None:
        self._path = state_dir / "state.json"
        self._cache_directory = cache_dir / "lists"
        self._unsaved_lists: dict[str, bytes] = {}
        """Those still to be written, by fingerprint."""
        self._cache_failed = False
        """Said already that lists cannot be written."""
        self._changed = trio.Event()
        self.problem = ""
        """Why the state could not be read or written; shown in the log, tried again until it can."""
        remove_stale_temporaries(self._path)
        self.state = self._saved = self._read()

    # ── toggles, eras, the applied set ──────────────────────────────────────────────────────────

    def set_toggle(self, server: str, enabled: bool | float) -> None:
        """On, off, or off until that moment."""
        self._change(toggles={**self.state.toggles, server: enabled})

    def is_enabled(self, server: str) -> bool | None:
        """What a person last said of now; None when nobody has."""
        value = self.state.toggles.get(server)
        return value if value is None or isinstance(value, bool) else value <= time.time()

    def disabled_until(self, server: str) -> float | None:
        """The moment, gone by or not, that it was switched off until; None: no end was said."""
        value = self.state.toggles.get(server)
        return None if isinstance(value, bool) else value

    def clear_toggle(self, server: str) -> None:
        if server in self.state.toggles:
            self._change(toggles={name: on for name, on in self.state.toggles.items() if name != server})

    def era(self, fingerprint: str) -> str | None:
        return self.state.eras.get(fingerprint)

    def set_era(self, fingerprint: str, era: str) -> None:
        if self.state.eras.get(fingerprint) != era:
            newest = dict(list(self.state.eras.items())[-500:])
            newest.pop(fingerprint, None)
            self._change(eras={**newest, fingerprint: era})

    def is_quiet(self, fingerprint: str) -> bool:
        """Whether that server is known never to ask."""
        return fingerprint in self.state.quiet

    def set_quiet(self, fingerprint: str, quiet: bool) -> None:
        if quiet is not self.is_quiet(fingerprint):
            others = tuple(each for each in self.state.quiet[-500:] if each != fingerprint)
            self._change(quiet=(*others, fingerprint) if quiet else others)

    def set_applied(self, applied: AppliedSet | None) -> None:
        if applied != self.state.applied:
            self._change(applied=applied)

    def _change(self, **changes: object) -> None:
        self.state = attrs.evolve(self.state, **changes)  # type: ignore[arg-type]  # checked by attrs
        self._changed.set()

    # ── the lists that servers had ──────────────────────────────────────────────────────────────

    def cached_lists(self, fingerprint: str) -> bytes | None:
        try:
            return (self._cache_directory / f"{fingerprint}.json").read_bytes()
        except OSError:
            return None

    def cache_lists(self, fingerprint: str, data: bytes) -> None:
        """Written soon, by `run`."""
        self._unsaved_lists[fingerprint] = data
        self._changed.set()

    async def _save_lists(self) -> None:
        for fingerprint, data in list(self._unsaved_lists.items()):
            path = self._cache_directory / f"{fingerprint}.json"
            try:
                await trio.to_thread.run_sync(self._save_list, path, data)
            except (OSError, RuntimeError) as error:
                if not self._cache_failed:
                    log.warning("cannot cache lists: %s", error)
                self._cache_failed = True
                continue
            self._cache_failed = False
            if self._unsaved_lists.get(fingerprint) is data:
                del self._unsaved_lists[fingerprint]

    def _save_list(self, path: Path, data: bytes) -> None:
        """Each definition has a file; those not written for longest make room."""
        write_atomically(path, data, 0o600)
        by_age = sorted(self._cache_directory.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for file in by_age[:-_MAX_CACHED_LISTS]:
            file.unlink(missing_ok=True)

    # ── the file ────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Save every change, soon, and what the disk would not take as soon as it does again. When
        cancelled, what is unsaved is saved first."""
        try:
            while True:
                unsaved = self._saved is not self.state or self._unsaved_lists
                with trio.move_on_after(_RETRY_INTERVAL if unsaved else math.inf):
                    await self._changed.wait()
                self._changed = trio.Event()
                await self._save_changes()
        finally:
            with trio.move_on_after(2, shield=True):
                await self._save_changes()

    async def _save_changes(self) -> None:
        if self._saved is not self.state:
            await self._save(self.state)
        await self._save_lists()

    async def _save(self, state: PersistentState) -> None:
        data = codec.encode(state)
        try:
            await trio.to_thread.run_sync(write_atomically, self._path, data, 0o600)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            problem = f"cannot write {self._path}: {getattr(error, 'strerror', None) or error}"
            if problem != self.problem:
                log.error("%s; until it can, toggles would not survive a restart", problem)
            self.problem = problem
        else:
            self._saved, self.problem = state, ""

    def _read(self) -> PersistentState:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return PersistentState()
        except OSError as error:
            self.problem = f"cannot read {self._path}: {error.strerror or error}"
            log.error("%s; starting without toggles", self.problem)
            return PersistentState()
        try:
            return codec.decode(data, PersistentState)
        except codec.ShapeError as error:
            backup = self._path.with_name(f"state.json.unreadable-{int(time.time())}")
            self.problem = f"{self._path} cannot be used ({error}); it was kept as {backup.name}"
            log.error("%s; starting without toggles", self.problem)
            try:
                self._path.rename(backup)
            except OSError:
                log.error("and %s cannot be renamed", self._path)
            return PersistentState()


def fingerprint(identity: object) -> str:
    """A stable name for a definition's identity, safe in a file name; tells nothing of its secrets."""
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
