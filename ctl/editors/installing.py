"""Adds mcpd's entry to an editor's file and removes it; the rest of the file does not change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from ctl.editors.backup import BackupRecord, DisabledEntry, EditorBackups, diff_hunks, digest, revert_hunks
from ctl.editors.disable_entries import (
    disable_entry,
    entry_at,
    is_list,
    restore_entries,
    set_allowed,
)
from ctl.editors.editor_catalog import EditorSpec
from ctl.editors.mcpd_entry import InstallTarget, is_mcpd_entry, new_file_content, slot_of, uses_list
from ctl.errors import CtlError
from mcpd.config.in_place_edits.document import (
    Document,
    KeyPath,
    check_writable,
    file_error,
    parse_document,
    write_document,
)
from mcpd.model.errors import BadSpec, Problem
from mcpd.support.paths import UnusablePath

_TRIES = 3


@attrs.frozen
class FileChange:
    """What was, or would be, changed in a file."""

    path: Path
    added: str | None = None
    """The name of mcpd's entry, if it was written."""
    removed: tuple[str, ...] = ()
    """mcpd's entries that were removed."""
    disabled: tuple[DisabledEntry, ...] = ()
    """Other entries that were disabled, because mcpd has their servers."""
    restored: bool = False
    """The file is byte for byte what it was before the installation."""
    re_enabled: tuple[str, ...] = ()
    """Other entries that were enabled again."""
    existed: bool = True
    """Whether the file existed."""

    @property
    def has_changes(self) -> bool:
        return bool(self.added or self.removed or self.disabled or self.restored or self.re_enabled)


def install(
    one: InstallTarget,
    name: str,
    entry_for: Callable[[KeyPath], dict[str, object]],
    take_over: Callable[[KeyPath, Document], list[str]],
    backups: EditorBackups,
    *,
    dry_run: bool = False,
) -> FileChange:
    """Write mcpd's entry, and disable the entries that `take_over` names.

    The original file is kept until `uninstall`. Raises BadSpec, with the file unchanged, if it cannot be
    read, edited or written.
    """
    return _retry_if_changed(
        one.path, lambda data: _install(one, name, entry_for, take_over, backups, data, dry_run)
    )


def uninstall(
    one: InstallTarget, names: frozenset[str], backups: EditorBackups, *, dry_run: bool = False
) -> FileChange:
    """Remove mcpd's entries (only `names`, if given), and enable the entries that `install` disabled.

    A file that has not changed since is restored byte for byte. Raises BadSpec as `install` does.
    """
    return _retry_if_changed(one.path, lambda data: _uninstall(one, names, backups, data, dry_run))


class _ConcurrentChange(Exception):
    """Another program wrote the file between our read and our write."""


def _retry_if_changed(path: Path, act: Callable[[bytes | None], FileChange]) -> FileChange:
    """Repeat `act` if the file changes meanwhile, because editors write their files too."""
    for _ in range(_TRIES):
        with contextlib.suppress(_ConcurrentChange):
            return act(_read_file(path))
    raise BadSpec([Problem("$", f"{path} keeps changing", "close the editor and try again")], str(path))


def _install(
    one: InstallTarget,
    name: str,
    entry_for: Callable[[KeyPath], dict[str, object]],
    take_over: Callable[[KeyPath, Document], list[str]],
    backups: EditorBackups,
    data: bytes | None,
    dry_run: bool,
) -> FileChange:
    path = one.path
    record = backups.load(path) if data is not None else None
    document = _document(one, data)
    slot = slot_of(one, document)
    new = entry_for(slot)
    replaced = _replaced_entries(one, document, slot, name, new)
    clean = _without_entries(one.editor, document, slot, replaced)
    if name in clean.entry_names(slot):
        fix = "choose another name with --name"
        raise BadSpec([Problem("$", f"it already has another server named '{name}'", fix)], str(path))
    already = () if record is None else record.disabled
    chosen = [other for other in take_over(slot, clean) if other not in [one.name for one in already]]
    if (
        replaced == [name]
        and entry_at(document, slot, name) == _as_stored(document, slot, name, new)
        and set_allowed(one.editor, document, name, True) is document
        and not chosen
    ):
        return FileChange(path)
    taken: list[DisabledEntry] = []
    result = clean
    for other in dict.fromkeys(chosen):
        result, done = disable_entry(one.editor, result, slot, other)
        taken.append(done)
    result = result.with_entry(slot, name, new, listed=uses_list(one))
    result = set_allowed(one.editor, result, name, True)
    before = _content_to_restore(one, document, slot, record, data)
    change = FileChange(path, added=name, disabled=tuple(taken), existed=before is not None)
    check_writable(path)
    if not dry_run:
        made = record.created_directories if record is not None else _missing_directories(path)
        everything = (*already, *taken)
        kept = BackupRecord(str(path), before is not None, before or b"", "", slot, everything, made)
        _save_record(backups, _record_for(one, kept, result))
        _write(path, result, data)
    return change


def _record_for(one: InstallTarget, record: BackupRecord, document: Document) -> BackupRecord:
    """Return the backup record for a file that is written like this."""
    was = parse_document(record.original, one.path, foreign=True).text
    others = _without_entries(one.editor, document, record.slot, _mcpd_entries(one, document, record.slot))
    return attrs.evolve(
        record,
        written_digest=digest(document.data),
        changes=diff_hunks(was, others.text),
        changes_with_entry=diff_hunks(was, document.text),
    )


def _content_to_restore(
    one: InstallTarget, document: Document, slot: KeyPath, record: BackupRecord | None, data: bytes | None
) -> bytes | None:
    """Return the content for `uninstall` to restore: the original, or the changed file without mcpd."""
    if data is None:
        return None
    if record is not None and digest(data) == record.written_digest:
        return record.original if record.existed else None
    return _without_mcpd(one, document, slot, _mcpd_entries(one, document, slot), record)[0].data


def _without_mcpd(
    one: InstallTarget, document: Document, slot: KeyPath, ours: list[str], record: BackupRecord | None
) -> tuple[Document, list[str]]:
    """Return the file without mcpd, and the names of the entries that were enabled again.

    The entries decide what the file means. If the original lines can still be restored with the same meaning,
    they are, with their comments and order.
    """
    others = _without_entries(one.editor, document, slot, ours)
    if record is None:
        return others, []
    result, back = restore_entries(one.editor, others, record)
    names = document.entry_names(slot)
    if any(taken.removed and taken.name in names for taken in record.disabled):
        return result, back  # the user has added one again, which takes precedence
    ways = [revert_hunks(others.text, record.changes), revert_hunks(document.text, record.changes_with_entry)]
    for text, _ in sorted(ways, key=lambda way: way[1]):
        with contextlib.suppress(BadSpec):
            older = attrs.evolve(document, text=text)
            older = parse_document(older.data, one.path, foreign=True)
            older = _without_entries(one.editor, older, slot, _mcpd_entries(one, older, slot))
            older, _ = restore_entries(one.editor, older, record)
            if _normalized(older, slot) == _normalized(result, slot):
                return older, back
    return result, back


def _normalized(document: Document, slot: KeyPath) -> tuple[object, object]:
    """Return the meaning of a file, regardless of the order and of empty objects around its entries."""
    entries = {name: entry_at(document, slot, name) for name in document.entry_names(slot)}
    return entries, _other_values(document.value, slot)


def _other_values(value: Mapping[str, object], slot: KeyPath) -> dict[str, object]:
    """Return everything except `slot` and the objects that contain nothing else."""
    rest = {key: inner for key, inner in value.items() if key != slot[0]}
    below = value.get(slot[0])
    if len(slot) > 1 and isinstance(below, dict) and (inner := _other_values(below, slot[1:])):
        rest[slot[0]] = inner
    return rest


def _as_stored(
    document: Document, slot: KeyPath, name: str, new: Mapping[str, object]
) -> Mapping[str, object]:
    """Return the entry as the file would contain it."""
    return {"name": name, **new} if is_list(document, slot) else new


def _uninstall(
    one: InstallTarget, names: frozenset[str], backups: EditorBackups, data: bytes | None, dry_run: bool
) -> FileChange:
    path = one.path
    record = backups.load(path)
    if data is None:
        if not dry_run:
            backups.delete(path)
        return FileChange(path)
    signs = (b"bridge", b"mcpd.sock", *(address.encode() for address in one.addresses))
    if record is None and not any(sign in data for sign in signs):
        return FileChange(path)  # readable or not, it cannot contain an entry of mcpd
    document = _document(one, data)
    slot = slot_of(one, document)
    ours = _mcpd_entries(one, document, slot)
    chosen = [name for name in ours if not names or name in names]
    untouched = record is not None and digest(data) == record.written_digest
    if chosen:
        check_writable(path)
    if record is not None and untouched and chosen == ours:
        if not dry_run:
            if record.existed:
                _write(path, parse_document(record.original, path, foreign=True), data)
            else:
                _remove(path, record)
            backups.delete(path)
        return FileChange(path, removed=tuple(ours), restored=True)
    document, back = _without_mcpd(one, document, slot, chosen, record if chosen == ours else None)
    change = FileChange(path, removed=tuple(chosen), re_enabled=tuple(back))
    if change.has_changes and not dry_run:
        if record is not None and untouched:
            _save_record(backups, _record_for(one, record, document))
        _write(path, document, data)
        if chosen == ours:
            backups.delete(path)
    return change


def _replaced_entries(
    one: InstallTarget, document: Document, slot: KeyPath, name: str, new: Mapping[str, object]
) -> list[str]:
    """Return mcpd's entries that the new one replaces: of the same name, or also for all servers."""
    ours = _mcpd_entries(one, document, slot)
    whole = not _is_partial(new)
    return [
        other
        for other in ours
        if other == name or (whole and not _is_partial(entry_at(document, slot, other)))
    ]


def _is_partial(entry: Mapping[str, object]) -> bool:
    """Return whether an entry of mcpd provides only one server or profile."""
    words = str([entry.get("command"), entry.get("args")])
    url = entry.get("url")
    return "--server" in words or "--profile" in words or (isinstance(url, str) and not url.endswith("#/mcp"))


def _without_entries(editor: EditorSpec, document: Document, slot: KeyPath, names: list[str]) -> Document:
    for name in names:
        document = set_allowed(editor, document.without_entry(slot, name), name, False)
    return document


def _mcpd_entries(one: InstallTarget, document: Document, slot: KeyPath) -> list[str]:
    """Return the names of mcpd's entries."""
    return [
        name
        for name in document.entry_names(slot)
        if is_mcpd_entry(entry_at(document, slot, name), one.addresses)
    ]


# ---- files -------------------------------------------------------------------------------------------


def _document(one: InstallTarget, data: bytes | None) -> Document:
    return parse_document(new_file_content(one.editor) if data is None else data, one.path, foreign=True)


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error("read", path, error) from None


def _write(path: Path, document: Document, seen: bytes | None) -> None:
    if _read_file(path) != seen:
        raise _ConcurrentChange
    write_document(path, document)


def _remove(path: Path, record: BackupRecord) -> None:
    """Remove a file that `install` created, with its directories."""
    try:
        os.unlink(os.path.realpath(path))  # `install` writes through a symbolic link too
    except OSError as error:
        raise file_error("remove", path, error) from None
    for directory in reversed(record.created_directories):
        with contextlib.suppress(OSError):  # in use by now
            os.rmdir(directory)


def _missing_directories(path: Path) -> tuple[str, ...]:
    """Return the directories that writing the file will create."""
    return tuple(str(parent) for parent in reversed(path.parents) if not parent.exists())


def _save_record(backups: EditorBackups, record: BackupRecord) -> None:
    try:
        backups.save(record)
    except (OSError, UnusablePath) as error:
        raise CtlError(f"cannot keep a backup of {record.path}: {error}") from None
