"""Backups of the files that `mcpctl install` changes, and how the changes are undone later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import attrs
import msgspec

from ctl.editors.catalog import EditorSpec
from ctl.editors.entry import (
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
from mcpd.model.errors import BadSpec

_CONTEXT = 3
"""Lines on each side that identify the position of a hunk."""


class DiffHunk(msgspec.Struct, frozen=True, array_like=True):
    """One changed place: `ours` replaced `theirs`. Lines include their ends."""

    above: tuple[str, ...]
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    below: tuple[str, ...]

    def __repr__(self) -> str:
        return f"DiffHunk({len(self.theirs)} lines → {len(self.ours)})"  # the lines may contain secrets


def diff_hunks(before: str, after: str) -> tuple[DiffHunk, ...]:
    """Return the changes from `before` to `after`."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    # SequenceMatcher is slow for 40,000 lines: compare only those between the first and last change.
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    least -= head
    tail = next((n for n in range(least) if old[-1 - n] != new[-1 - n]), least)
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail])
    return tuple(
        DiffHunk(
            above=tuple(new[max(0, head + start - _CONTEXT) : head + start]),
            ours=tuple(new[head + start : head + end]),
            theirs=tuple(old[head + old_start : head + old_end]),
            below=tuple(new[head + end : head + end + _CONTEXT]),
        )
        for tag, old_start, old_end, start, end in matcher.get_opcodes()
        if tag != "equal"
    )


def revert_hunks(text: str, changes: Sequence[DiffHunk]) -> tuple[str, int]:
    """Undo `changes` in `text`. Return the result and the number of hunks that were not found exactly once.

    A removed entry thereby gets back its comments and its old position.
    """
    lines, lost = text.splitlines(keepends=True), 0
    for hunk in changes:
        at = _find_hunk(lines, hunk)
        if at is None:
            lost += 1
        else:
            lines[at : at + len(hunk.ours)] = hunk.theirs
    return "".join(lines), lost


def _find_hunk(lines: list[str], hunk: DiffHunk) -> int | None:
    for above, below in _contexts(hunk):
        wanted = [*above, *hunk.ours, *below]
        if not any(line.strip() for line in wanted):
            continue
        starts = [at for at, line in enumerate(lines) if line == wanted[0]]
        found = [at for at in starts if lines[at : at + len(wanted)] == wanted]
        if len(found) == 1:
            return found[0] + len(above)
    return None


def _contexts(hunk: DiffHunk) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the context lines to search for, most first: the file may have been edited next to the hunk."""
    for lines in range(_CONTEXT, 0, -1):
        yield hunk.above[-lines:], hunk.below[:lines]
    for lines in range(_CONTEXT, 0, -1):
        yield hunk.above[-lines:], ()
        yield (), hunk.below[:lines]
    yield (), ()


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
    "changes_with_entry": "with_ours",
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
    changes: tuple[DiffHunk, ...] = ()
    """The changes outside mcpd's own entry."""
    changes_with_entry: tuple[DiffHunk, ...] = ()
    """All changes. One of the two still applies if the file was edited close to the entry."""
    original: bytes = b""
    """The content before, which has a file of its own."""

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

    def delete(self, path: Path, *, keep_original: bool = False) -> None:
        """Delete the record of a file that was restored or no longer exists."""
        for stored in (self._record_path(path), *([] if keep_original else [self.original_path(path)])):
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
                path = Path(json.loads(facts.read_bytes())["path"])
                if facts != self._record_path(path) or os.path.realpath(path) in known:
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
    """Return the file without mcpd, and the names of the entries that were enabled again.

    The entries decide what the file means. If the original lines can still be restored with the same meaning,
    they are, with their comments and order.
    """
    others = content.without(ours)
    if record is None:
        return others.document, []
    editor, slot = content.target.editor, content.slot
    result, enabled = restore_entries(editor, others.document, record)
    names = content.document.entry_names(slot)
    if any(entry.removed and entry.name in names for entry in record.disabled):
        return result, enabled  # the user has added one again, which takes precedence
    meaning = attrs.evolve(content, document=result).meaning()
    attempts = [
        revert_hunks(others.document.text, record.changes),
        revert_hunks(content.document.text, record.changes_with_entry),
    ]
    for text, _ in sorted(attempts, key=lambda attempt: attempt[1]):
        with contextlib.suppress(BadSpec):
            data = attrs.evolve(content.document, text=text).data
            older = attrs.evolve(content, document=parse_document(data, content.target.path, foreign=True))
            restored, _ = restore_entries(editor, older.without(older.mcpd_entries()).document, record)
            if attrs.evolve(content, document=restored).meaning() == meaning:
                return restored, enabled
    return result, enabled


def replaced_by_user(content: FileContent, record: BackupRecord) -> tuple[str, ...]:
    """Return the entries that were removed, and whose names the user has given to other ones since."""
    names = content.document.entry_names(content.slot)
    return tuple(
        each.name
        for each in record.disabled
        if each.removed and each.name in names and content.entry(each.name) != each.entry
    )


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
