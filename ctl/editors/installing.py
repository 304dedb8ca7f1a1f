"""Adds mcpd's entry to an editor's file and removes it; disables and restores other entries on request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

import attrs
from msgspec import structs

from ctl.cli.errors import WriteFailed
from ctl.editors.backup import BackupRecord, DisabledEntry, EditorBackups, diff_hunks, digest, revert_hunks
from ctl.editors.editor_catalog import EditorSpec
from ctl.editors.mcpd_entry import InstallTarget, is_mcpd_entry, new_file_content, slot_of, uses_list
from mcpd.config.in_place_edits.document import (
    Document,
    KeyPath,
    check_writable,
    parse_document,
    read_error,
    write_document,
    write_error,
)
from mcpd.model.errors import BadSpec, Problem
from mcpd.support.paths import UnusablePath

_TRIES = 3
EXCLUDED, _ALLOWED = ("mcp", "excluded"), ("mcp", "allowed")
"""Gemini's lists of the servers that it does not start, and of the only ones that it starts."""


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
    not_restored: tuple[str, ...] = ()
    """Entries that were removed and not added again, because the file has others with these names."""
    kept: Path | None = None
    """Where the original content with those entries is kept."""
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
    replaces: Collection[str] = (),
    dry_run: bool = False,
) -> FileChange:
    """Write mcpd's entry, and disable the entries that `take_over` returns with their servers in mcpd.

    It replaces mcpd's entries with this name or one of `replaces`; an entry for all servers also replaces
    mcpd's others for all servers. The original file is kept until `uninstall`. Raises BadSpec or
    CannotWrite, with the file unchanged, if it cannot be read, edited or written.
    """
    path, editor = target.path, target.editor

    def write_entry(data: bytes | None) -> FileChange:
        record = backups.load(path) if data is not None else None
        content = parse_content(target, data)
        slot, new = content.slot, entry_for(content.slot)
        replaced = content.replaced_by({name, *replaces}, new)
        document = content.without(replaced).document
        if name in document.entry_names(slot):
            fix = "choose another name with --name"
            raise BadSpec([Problem("$", f"it already has another server named '{name}'", fix)], str(path))
        already = () if record is None else record.disabled
        known = {entry.name for entry in already}
        chosen = {each: server for each, server in take_over(slot, document).items() if each not in known}
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
            kept = BackupRecord(str(path), existed, "", slot, entries, created, original=original or b"")
            _save_record(backups, kept, target, document)
            _write(path, document, data)
        return FileChange(path, added=name, disabled=tuple(disabled), existed=original is not None)

    return _retry_if_changed(path, write_entry)


def uninstall(
    target: InstallTarget, names: frozenset[str], backups: EditorBackups, *, dry_run: bool = False
) -> FileChange:
    """Remove mcpd's entries (only `names`, if given), and enable the entries that `install` disabled.

    A file that has not changed since is restored byte for byte. The original content is kept if it has an
    entry that cannot be restored, because the user has added another one with its name. Raises what
    `install` does.
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
        document, enabled = without_mcpd(content, chosen, record if chosen == ours else None)
        lost = replaced_by_user(content, record) if record is not None and chosen == ours else ()
        kept = backups.path_to_keep(path) if lost else None
        change = FileChange(
            path, removed=tuple(chosen), re_enabled=tuple(enabled), not_restored=lost, kept=kept
        )
        if change.has_changes and not dry_run:
            if record is not None and untouched:
                _save_record(backups, record, target, document)
            _write(path, document, data)
            if lost:
                change = attrs.evolve(change, kept=backups.delete_but_keep_original(path))
            elif chosen == ours:
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


@attrs.frozen
class FileContent:
    """The content of a target file, whose servers are at `slot`."""

    target: InstallTarget
    document: Document
    slot: KeyPath

    def entry(self, name: str) -> dict[str, object]:
        return entry_at(self.document, self.slot, name)

    def mcpd_entries(self) -> list[str]:
        """Return the names of mcpd's entries."""
        names, addresses = self.document.entry_names(self.slot), self.target.addresses
        return [name for name in names if is_mcpd_entry(self.entry(name), addresses)]

    def replaced_by(self, names: Collection[str], new: Mapping[str, object]) -> list[str]:
        """Return mcpd's entries that a new one replaces: with these names, or also for all servers."""
        for_all = not _is_partial(new)
        return [
            other
            for other in self.mcpd_entries()
            if other in names or (for_all and not _is_partial(self.entry(other)))
        ]

    def without(self, names: list[str]) -> FileContent:
        document = self.document
        for name in names:
            document = set_allowed(self.target.editor, document.without_entry(self.slot, name), name, False)
        return attrs.evolve(self, document=document)

    def meaning(self) -> tuple[object, object]:
        """Return what the file means, regardless of the order and of empty objects around its entries."""
        entries = {name: self.entry(name) for name in self.document.entry_names(self.slot)}
        return entries, _other_values(self.document.value, self.slot)


def parse_content(target: InstallTarget, data: bytes | None) -> FileContent:
    """Parse the content of a file; None is a file that does not exist yet."""
    content = new_file_content(target.editor) if data is None else data
    document = parse_document(content, target.path, foreign=True)
    return FileContent(target, document, slot_of(target, document))


def _content_to_restore(
    content: FileContent, record: BackupRecord | None, data: bytes | None
) -> bytes | None:
    """Return the content for `uninstall` to restore: the original, or the changed file without mcpd."""
    if data is None:
        return None
    if record is not None and digest(data) == record.written_digest:
        return record.original if record.existed else None
    return without_mcpd(content, content.mcpd_entries(), record)[0].data


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


def _other_values(value: Mapping[str, object], slot: KeyPath) -> dict[str, object]:
    """Return everything except `slot` and the objects that contain nothing else."""
    rest = {key: inner for key, inner in value.items() if key != slot[0]}
    below = value.get(slot[0])
    if len(slot) > 1 and isinstance(below, dict) and (inner := _other_values(below, slot[1:])):
        rest[slot[0]] = inner
    return rest


def _is_partial(entry: Mapping[str, object]) -> bool:
    """Return whether an entry of mcpd provides only one server or profile."""
    words = str([entry.get("command"), entry.get("args")])
    url = entry.get("url")
    return "--server" in words or "--profile" in words or (isinstance(url, str) and not url.endswith("#/mcp"))


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
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


def _save_record(
    backups: EditorBackups, record: BackupRecord, target: InstallTarget, document: Document
) -> None:
    """Save a record for a file that is about to be written as `document`."""
    before = parse_document(record.original, target.path, foreign=True).text
    content = FileContent(target, document, record.slot)
    record = structs.replace(
        record,
        written_digest=digest(document.data),
        changes=diff_hunks(before, content.without(content.mcpd_entries()).document.text),
        changes_with_entry=diff_hunks(before, document.text),
    )
    try:
        backups.save(record)
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


def restore_entries(
    editor: EditorSpec, document: Document, record: BackupRecord
) -> tuple[Document, list[str]]:
    """Undo `disable_entry` in a file that has changed since. Return the names of the restored entries.

    An entry that is not as mcpctl left it stays, because somebody decided so.
    """
    restored: list[str] = []
    slot = record.slot
    method = disable_method(editor, slot)
    for entry in record.disabled:
        exists = entry.name in document.entry_names(slot)
        before = document
        if entry.removed:
            if not exists:
                listed = is_list(document, slot)
                fields = {key: value for key, value in entry.entry.items() if key != "name" or not listed}
                document = document.with_entry(slot, entry.name, fields)
                restored.append(entry.name)
            continue
        if method == "excluded":
            document = set_listed(document, EXCLUDED, entry.name, False)
        elif method and exists and entry_at(document, slot, entry.name).get(method[0]) == method[1]:
            path = (*slot, entry.name)
            if method[0] in entry.entry:
                document = document.with_value((*path, method[0]), entry.entry[method[0]])
            else:
                document = document.without_entry(path, method[0])
        if document is not before:
            restored.append(entry.name)
    if restored and method == "excluded" and document.value_at(EXCLUDED) == []:
        document = _without_new_list(document, record)
    return document, restored


def _without_new_list(document: Document, record: BackupRecord) -> Document:
    """Remove the empty list at `EXCLUDED`, and the object around it, if the original file had none."""
    original = parse_document(record.original, Path(record.path), foreign=True)
    if original.value_at(EXCLUDED) is None:
        document = document.without_entry(EXCLUDED[:1], EXCLUDED[1])
        if document.value_at(EXCLUDED[:1]) == {} and original.value_at(EXCLUDED[:1]) is None:
            document = document.without_entry((), EXCLUDED[0])
    return document


def set_allowed(editor: EditorSpec, document: Document, name: str, allowed: bool) -> Document:
    """Add a name to Gemini's list of allowed servers, or remove it. Without such a list, all are allowed."""
    if editor.disable_method != "excluded" or not is_list(document, _ALLOWED):
        return document
    return set_listed(document, _ALLOWED, name, allowed)


def set_listed(document: Document, path: KeyPath, name: str, listed: bool) -> Document:
    """Return the document with `name` in the list at `path`, or without it; itself if nothing changes."""
    value = document.value_at(path)
    names = value if isinstance(value, list) else []
    if (name in names) is listed:
        return document
    others = [each for each in names if each != name]
    return document.with_value(path, [*others, name] if listed else others)


def disable_method(editor: EditorSpec, slot: KeyPath) -> tuple[str, bool] | Literal["excluded"] | None:
    """Return how this editor disables an entry. In opencode, the two versions of the format differ."""
    if editor.entry_form == "opencode" and slot[-1] == "servers":
        return ("disabled", True)
    return editor.disable_method


def entry_at(document: Document, slot: KeyPath, name: str) -> dict[str, object]:
    """Return the entry of this name in an object or a list; empty if there is none."""
    value = document.value_at(slot)
    if isinstance(value, list):
        return next((one for one in value if isinstance(one, dict) and one.get("name") == name), {})
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def is_list(document: Document, slot: KeyPath) -> bool:
    """Return whether the servers are a list, whose entries contain their names."""
    return isinstance(document.value_at(slot), list)
