"""Our entry into an editor's file and out of it again, with everything else of the file left as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import attrs

from ctl.editors.backup import Backups, Record, Taken, digest
from ctl.editors.catalogue import Editor
from ctl.editors.entry import Target, listed, preface, slot_of
from ctl.editors.ourselves import is_ours
from ctl.errors import CtlError
from mcpd.config.document import Document, Slot, cannot, document_of, write_document
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
    entry_for: Callable[[Slot], dict[str, object]],
    take_over: Callable[[Slot, Document], list[str]],
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
    entry_for: Callable[[Slot], dict[str, object]],
    take_over: Callable[[Slot, Document], list[str]],
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
    clean = _without(document, slot, replaced)
    if name in clean.names(slot):
        fix = "choose another name with --name"
        raise BadSpec([Problem("$", f"it has another server called '{name}'", fix)], str(path))
    already = () if record is None else record.taken
    chosen = [other for other in take_over(slot, clean) if other not in [one.name for one in already]]
    if (
        replaced == [name]
        and _entry(document, slot, name) == _stored(document, slot, name, new)
        and not chosen
    ):
        return Change(path)
    taken: list[Taken] = []
    result = clean
    for other in dict.fromkeys(chosen):
        result, done = _take(one.editor, result, slot, other)
        taken.append(done)
    result = result.with_entry(slot, name, new, listed=listed(one))
    before = _before(one, document, slot, record, data)
    change = Change(path, added=name, taken=tuple(taken), existed=before is not None)
    if not dry_run:
        made = record.made if record is not None else _missing(path)
        everything = (*already, *taken)
        after = digest(result.data)
        _keep(backups, Record(str(path), before is not None, before or b"", after, slot, everything, made))
        _write(path, result, data)
    return change


def _before(
    one: Target, document: Document, slot: Slot, record: Record | None, data: bytes | None
) -> bytes | None:
    """What the file is to come back to: as it was before us, or, changed since, as it would be without us."""
    if data is None:
        return None
    if record is not None and digest(data) == record.after:
        return record.before if record.existed else None
    ours = [name for name in document.names(slot) if _is_entry_ours(one, document, slot, name)]
    document = _without(document, slot, ours)
    if record is not None:
        document, _ = _give_back(one.editor, document, record)
    return document.data


def _stored(document: Document, slot: Slot, name: str, new: Mapping[str, object]) -> Mapping[str, object]:
    """The entry as it would be read back."""
    return {"name": name, **new} if _in_list(document, slot) else new


def _uninstall(
    one: Target, names: frozenset[str], backups: Backups, data: bytes | None, dry_run: bool
) -> Change:
    path = one.path
    record = backups.load(path)
    if data is None:
        if not dry_run:
            backups.forget(path)
        return Change(path)
    document = _document(one, data)
    slot = slot_of(one, document)
    ours = [name for name in document.names(slot) if _is_entry_ours(one, document, slot, name)]
    chosen = [name for name in ours if not names or name in names]
    untouched = record is not None and digest(data) == record.after
    if record is not None and untouched and chosen == ours:
        if not dry_run:
            if record.existed:
                _write(path, document_of(record.before, path, foreign=True), data)
            else:
                _remove(path, record)
            backups.forget(path)
        return Change(path, removed=tuple(ours), restored=True)
    document = _without(document, slot, chosen)
    back: list[str] = []
    if record is not None and chosen == ours:
        document, back = _give_back(one.editor, document, record)
    change = Change(path, removed=tuple(chosen), given_back=tuple(back))
    if change.anything and not dry_run:
        if record is not None and untouched:
            _keep(backups, attrs.evolve(record, after=digest(document.data)))
        _write(path, document, data)
        if chosen == ours:
            backups.forget(path)
    return change


def _replaced(one: Target, document: Document, slot: Slot, name: str, new: Mapping[str, object]) -> list[str]:
    """Our entries that the new one stands for: of its name, or that show all of mcpd as it does."""
    ours = [other for other in document.names(slot) if _is_entry_ours(one, document, slot, other)]
    whole = not _is_a_part(new)
    return [
        other for other in ours if other == name or (whole and not _is_a_part(_entry(document, slot, other)))
    ]


def _is_a_part(entry: Mapping[str, object]) -> bool:
    """Whether an entry of ours shows one server or profile only."""
    words = str([entry.get("command"), entry.get("args")])
    url = entry.get("url")
    return "--server" in words or "--profile" in words or (isinstance(url, str) and not url.endswith("#/mcp"))


def _take(editor: Editor, document: Document, slot: Slot, name: str) -> tuple[Document, Taken]:
    """Switch an entry off the editor's own way; where it has none, take it out."""
    found = _entry(document, slot, name)
    switch = _switch(editor, slot)
    if switch is None or isinstance(document.at(slot), list):
        return document.without_entry(slot, name), Taken(name, found, removed=True)
    if not isinstance(switch, tuple):
        names = document.at(("mcp", "excluded"))
        others = [one for one in names if one != name] if isinstance(names, list) else []
        return document.with_value(("mcp", "excluded"), [*others, name]), Taken(name, found, removed=False)
    key, value = switch
    return document.with_value((*slot, name, key), value), Taken(name, found, removed=False)


def _give_back(editor: Editor, document: Document, record: Record) -> tuple[Document, list[str]]:
    """Undo `_take` in a file that has changed since: what is not as we left it is somebody's decision."""
    back: list[str] = []
    slot = record.slot
    for taken in record.taken:
        there = taken.name in document.names(slot)
        if taken.removed:
            if not there:
                fields = {
                    key: value
                    for key, value in taken.entry.items()
                    if key != "name" or not _in_list(document, slot)
                }
                document = document.with_entry(slot, taken.name, fields)
                back.append(taken.name)
            continue
        switch = _switch(editor, slot)
        if switch == "excluded":
            names = document.at(("mcp", "excluded"))
            if isinstance(names, list) and taken.name in names:
                document = document.with_value(
                    ("mcp", "excluded"), [one for one in names if one != taken.name]
                )
                back.append(taken.name)
        elif switch is not None and there and _entry(document, slot, taken.name).get(switch[0]) == switch[1]:
            document = document.with_value(
                (*slot, taken.name, switch[0]), taken.entry.get(switch[0], not switch[1])
            )
            back.append(taken.name)
    return document, back


def _switch(editor: Editor, slot: Slot) -> tuple[str, bool] | Literal["excluded"] | None:
    """How this editor switches an entry off; opencode's second version does it the other way round."""
    if editor.form == "opencode" and slot[-1] == "servers":
        return ("disabled", True)
    return editor.off


def _without(document: Document, slot: Slot, names: list[str]) -> Document:
    for name in names:
        document = document.without_entry(slot, name)
    return document


def _entry(document: Document, slot: Slot, name: str) -> dict[str, object]:
    value = document.at(slot)
    if isinstance(value, list):
        return next((one for one in value if isinstance(one, dict) and one.get("name") == name), {})
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _is_entry_ours(one: Target, document: Document, slot: Slot, name: str) -> bool:
    return is_ours(_entry(document, slot, name), one.addresses)


def _in_list(document: Document, slot: Slot) -> bool:
    return isinstance(document.at(slot), list)


# ---- the disk ----------------------------------------------------------------------------------------


def _document(one: Target, data: bytes | None) -> Document:
    return document_of(preface(one.editor) if data is None else data, one.path, foreign=True)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot("read", path, error) from None


def _write(path: Path, document: Document, seen: bytes | None) -> None:
    if _bytes(path) != seen:
        raise _ChangedMeanwhile
    write_document(path, document)


def _remove(path: Path, record: Record) -> None:
    """A file that we made, and the directories that we made for it."""
    try:
        os.unlink(os.path.realpath(path))  # through a link, as it was written
    except OSError as error:
        raise cannot("remove", path, error) from None
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
