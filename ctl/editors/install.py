"""Adds mcpd's entry to an editor's file and removes it; disables and restores other entries on request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from msgspec import structs

from ctl.cli.errors import WriteFailed
from ctl.editors.backups import (
    BackupRecord,
    DisabledEntry,
    EditorBackups,
    digest,
    without_mcpd,
)
from ctl.editors.config_files import EditorSpec
from ctl.editors.mcpd_entry import (
    EXCLUDED,
    FileContent,
    InstallTarget,
    disable_method,
    entry_at,
    is_list,
    parse_content,
    set_allowed,
    set_listed,
    uses_list,
)
from mcpd.config.in_place_edits.document import (
    MAX_FOREIGN_SIZE,
    Document,
    KeyPath,
    check_writable,
    parse_document,
    read_error,
    write_document,
    write_error,
)
from mcpd.files.paths import UnusablePath
from mcpd.files.regular import read_regular_file
from mcpd.model.errors import BadSpec, Problem

_TRIES = 3


@attrs.frozen
class FileChange:
    """What was, or would be, changed in a file."""

    path: Path
    added: str | None = None
    """The name of mcpd's entry, if it was written."""
    replaced: bool = False
    """Whether it replaced mcpd's entry of this name."""
    removed: tuple[str, ...] = ()
    """mcpd's entries that were removed."""
    disabled: tuple[DisabledEntry, ...] = ()
    """Other entries that were disabled, because mcpd has their servers."""
    restored: bool = False
    """The file is byte for byte what it was before the installation."""
    re_enabled: tuple[str, ...] = ()
    """Other entries that were enabled again."""
    superseded: tuple[DisabledEntry, ...] = ()
    """Removed entries that did not come back, because the file has new ones with their names."""
    existed: bool = True
    """Whether the file existed."""

    @property
    def has_changes(self) -> bool:
        return bool(self.added or self.removed or self.disabled or self.restored or self.re_enabled)


def install(
    target: InstallTarget,
    name: str,
    entry_for: Callable[[KeyPath], dict[str, object]],
    take_over: Callable[[KeyPath, Document], Mapping[str, str]],
    backups: EditorBackups,
    *,
    dry_run: bool = False,
) -> FileChange:
    """Write mcpd's entry, and disable the entries that `take_over` returns with their servers in mcpd.

    It replaces mcpd's entry with this name; an entry for all servers also replaces mcpd's others for all
    servers. The original file is kept until `uninstall`. Raises BadSpec or
    CannotWrite, with the file unchanged, if it cannot be read, edited or written.
    """
    path, editor = target.path, target.editor

    def write_entry(data: bytes | None) -> FileChange:
        record = backups.load(path) if data is not None else None
        content = parse_content(target, data)
        slot, new = content.slot, entry_for(content.slot)
        replaced = content.replaced_by(name, new)
        document = content.without(replaced).document
        if name in document.entry_names(slot):
            fix = "choose another name with --name"
            raise BadSpec([Problem("$", f"it already has another server named '{name}'", fix)], str(path))
        already = () if record is None else record.disabled
        known = {entry.name for entry in already}
        chosen = {each: server for each, server in take_over(slot, document).items() if each not in known}
        taken = [entry_at(document, slot, each) for each in chosen]
        new |= _loading_members([content.entry(name), *taken])
        stored = {"name": name, **new} if is_list(document, slot) else new
        is_allowed = set_allowed(editor, content.document, name, True) is content.document
        if replaced == [name] and content.entry(name) == stored and is_allowed and not chosen:
            return FileChange(path)
        disabled: list[DisabledEntry] = []
        for other, server in chosen.items():
            document, entry = disable_entry(editor, document, slot, other)
            disabled.append(structs.replace(entry, server=server))
        document = document.with_entry(slot, name, new, listed=uses_list(target))
        document = set_allowed(editor, document, name, True)
        original = _content_to_restore(content, record, data)
        check_writable(path)
        if not dry_run:
            created = record.created_directories if record is not None else _missing_directories(path)
            existed, entries = original is not None, (*already, *disabled)
            names = {} if record is None else record.names
            kept = BackupRecord(
                str(path), existed, "", slot, entries, created, original=original or b"", names=names
            )
            if data is not None and record is not None:
                is_rebuilt = record.is_rebuilt or (bool(already) and _has_changed(data, record))
                kept = structs.replace(kept, is_rebuilt=is_rebuilt)
            _save_record(backups, kept, document)
            _write(path, document, data)
        existed = original is not None
        return FileChange(path, name, name in replaced, disabled=tuple(disabled), existed=existed)

    return _retry_if_changed(path, write_entry)


def _loading_members(entries: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return what these entries say about when the editor loads tools, for the entry that replaces them.

    Tools that one of them always loads, or does not defer, must not become harder to find.
    """
    found: dict[str, object] = {}
    for name, combine in (("alwaysLoad", any), ("deferTools", all)):
        if values := [entry[name] for entry in entries if isinstance(entry.get(name), bool)]:
            found[name] = combine(values)
    if any(entry.get("deferTools") == "never" for entry in entries):
        found["deferTools"] = "never"
    return found


def uninstall(target: InstallTarget, backups: EditorBackups, *, dry_run: bool = False) -> FileChange:
    """Remove mcpd's entries, and enable the entries that `install` disabled.

    A file that has not changed since is restored byte for byte. Raises what `install` does.
    """
    path = target.path

    def remove_entries(data: bytes | None) -> FileChange:
        record = backups.load(path)
        if data is None:
            if not dry_run:
                backups.delete(path)
            return FileChange(path)
        signs = (b"bridge", b"mcpd.sock", *(address.encode() for address in target.addresses))
        if record is None and not any(sign in data for sign in signs):
            return FileChange(path)  # readable or not, it cannot contain an entry of mcpd
        content = parse_content(target, data)
        ours = content.mcpd_entries()
        if ours:
            check_writable(path)
        if record is not None and ours and not _has_changed(data, record):
            if not dry_run:
                if record.existed:
                    _write(path, parse_document(record.original, path, foreign=True), data)
                else:
                    _remove(path, record)
                backups.delete(path)
            put_back = [entry.name for entry in record.disabled] if record.is_rebuilt else []
            return FileChange(path, removed=tuple(ours), restored=not put_back, re_enabled=tuple(put_back))
        document, enabled = without_mcpd(content, ours, record)
        removed = [entry for entry in record.disabled if entry.removed] if record is not None else []
        superseded = tuple(entry for entry in removed if entry.name not in enabled)
        change = FileChange(path, removed=tuple(ours), re_enabled=tuple(enabled), superseded=superseded)
        if change.has_changes and not dry_run:
            _write(path, document, data)
            backups.delete(path)
        return change

    return _retry_if_changed(path, remove_entries)


class _ConcurrentChange(Exception):
    """Another program wrote the file between our read and our write."""


def _retry_if_changed(path: Path, act: Callable[[bytes | None], FileChange]) -> FileChange:
    """Repeat `act` if the file changes meanwhile, because editors write their files too."""
    for _ in range(_TRIES):
        with contextlib.suppress(_ConcurrentChange):
            return act(_read_file(path))
    raise BadSpec([Problem("$", f"{path} keeps changing", "close the editor and try again")], str(path))


def _content_to_restore(
    content: FileContent, record: BackupRecord | None, data: bytes | None
) -> bytes | None:
    """Return the content for `uninstall` to restore: the original, or the changed file without mcpd."""
    if data is None:
        return None
    if record is not None and not _has_changed(data, record):
        return record.original if record.existed else None
    return without_mcpd(content, content.mcpd_entries(), record)[0].data


def _has_changed(data: bytes, record: BackupRecord) -> bool:
    """Return whether another program has changed the file since mcpctl wrote it."""
    return digest(data) != record.written_digest


def _read_file(path: Path) -> bytes | None:
    try:
        return read_regular_file(path, MAX_FOREIGN_SIZE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(path, error) from None


def _write(path: Path, document: Document, seen: bytes | None) -> None:
    if _read_file(path) != seen:
        raise _ConcurrentChange
    write_document(path, document)


def _remove(path: Path, record: BackupRecord) -> None:
    """Remove a file that `install` created, with its directories."""
    try:
        os.unlink(os.path.realpath(path))  # `install` writes through a symbolic link too
    except OSError as error:
        raise write_error(path, error, "remove") from None
    for directory in reversed(record.created_directories):
        with contextlib.suppress(OSError):  # in use by now
            os.rmdir(directory)


def _missing_directories(path: Path) -> tuple[str, ...]:
    """Return the directories that writing the file will create."""
    return tuple(str(parent) for parent in reversed(path.parents) if not parent.exists())


def _save_record(backups: EditorBackups, record: BackupRecord, document: Document) -> None:
    """Save a record for a file that is about to be written as `document`."""
    try:
        backups.save(structs.replace(record, written_digest=digest(document.data)))
    except (OSError, UnusablePath) as error:
        raise WriteFailed(f"cannot keep a backup of {record.path}: {error}") from None


def disable_entry(
    editor: EditorSpec, document: Document, slot: KeyPath, name: str
) -> tuple[Document, DisabledEntry]:
    """Disable an entry with the editor's own switch; remove it if there is none."""
    found = entry_at(document, slot, name)
    method = disable_method(editor, slot)
    if method is None or is_list(document, slot):
        return document.without_entry(slot, name), DisabledEntry(name, found, removed=True)
    if method == "excluded":
        document = set_listed(document, EXCLUDED, name, True)
    else:
        document = document.with_value((*slot, name, method[0]), method[1])
    return document, DisabledEntry(name, found, removed=False)
