"""State that survives restarts: toggles, detected protocol eras, and a set applied through the API.

The configuration file is never written here. Writes are atomic and run in a thread. A state file that
cannot be read is renamed, and the daemon starts with an empty state. Daemons with different sockets may
share the file: each writes only what it has changed, and reads the others' changes when it starts.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from mcpd.files.atomic import remove_stale_temporaries, write_atomically
from mcpd.files.own_thread import OwnThread
from mcpd.files.paths import give_back
from mcpd.files.regular import read_regular_file
from mcpd.model import codec
from mcpd.model.text import shorten
from mcpd.state.cached_lists import CachedLists

log = logging.getLogger("mcpd.state.state_file")

_RETRY_INTERVAL = 2.0
"""Seconds until a failed write is retried."""
_SAVE_INTERVAL = 0.1
"""Seconds between two writes."""
_SAVE_TIMEOUT = 5.0
"""Seconds that `wait_saved` waits for a disk that does not answer."""
_MAX_STATE_SIZE = 32 << 20
"""Bytes. A larger file was not written by mcpd and is ignored."""
_LATEST = 253402300800.0
"""Unix seconds. The year 10000, which cannot be formatted."""


_Value = TypeVar("_Value")


@attrs.frozen(kw_only=True)
class AppliedSet:
    """A set of servers applied through the API; active until the configuration file changes."""

    servers: Mapping[str, Mapping[str, object]]
    config_digest: str
    """Digest of the configuration it replaced. If the file differs from it, the file wins."""


def _check_times(_: object, field: object, toggles: Mapping[str, bool | float]) -> None:
    for server, until in toggles.items():
        if not 0 <= until < _LATEST:
            raise ValueError(f"{server} is disabled until {until:g} s, which is not a date")


@attrs.frozen(kw_only=True)
class PersistentState:
    """The contents of the state file."""

    toggles: Mapping[str, bool | float] = attrs.field(factory=dict, validator=_check_times)
    """Server → enabled, disabled, or disabled until a time (Unix seconds). Overrides `enabled` in the
    definition. Raises ValueError for a time that cannot be formatted."""
    after_timed: Mapping[str, bool] = attrs.field(factory=dict)
    """Server → the toggle to return to when its timed disable ends. Others return to the definition."""
    eras: Mapping[str, str] = attrs.field(factory=dict)
    """Fingerprint of a definition → `modern` or `legacy`."""
    asking: Mapping[str, Mapping[str, bool]] = attrs.field(factory=dict)
    """Fingerprint of a definition → method and tool → whether the server asks clients during such calls."""
    applied: AppliedSet | None = None

    def with_changes(self, before: PersistentState, after: PersistentState) -> PersistentState:
        """Return this state with what was changed between two others."""
        return PersistentState(
            toggles=_with_changes(self.toggles, before.toggles, after.toggles),
            after_timed=_with_changes(self.after_timed, before.after_timed, after.after_timed),
            eras=_with_changes(self.eras, before.eras, after.eras),
            asking=_with_changes(self.asking, before.asking, after.asking),
            applied=after.applied if after.applied != before.applied else self.applied,
        )


def _with_changes(
    there: Mapping[str, _Value], before: Mapping[str, _Value], after: Mapping[str, _Value]
) -> Mapping[str, _Value]:
    """Return `there` without the names removed, and with those set, between `before` and `after`."""
    kept = {name: value for name, value in there.items() if name in after or name not in before}
    return kept | {name: value for name, value in after.items() if before.get(name) != value}


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other daemons from writing to a state directory during the block, which must be short.

    If one of them holds the lock for longer than a second, or the file system has no locks, go on without.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            for _ in range(100):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.01)
                else:
                    break
        yield


class StateFile:
    """Reads the file when constructed; `run` writes the changes."""

    def __init__(self, state_dir: Path, cache_dir: Path) -> None:
        self._path = state_dir / "state.json"
        self._changed = trio.Event()
        self.lists = CachedLists(cache_dir / "lists", lambda: self._changed.set())
        self._thread = OwnThread()
        self.problem = ""
        """Why the latest changes could not be saved; empty if they are, or if nothing has failed yet."""
        self.read_problem = ""
        """Why the daemon started with an empty state although there was a file; empty otherwise."""
        self._set_aside: Path | None = None
        """Where the file is that could not be read."""
        self._changes = self._tried_changes = 0
        """How often the state has changed, and how many changes the last attempt to save included."""
        self._was_tried = trio.Event()
        self._is_running = False
        self._shared_with = ""
        self.claimed = -1
        """The descriptor with the claim; -1 if there is none."""
        """The warning about another daemon; empty if there is none."""
        self._known: object = None
        """Identifies the file that was read or written last."""
        remove_stale_temporaries(self._path)
        self.state = self._saved = self._read()

    def set_toggle(self, server: str, enabled: bool | float) -> None:
        """Enable a server, disable it, or disable it until a time (Unix seconds) and then return to this."""
        now = self.state.toggles.get(server)
        after = {name: value for name, value in self.state.after_timed.items() if name != server}
        if not isinstance(enabled, bool):
            before = now if isinstance(now, bool) else self.state.after_timed.get(server)
            after |= {} if before is None else {server: before}
        self._change(toggles={**self.state.toggles, server: enabled}, after_timed=after)

    def is_enabled(self, server: str) -> bool | None:
        """Return whether the server is enabled now; None if that is up to its definition."""
        value = self.state.toggles.get(server)
        if value is None or isinstance(value, bool):
            return value
        return False if value > time.time() else self.state.after_timed.get(server)

    def disabled_until(self, server: str) -> float | None:
        """Return the time, past or future, at which a timed disable ends; None if there is none."""
        value = self.state.toggles.get(server)
        return None if isinstance(value, bool) else value

    def end_timed_disable(self, server: str) -> None:
        """Return to the toggle before the timed disable, or to none."""
        if self.disabled_until(server) is not None:
            if (before := self.state.after_timed.get(server)) is None:
                self.clear_toggle(server)
            else:
                self.set_toggle(server, before)

    def clear_toggle(self, server: str) -> None:
        if server in self.state.toggles:
            self._change(
                toggles={name: on for name, on in self.state.toggles.items() if name != server},
                after_timed={name: on for name, on in self.state.after_timed.items() if name != server},
            )

    def era(self, fingerprint: str) -> str | None:
        return self.state.eras.get(fingerprint)

    def set_era(self, fingerprint: str, era: str) -> None:
        if self.state.eras.get(fingerprint) != era:
            newest = dict(list(self.state.eras.items())[-500:])
            newest.pop(fingerprint, None)
            self._change(eras={**newest, fingerprint: era})

    def asking(self, fingerprint: str) -> Mapping[str, bool]:
        """Return what `set_asking` has stored."""
        return self.state.asking.get(fingerprint, {})

    def set_asking(self, fingerprint: str, asking: Mapping[str, bool]) -> None:
        newest = dict(list(self.state.asking.items())[-500:])
        newest.pop(fingerprint, None)
        self._change(asking={**newest, fingerprint: asking})

    def set_applied(self, applied: AppliedSet | None) -> None:
        if applied != self.state.applied:
            self._change(applied=applied)

    def _change(self, **changes: object) -> None:
        self.state = attrs.evolve(self.state, **changes)  # type: ignore[arg-type]  # checked by attrs
        self._changes += 1
        self._changed.set()

    async def wait_saved(self) -> str:
        """Wait until all changes are saved, or until saving them has failed once. Return why they are not
        saved; empty if they are. Does not wait longer than five seconds, and not if `run` does not run.
        """
        wanted = self._changes
        with trio.move_on_after(_SAVE_TIMEOUT) as waiting:
            while self._is_running and self._tried_changes < wanted:
                await self._was_tried.wait()
        if waiting.cancelled_caught:
            self._report(f"cannot write {self._path}: its disk has not answered within {_SAVE_TIMEOUT:g} s")
        return self.problem

    @property
    def warnings(self) -> tuple[str, ...]:
        """What users must know about the state: each says what is wrong and, after a semicolon, what to do.

        That the file could not be read is mentioned until the copy that was kept of it is deleted.
        """
        found = [unsaved_warning(self.problem)] if self.problem else []
        if self.read_problem and (self._set_aside is None or self._set_aside.exists()):
            found.append(self.read_problem)
        return (*found, self._shared_with) if self._shared_with else tuple(found)

    async def run(self) -> None:
        """Save changes as they occur, retry failed writes, and save once more when cancelled.

        Changes in quick succession, as when many servers connect, are saved together.
        """
        self._is_running = True
        if self._path.parent.exists() and not os.access(self._path.parent, os.W_OK):
            self._saved = attrs.evolve(
                self.state
            )  # try to save it, so that users learn of it before a change
        try:
            while True:
                unsaved = self._saved is not self.state or self.lists.has_unsaved
                with trio.move_on_after(_RETRY_INTERVAL if unsaved else math.inf):
                    await self._changed.wait()
                self._changed = trio.Event()
                await self.flush()
                await trio.sleep(_SAVE_INTERVAL)
        finally:
            with trio.move_on_after(2, shield=True):
                await self.flush()
                await self._thread.wait_idle()
                await self.lists.wait_idle()
            self._is_running = False

    async def flush(self) -> None:
        """Write what is not written yet."""
        if self._saved is not self.state:
            await self._save(self.state)
        await self.lists.save()

    async def _save(self, state: PersistentState) -> None:
        changes = self._changes
        try:
            await self._thread.run(self._write, self._saved, state)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._report(
                f"cannot write {self._path}: {getattr(error, 'strerror', None) or error}{self._owner()}"
            )
        else:
            self._saved = state
            self._report("")
        self._tried_changes = changes
        tried, self._was_tried = self._was_tried, trio.Event()
        tried.set()

    def _owner(self) -> str:
        """Return who owns the directory if it is somebody else, usually root after a `sudo mcpctl`."""
        with suppress(OSError):
            if (uid := self._path.parent.stat().st_uid) != os.getuid():
                return f", because its directory belongs to user {uid}"
        return ""

    def claim(self) -> None:
        """Note that this daemon uses the directory, and whether another one does, perhaps on another machine.

        The kernel, or the file server, ends the claim with the process, unless another has its descriptor.
        """
        with suppress(OSError):  # a file system without locks
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._path.with_name("owner"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                self._shared_with = (
                    f"another mcpd ({who}) uses {self._path.parent}, too, so they change each other's state; "
                    "set XDG_STATE_HOME for one of them"
                )
                log.warning("%s", self._shared_with)
                return
            self.claimed = handle
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def _report(self, problem: str) -> None:
        """Note that saving has failed, or has succeeded, and say so once."""
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            log.error("%s", unsaved_warning(problem))
        else:
            log.info("saved %s again", self._path)

    def _write(self, before: PersistentState, after: PersistentState) -> None:
        """Write what has changed to the file. Runs in the thread. Raises OSError."""
        with _locked(self._path.parent):
            if self._identify() != self._known:  # another daemon has written it
                with suppress(OSError, codec.ShapeError):
                    there = codec.decode(read_regular_file(self._path, _MAX_STATE_SIZE), PersistentState)
                    after = there.with_changes(before, after)
            write_atomically(self._path, codec.encode(after), 0o600)
            self._known = self._identify()

    def _identify(self) -> object:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> PersistentState:
        self._known = self._identify()
        try:
            members = codec.decode(read_regular_file(self._path, _MAX_STATE_SIZE), dict[str, object])
            known = {field.name for field in attrs.fields(PersistentState)}
            if unknown := ", ".join(sorted(members.keys() - known)):
                log.warning("%s is from another version; ignored: %s", self._path, shorten(unknown))
            return codec.structure({name: members[name] for name in members.keys() & known}, PersistentState)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._set_file_aside(f"{self._path} cannot be read ({error.strerror or error})")
        except codec.ShapeError as error:
            self._set_file_aside(f"{self._path} is invalid ({shorten(str(error))})")
        return PersistentState()

    def _set_file_aside(self, cause: str) -> None:
        """Rename the file, because the next write would replace it."""
        aside = self._path.with_name(f"state.json.unreadable-{int(time.time())}")
        try:
            self._path.rename(aside)
        except OSError as error:
            kept, step = f"could not be renamed ({error.strerror or error})", f"move {self._path} away"
        else:
            self._set_aside = aside
            kept, step = f"was renamed to {aside.name}", f"delete {aside}"
        self.read_problem = (
            f"{cause} and {kept}, so mcpd started without what was enabled, disabled or applied; "
            f"disable servers again if necessary, then {step}"
        )
        log.error("%s", self.read_problem)


def unsaved_warning(problem: str) -> str:
    """Say what follows from a problem of saving the state, and what to do."""
    owner = re.search(r"cannot write (.*)/[^/]*: .* belongs to user", problem)
    fix = give_back(owner[1]) if owner else "free space on that disk, or make the file writable"
    return f"{problem}, so what you enable, disable or apply is lost when mcpd restarts; {fix}"
