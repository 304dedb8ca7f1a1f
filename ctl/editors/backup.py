"""What an editor's file was before we changed it: kept until it is put back."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from ctl.editors.text_patch import DiffHunk
from mcpd.config.in_place_edits.document import KeyPath
from mcpd.support.atomic_files import write_atomically
from mcpd.support.paths import private_directory, state_dir


@attrs.frozen
class DisabledEntry:
    """An entry that was switched off, or taken out, because mcpd has the server."""

    name: str
    entry: dict[str, object] = attrs.field(repr=False)
    removed: bool
    """Else it was switched off."""


@attrs.frozen
class BackupRecord:
    """One file as it was, and what we made of it."""

    path: str
    existed: bool
    original: bytes = attrs.field(repr=False)
    written_digest: str
    """SHA-256 of what we wrote, in hex: while the file is that, nobody else has changed it."""
    slot: KeyPath
    disabled: tuple[DisabledEntry, ...] = ()
    created_directories: tuple[str, ...] = ()
    """Directories that were made for it, outermost first."""
    changes: tuple[DiffHunk, ...] = ()
    """What we changed beside our own entry, as lines."""
    changes_with_entry: tuple[DiffHunk, ...] = ()
    """The same with our entry: one of the two still fits when somebody has edited close to it."""


class EditorBackups:
    """The records, one for each file, in a directory that only the user can read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.directory = Path(state_dir(environ)) / "editors"

    def original_path(self, path: Path) -> Path:
        """Where the bytes of the file as it was are kept."""
        return self.directory / f"{_path_id(path)}-{path.name}"

    def load(self, path: Path) -> BackupRecord | None:
        """The record of a file; None when there is none, or it cannot be read."""
        try:
            data = json.loads(self._record_path(path).read_bytes())
            return BackupRecord(
                data["path"],
                data["existed"],
                self.original_path(path).read_bytes(),
                data["after"],
                tuple(data["slot"]),
                tuple(DisabledEntry(one["name"], one["entry"], one["removed"]) for one in data["taken"]),
                tuple(data["made"]),
                *(
                    tuple(DiffHunk(*map(tuple, one)) for one in data.get(kind, ()))
                    for kind in ("changes", "with_ours")
                ),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def save(self, record: BackupRecord) -> None:
        """Write it down, the bytes first: a record without them is none. May raise OSError, UnusablePath."""
        private_directory(str(self.directory.parent))
        private_directory(str(self.directory))
        path = Path(record.path)
        facts = {
            "path": record.path,
            "existed": record.existed,
            "after": record.written_digest,
            "slot": list(record.slot),
            "taken": [attrs.asdict(one) for one in record.disabled],
            "made": list(record.created_directories),
            "changes": [attrs.astuple(one) for one in record.changes],
            "with_ours": [attrs.astuple(one) for one in record.changes_with_entry],
        }
        write_atomically(self.original_path(path), record.original, 0o600)
        write_atomically(self._record_path(path), json.dumps(facts, indent=1).encode(), 0o600)

    def delete(self, path: Path) -> None:
        """The file is as it was, or ours no longer."""
        for kept in (self._record_path(path), self.original_path(path)):
            with contextlib.suppress(OSError):
                kept.unlink()

    def other_files(self, paths: Iterable[Path]) -> list[Path]:
        """The files with a record that are not among `paths`. Those that are gone are forgotten."""
        known = {os.path.realpath(path) for path in paths}
        left: list[Path] = []
        for facts in sorted(self.directory.glob("*.json")):
            try:
                path = Path(json.loads(facts.read_bytes())["path"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # the kept bytes of a file may be JSON, too
            if facts != self._record_path(path) or os.path.realpath(path) in known:
                continue
            if os.path.lexists(path):
                left.append(path)
            else:
                self.delete(path)
        return left

    def _record_path(self, path: Path) -> Path:
        return self.directory / f"{_path_id(path)}.json"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _path_id(path: Path) -> str:
    return digest(os.fsencode(os.path.realpath(path)))[:16]
