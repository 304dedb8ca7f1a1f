"""Entries that mcpd makes superfluous: switched off or taken out of an editor's file, and given back."""

from __future__ import annotations

from typing import Literal

from ctl.editors.backup import BackupRecord, DisabledEntry
from ctl.editors.editor_catalog import EditorSpec
from mcpd.config.in_place_edits.document import Document, KeyPath


def disable_entry(
    editor: EditorSpec, document: Document, slot: KeyPath, name: str
) -> tuple[Document, DisabledEntry]:
    """Switch an entry off the editor's own way; where it has none, take it out."""
    found = entry_at(document, slot, name)
    switch = _disable_method(editor, slot)
    if switch is None or isinstance(document.value_at(slot), list):
        return document.without_entry(slot, name), DisabledEntry(name, found, removed=True)
    if not isinstance(switch, tuple):
        names = document.value_at(("mcp", "excluded"))
        others = [one for one in names if one != name] if isinstance(names, list) else []
        return document.with_value(("mcp", "excluded"), [*others, name]), DisabledEntry(
            name, found, removed=False
        )
    key, value = switch
    return document.with_value((*slot, name, key), value), DisabledEntry(name, found, removed=False)


def restore_entries(
    editor: EditorSpec, document: Document, record: BackupRecord
) -> tuple[Document, list[str]]:
    """Undo `take` in a file that has changed since: what is not as we left it is somebody's decision."""
    back: list[str] = []
    slot = record.slot
    for taken in record.disabled:
        there = taken.name in document.entry_names(slot)
        if taken.removed:
            if not there:
                fields = {
                    key: value
                    for key, value in taken.entry.items()
                    if key != "name" or not is_list(document, slot)
                }
                document = document.with_entry(slot, taken.name, fields)
                back.append(taken.name)
            continue
        switch = _disable_method(editor, slot)
        if switch == "excluded":
            names = document.value_at(("mcp", "excluded"))
            if isinstance(names, list) and taken.name in names:
                document = document.with_value(
                    ("mcp", "excluded"), [one for one in names if one != taken.name]
                )
                back.append(taken.name)
        elif (
            switch is not None and there and entry_at(document, slot, taken.name).get(switch[0]) == switch[1]
        ):
            place = (*slot, taken.name)
            if switch[0] in taken.entry:
                document = document.with_value((*place, switch[0]), taken.entry[switch[0]])
            else:
                document = document.without_entry(place, switch[0])
            back.append(taken.name)
    return document, back


def add_to_allowlist(editor: EditorSpec, document: Document, name: str) -> Document:
    """Gemini starts only what its list of allowed servers names, if it has one."""
    names = document.value_at(("mcp", "allowed"))
    if editor.disable_method != "excluded" or not isinstance(names, list) or name in names:
        return document
    return document.with_value(("mcp", "allowed"), [*names, name])


def remove_from_allowlist(editor: EditorSpec, document: Document, name: str) -> Document:
    """Undo `allowed`."""
    names = document.value_at(("mcp", "allowed"))
    if editor.disable_method != "excluded" or not isinstance(names, list) or name not in names:
        return document
    return document.with_value(("mcp", "allowed"), [one for one in names if one != name])


def _disable_method(editor: EditorSpec, slot: KeyPath) -> tuple[str, bool] | Literal["excluded"] | None:
    """How this editor switches an entry off; opencode's second version does it the other way round."""
    if editor.entry_form == "opencode" and slot[-1] == "servers":
        return ("disabled", True)
    return editor.disable_method


def entry_at(document: Document, slot: KeyPath, name: str) -> dict[str, object]:
    """What stands there under this name, in an object or a list; empty when nothing does."""
    value = document.value_at(slot)
    if isinstance(value, list):
        return next((one for one in value if isinstance(one, dict) and one.get("name") == name), {})
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def is_list(document: Document, slot: KeyPath) -> bool:
    """Whether that is a list, whose entries hold their names."""
    return isinstance(document.value_at(slot), list)
