"""Our entry into an editor's file and out of it again, with everything else of the file left as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from ctl.editors.backup import Backups, Record, Taken, digest
from ctl.editors.disable_entries import allowed, entry_at, give_back, in_list, take, unlisted
from ctl.editors.editor_catalog import Editor
from ctl.editors.mcpd_entry import Target, listed, preface, slot_of
from ctl.editors.self_detection import is_ours
from ctl.editors.text_patch import hunks, undone
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
class Change:
    """What became, or would become, of a file."""

    path: Path
    added: str | None = None
    """The name of our entry, when it was not there as it is to be."""
    removed: tuple[str, ...] = ()
    """Entries of ours that are gone."""
    taken: tuple[Taken, ...] = ()
    """Entries of others that mcpd has taken over."""
    restored: bool = False
    """The file is byte for byte what it was."""
    given_back: tuple[str, ...] = ()
    """Entries of others that are as they were."""
    existed: bool = True
    """Whether there was such a file."""

    @property
    def anything(self) -> bool:
        return bool(self.added or self.removed or self.taken or self.restored or self.given_back)


def install(
    one: Target,
    name: str,
    entry_for: Callable[[KeyPath], dict[str, object]],
    take_over: Callable[[KeyPath, Document], list[str]],
    backups: Backups,
    *,
    dry_run: bool = False,
) -> Change:
    """Put our entry into the file, once, and switch off the entries that `take_over` names.

    The file as it was before the first time is kept until `uninstall`. Raises BadSpec when the file
    cannot be read, changed or written; then it is as it was.
    """
    return _carefully(
        one.path, lambda data: _install(one, name, entry_for, take_over, backups, data, dry_run)
    )


def uninstall(one: Target, names: frozenset[str], backups: Backups, *, dry_run: bool = False) -> Change:
    """Take our entries out (only those of `names`, if there are any), and give back what we took over.

    A file that nobody has changed since becomes byte for byte what it was. Raises BadSpec as `install`.
    """
    return _carefully(one.path, lambda data: _uninstall(one, names, backups, data, dry_run))


class _ChangedMeanwhile(Exception):
    """Somebody else has written the file between our reading and our writing."""


def _carefully(path: Path, act: Callable[[bytes | None], Change]) -> Change:
    """Editors write their files too, some of them all the time: then look again and decide anew."""
    for _ in range(_TRIES):
        with contextlib.suppress(_ChangedMeanwhile):
            return act(_bytes(path))
    raise BadSpec([Problem("$", f"{path} changes all the time", "close the editor and try again")], str(path))


def _install(
    one: Target,
    name: str,
    entry_for: Callable[[KeyPath], dict[str, object]],
    take_over: Callable[[KeyPath, Document], list[str]],
    backups: Backups,
    data: bytes | None,
    dry_run: bool,
) -> Change:
    path = one.path
    record = backups.load(path) if data is not None else None
    document = _document(one, data)
    slot = slot_of(one, document)
    new = entry_for(slot)
    replaced = _replaced(one, document, slot, name, new)
    clean = _without(one.editor, document, slot, replaced)
    if name in clean.entry_names(slot):
        fix = "choose another name with --name"
        raise BadSpec([Problem("$", f"it has another server called '{name}'", fix)], str(path))
    already = () if record is None else record.taken
    chosen = [other for other in take_over(slot, clean) if other not in [one.name for one in already]]
    if (
        replaced == [name]
        and entry_at(document, slot, name) == _stored(document, slot, name, new)
        and allowed(one.editor, document, name) is document
        and not chosen
    ):
        return Change(path)
    taken: list[Taken] = []
    result = clean
    for other in dict.fromkeys(chosen):
        result, done = take(one.editor, result, slot, other)
        taken.append(done)
    result = allowed(one.editor, result.with_entry(slot, name, new, listed=listed(one)), name)
    before = _before(one, document, slot, record, data)
    change = Change(path, added=name, taken=tuple(taken), existed=before is not None)
    check_writable(path)
    if not dry_run:
        made = record.made if record is not None else _missing(path)
        everything = (*already, *taken)
        kept = Record(str(path), before is not None, before or b"", "", slot, everything, made)
        _keep(backups, _leaving(one, kept, result))
        _write(path, result, data)
    return change


def _leaving(one: Target, record: Record, document: Document) -> Record:
    """The record of a file that we leave like this."""
    was = parse_document(record.before, one.path, foreign=True).text
    others = _without(one.editor, document, record.slot, _ours(one, document, record.slot))
    return attrs.evolve(
        record,
        after=digest(document.data),
        changes=hunks(was, others.text),
        with_ours=hunks(was, document.text),
    )


def _before(
    one: Target, document: Document, slot: KeyPath, record: Record | None, data: bytes | None
) -> bytes | None:
    """What the file is to come back to: as it was before us, or, changed since, as it would be without us."""
    if data is None:
        return None
    if record is not None and digest(data) == record.after:
        return record.before if record.existed else None
    return _without_us(one, document, slot, _ours(one, document, slot), record)[0].data


def _without_us(
    one: Target, document: Document, slot: KeyPath, ours: list[str], record: Record | None
) -> tuple[Document, list[str]]:
    """The file as it would be if we had never been here, and the names of the entries that came back.

    What that means is decided by what the entries say; where the lines around them are still known, it
    is written as it was written before, with comments and order.
    """
    others = _without(one.editor, document, slot, ours)
    if record is None:
        return others, []
    result, back = give_back(one.editor, others, record)
    names = document.entry_names(slot)
    if any(taken.removed and taken.name in names for taken in record.taken):
        return result, back  # somebody has put one there again: theirs counts
    ways = [undone(others.text, record.changes), undone(document.text, record.with_ours)]
    for text, _ in sorted(ways, key=lambda way: way[1]):
        with contextlib.suppress(BadSpec):
            older = attrs.evolve(document, text=text)
            older = parse_document(older.data, one.path, foreign=True)
            older = _without(one.editor, older, slot, _ours(one, older, slot))
            older, _ = give_back(one.editor, older, record)
            if _meaning(older, slot) == _meaning(result, slot):
                return older, back
    return result, back


def _meaning(document: Document, slot: KeyPath) -> tuple[object, object]:
    """What a file says, whatever the order of its entries; none at all is the same as no place for any."""
    entries = {name: entry_at(document, slot, name) for name in document.entry_names(slot)}
    return entries, _beside(document.value, slot)


def _beside(value: Mapping[str, object], slot: KeyPath) -> dict[str, object]:
    """All but what is at `slot`, and objects on the way that hold nothing else."""
    rest = {key: inner for key, inner in value.items() if key != slot[0]}
    below = value.get(slot[0])
    if len(slot) > 1 and isinstance(below, dict) and (inner := _beside(below, slot[1:])):
        rest[slot[0]] = inner
    return rest


def _stored(document: Document, slot: KeyPath, name: str, new: Mapping[str, object]) -> Mapping[str, object]:
    """The entry as it would be read back."""
    return {"name": name, **new} if in_list(document, slot) else new


def _uninstall(
    one: Target, names: frozenset[str], backups: Backups, data: bytes | None, dry_run: bool
) -> Change:
    path = one.path
    record = backups.load(path)
    if data is None:
        if not dry_run:
            backups.forget(path)
        return Change(path)
    signs = (b"bridge", b"mcpd.sock", *(address.encode() for address in one.addresses))
    if record is None and not any(sign in data for sign in signs):
        return Change(path)  # broken or not, there is nothing of ours in it
    document = _document(one, data)
    slot = slot_of(one, document)
    ours = _ours(one, document, slot)
    chosen = [name for name in ours if not names or name in names]
    untouched = record is not None and digest(data) == record.after
    if chosen:
        check_writable(path)
    if record is not None and untouched and chosen == ours:
        if not dry_run:
            if record.existed:
                _write(path, parse_document(record.before, path, foreign=True), data)
            else:
                _remove(path, record)
            backups.forget(path)
        return Change(path, removed=tuple(ours), restored=True)
    document, back = _without_us(one, document, slot, chosen, record if chosen == ours else None)
    change = Change(path, removed=tuple(chosen), given_back=tuple(back))
    if change.anything and not dry_run:
        if record is not None and untouched:
            _keep(backups, _leaving(one, record, document))
        _write(path, document, data)
        if chosen == ours:
            backups.forget(path)
    return change


def _replaced(
    one: Target, document: Document, slot: KeyPath, name: str, new: Mapping[str, object]
) -> list[str]:
    """Our entries that the new one stands for: of its name, or that show all of mcpd as it does."""
    ours = _ours(one, document, slot)
    whole = not _is_a_part(new)
    return [
        other
        for other in ours
        if other == name or (whole and not _is_a_part(entry_at(document, slot, other)))
    ]


def _is_a_part(entry: Mapping[str, object]) -> bool:
    """Whether an entry of ours shows one server or profile only."""
    words = str([entry.get("command"), entry.get("args")])
    url = entry.get("url")
    return "--server" in words or "--profile" in words or (isinstance(url, str) and not url.endswith("#/mcp"))


def _without(editor: Editor, document: Document, slot: KeyPath, names: list[str]) -> Document:
    for name in names:
        document = unlisted(editor, document.without_entry(slot, name), name)
    return document


def _ours(one: Target, document: Document, slot: KeyPath) -> list[str]:
    """The names of our entries."""
    return [
        name for name in document.entry_names(slot) if is_ours(entry_at(document, slot, name), one.addresses)
    ]


# ---- the disk ----------------------------------------------------------------------------------------


def _document(one: Target, data: bytes | None) -> Document:
    return parse_document(preface(one.editor) if data is None else data, one.path, foreign=True)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise file_error("read", path, error) from None


def _write(path: Path, document: Document, seen: bytes | None) -> None:
    if _bytes(path) != seen:
        raise _ChangedMeanwhile
    write_document(path, document)


def _remove(path: Path, record: Record) -> None:
    """A file that we made, and the directories that we made for it."""
    try:
        os.unlink(os.path.realpath(path))  # through a link, as it was written
    except OSError as error:
        raise file_error("remove", path, error) from None
    for directory in reversed(record.made):
        with contextlib.suppress(OSError):  # not empty: somebody uses it by now
            os.rmdir(directory)


def _missing(path: Path) -> tuple[str, ...]:
    """The directories that writing the file will make."""
    return tuple(str(parent) for parent in reversed(path.parents) if not parent.exists())


def _keep(backups: Backups, record: Record) -> None:
    try:
        backups.keep(record)
    except (OSError, UnusablePath) as error:
        raise CtlError(f"cannot keep a backup of {record.path}: {error}") from None
