"""Backups of the files that `mcpctl install` changes, and how the changes are undone later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ctl.editors.config_files import EditorSpec
from ctl.editors.mcpd_entry import (
    EXCLUDED,
    FileContent,
    disable_method,
    entry_at,
    is_list,
    set_listed,
)
from mcpd.config.in_place_edits.document import (
    Document,
    KeyPath,
    parse_document,
)
from mcpd.files.atomic import write_atomically
from mcpd.files.paths import UnusablePath, private_directory, state_dir

PERMISSIONS = tuple(("permissions", key) for key in ("allow", "ask", "deny"))
CURSOR_ALLOWED: tuple[KeyPath, ...] = (("mcpAllowlist",),)
GEMINI_TOOLS: tuple[KeyPath, ...] = (("tools", "allowed"), ("tools", "exclude"), ("excludeTools",))


class DisabledEntry(msgspec.Struct, frozen=True):
    """An entry that was disabled or removed because mcpd has the server."""

    name: str
    entry: dict[str, Any]
    removed: bool
    """Whether it was removed rather than disabled."""
    server: str = ""
    """The server in mcpd that replaced it. Former versions did not remember it."""

    def __repr__(self) -> str:
        how = "removed" if self.removed else "disabled"
        return f"DisabledEntry({self.name!r}, {how}, server={self.server!r})"


_FILE_NAMES = {
    "written_digest": "after",
    "disabled": "taken",
    "created_directories": "made",
}


class BackupRecord(msgspec.Struct, frozen=True, rename=_FILE_NAMES.get):
    """One file before and after `mcpctl install`."""

    path: str
    existed: bool
    written_digest: str
    """SHA-256 (hex) of what mcpctl wrote; it still matches while no other program has changed the file."""
    slot: KeyPath
    disabled: tuple[DisabledEntry, ...] = ()
    created_directories: tuple[str, ...] = ()
    """Directories that were created for the file, outermost first."""
    original: bytes = b""
    """The content before, which has a file of its own."""
    of: str = ""
    """The file of mcpd's entry because of which the permission lists of this one were rewritten."""
    names: dict[str, str] = {}
    """Old → new names in these lists."""
    is_rebuilt: bool = False
    """Whether `original` has entries that were put back, without their comments, because another program had
    changed the file before `install` ran again."""

    def __repr__(self) -> str:
        return f"BackupRecord({self.path!r}, disabled={self.disabled})"


@attrs.frozen
class KeptProfile:
    """A profile that `install --own` added to mcpd's configuration for an editor, with the editor's name."""

    config: Path
    """The configuration file."""
    profile: Mapping[str, object]
    """The profile as it was added."""


class EditorBackups:
    """The records of all changed files, in a directory that only the user can read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.directory = Path(state_dir(environ)) / "editors"

    def original_path(self, path: Path) -> Path:
        """Return where the original content of a file is kept."""
        return self.directory / f"{_path_id(path)}-{path.name}"

    def load(self, path: Path) -> BackupRecord | None:
        """Return the record of a file; None if there is none or it is unreadable."""
        try:
            record = msgspec.convert(json.loads(self._record_path(path).read_bytes()), BackupRecord)
            for text in (record.path, *record.created_directories):
                os.path.realpath(text)  # raises ValueError if no file can have this name
            return msgspec.structs.replace(record, original=self.original_path(path).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    def save(self, record: BackupRecord) -> None:
        """Write a record, with the content first: a record needs it. Raises OSError or UnusablePath."""
        private_directory(str(self.directory.parent))
        private_directory(str(self.directory))
        path = Path(record.path)
        facts = msgspec.to_builtins(msgspec.structs.replace(record, original=b""))
        write_atomically(self.original_path(path), record.original, 0o600)
        write_atomically(self._record_path(path), json.dumps(facts).encode(), 0o600)

    def records_of(self, path: Path) -> list[BackupRecord]:
        """Return the records of files that were rewritten because of the entry in `path`."""
        return [record for record in self._records() if record.of == str(path)]

    def replaced_by(self, server: str) -> list[Path]:
        """Return the files in which mcpd's entry has replaced one because of this server."""
        return [
            Path(record.path)
            for record in self._records()
            if any(server == (entry.server or entry.name) for entry in record.disabled)
        ]

    def _records(self) -> Iterator[BackupRecord]:
        for facts in sorted(self.directory.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                path = Path(json.loads(facts.read_bytes())["path"])
                if facts == self._record_path(path) and (record := self.load(path)) is not None:
                    yield record

    def delete(self, path: Path) -> None:
        """Delete the record of a file that was restored or no longer exists."""
        for stored in (self._record_path(path), self.original_path(path)):
            with contextlib.suppress(OSError):
                stored.unlink()

    def keep_profile(self, editor: str, added: KeptProfile) -> None:
        """Remember a profile that `install --own` added. Best effort: without this, `uninstall` leaves it."""
        with contextlib.suppress(OSError, UnusablePath):
            private_directory(str(self.directory.parent))
            private_directory(str(self.directory))
            facts = {"config": str(added.config), "profile": added.profile}
            write_atomically(self._profile_path(editor), json.dumps(facts).encode(), 0o600)

    def kept_profile(self, editor: str) -> KeptProfile | None:
        """Return the profile that was remembered; None if there is none or it is unreadable."""
        try:
            facts = json.loads(self._profile_path(editor).read_bytes())
            return KeptProfile(Path(facts["config"]), dict(facts["profile"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def forget_profile(self, editor: str) -> None:
        with contextlib.suppress(OSError):
            self._profile_path(editor).unlink()

    def _profile_path(self, editor: str) -> Path:
        return self.directory / f"{editor}.profile"

    def other_files(self, paths: Iterable[Path]) -> list[Path]:
        """Return the files with a record that are not among `paths`. Deletes the records of missing files."""
        known = {os.path.realpath(path) for path in paths}
        left: list[Path] = []
        for facts in sorted(self.directory.glob("*.json")):
            try:
                known_facts = json.loads(facts.read_bytes())
                path = Path(known_facts["path"])
                if (
                    known_facts.get("of")
                    or facts != self._record_path(path)
                    or os.path.realpath(path) in known
                ):
                    continue
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue  # the original content of a file may be JSON too
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


def without_mcpd(
    content: FileContent, ours: list[str], record: BackupRecord | None
) -> tuple[Document, list[str]]:
    """Return the file without mcpd, and the names of the entries that were enabled again."""
    document = content.without(ours).document
    if record is None:
        return document, []
    document = with_names(document, {new: old for old, new in record.names.items()})
    return restore_entries(content.target.editor, document, record)


def with_names(document: Document, names: Mapping[str, str]) -> Document:
    """Return the document with other items in its permission lists."""
    for place in (*PERMISSIONS, *CURSOR_ALLOWED, *GEMINI_TOOLS):
        value = document.value_at(place)
        if isinstance(value, list):
            new = [names.get(item, item) if isinstance(item, str) else item for item in value]
            if new != value:
                document = document.with_value(place, new)
    return document


def restore_entries(
    editor: EditorSpec, document: Document, record: BackupRecord
) -> tuple[Document, list[str]]:
    """Undo `disable_entry` in a file that has changed since. Return the names of the restored entries.

    An entry that is not as mcpctl left it stays, because somebody decided so.
    """
    restored: list[str] = []
    method = disable_method(editor, record.slot)
    for entry in record.disabled:
        before = document
        if entry.removed:
            document = _add_again(document, record.slot, entry)
        elif method == "excluded":
            document = set_listed(document, EXCLUDED, entry.name, False)
        elif method is not None:
            document = _switch_on(document, record.slot, entry, *method)
        if document is not before:
            restored.append(entry.name)
    if restored and method == "excluded" and document.value_at(EXCLUDED) == []:
        document = _without_new_list(document, record)
    return document, restored


def _add_again(document: Document, slot: KeyPath, entry: DisabledEntry) -> Document:
    if entry.name in document.entry_names(slot):
        return document
    listed = is_list(document, slot)
    fields = {key: value for key, value in entry.entry.items() if key != "name" or not listed}
    return document.with_entry(slot, entry.name, fields)


def _switch_on(document: Document, slot: KeyPath, entry: DisabledEntry, member: str, off: bool) -> Document:
    if entry_at(document, slot, entry.name).get(member) != off:
        return document
    path = (*slot, entry.name)
    if member in entry.entry:
        return document.with_value((*path, member), entry.entry[member])
    return document.without_entry(path, member)


def _without_new_list(document: Document, record: BackupRecord) -> Document:
    """Remove the empty list at `EXCLUDED`, and the object around it, if the original file had none."""
    original = parse_document(record.original, Path(record.path), foreign=True)
    if original.value_at(EXCLUDED) is None:
        document = document.without_entry(EXCLUDED[:1], EXCLUDED[1])
        if document.value_at(EXCLUDED[:1]) == {} and original.value_at(EXCLUDED[:1]) is None:
            document = document.without_entry((), EXCLUDED[0])
    return document
