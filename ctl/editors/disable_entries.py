"""Disables or removes an editor's own entries for servers that mcpd has, and restores them."""

from __future__ import annotations

from typing import Literal

from ctl.editors.backup import BackupRecord, DisabledEntry
from ctl.editors.editor_catalog import EditorSpec
from mcpd.config.in_place_edits.document import Document, KeyPath

_EXCLUDED, _ALLOWED = ("mcp", "excluded"), ("mcp", "allowed")
"""Gemini's lists of the servers that it does not start, and of the only ones that it starts."""


def disable_entry(
    editor: EditorSpec, document: Document, slot: KeyPath, name: str
) -> tuple[Document, DisabledEntry]:
    """Disable an entry with the editor's own switch; remove it if there is none."""
    found = entry_at(document, slot, name)
    method = _disable_method(editor, slot)
    if method is None or is_list(document, slot):
        return document.without_entry(slot, name), DisabledEntry(name, found, removed=True)
    if method == "excluded":
        document = _set_listed(document, _EXCLUDED, name, True)
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
    method = _disable_method(editor, slot)
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
            document = _set_listed(document, _EXCLUDED, entry.name, False)
        elif method and exists and entry_at(document, slot, entry.name).get(method[0]) == method[1]:
            path = (*slot, entry.name)
            if method[0] in entry.entry:
                document = document.with_value((*path, method[0]), entry.entry[method[0]])
            else:
                document = document.without_entry(path, method[0])
        if document is not before:
            restored.append(entry.name)
    return document, restored


def set_allowed(editor: EditorSpec, document: Document, name: str, allowed: bool) -> Document:
    """Add a name to Gemini's list of allowed servers, or remove it. Without such a list, all are allowed."""
    if editor.disable_method != "excluded" or not is_list(document, _ALLOWED):
        return document
    return _set_listed(document, _ALLOWED, name, allowed)


def _set_listed(document: Document, path: KeyPath, name: str, listed: bool) -> Document:
    """Return the document with `name` in the list at `path`, or without it; itself if nothing changes."""
    value = document.value_at(path)
    names = value if isinstance(value, list) else []
    if (name in names) is listed:
        return document
    others = [each for each in names if each != name]
    return document.with_value(path, [*others, name] if listed else others)


def _disable_method(editor: EditorSpec, slot: KeyPath) -> tuple[str, bool] | Literal["excluded"] | None:
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
