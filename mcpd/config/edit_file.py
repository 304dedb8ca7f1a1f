"""Change the user's file: servers added or removed, everything else left as it was written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from mcpd.config.in_place_edits.document import Document, KeyPath, editor_for, read_document, write_document
from mcpd.config.loader import format_of
from mcpd.model.errors import BadSpec, Problem


def add_server(path: Path, name: str, definition: Mapping[str, object], *, replace: bool = False) -> None:
    """Write the server into the file, last of all, or in the place of the one that it replaces.

    The file and its directory are made if missing. Comments, order and formatting of the rest stay. The
    definition is written as it is: check it first. Raises BadSpec when the file cannot be parsed or written,
    or has the server already and not `replace`.
    """
    document = read_document(path)
    slot = _servers_slot(document)
    if name not in document.entry_names(slot):
        document = document.with_entry(slot, name, definition)
    elif replace:
        document = _change_entry(document, (*slot, name), definition)
    else:
        raise _already_exists(name, path)
    write_document(path, document)


def put_servers(
    path: Path,
    definitions: Mapping[str, Mapping[str, object]],
    before: Mapping[str, Mapping[str, object]],
) -> None:
    """Several in their order, all of them or none: added, or changed where they are for those that are there.

    Of these only what differs is written; they have to be as they were `before`. Raises BadSpec as
    `add_server`, and when somebody has changed one of them meanwhile.
    """
    document = read_document(path)
    for name, definition in definitions.items():
        slot = _servers_slot(document)
        old = before.get(name)
        if old is None and name in document.entry_names(slot):
            raise _already_exists(name, path)
        if old is None:
            document = document.with_entry(slot, name, definition)
            continue
        if document.value_at((*slot, name)) != old:
            message = f"server '{name}' has been changed by somebody else meanwhile"
            raise BadSpec([Problem("$", message, "look at it again")], str(path))
        document = _change_entry(document, (*slot, name), definition)
    write_document(path, document)


def remove_server(path: Path, name: str) -> bool:
    """Take the server out of the file. False: it was not in there, and nothing was written.

    Raises BadSpec when the file cannot be parsed or written.
    """
    document = read_document(path)
    slot = _servers_slot(document)
    if name not in document.entry_names(slot):
        return False
    write_document(path, document.without_entry(slot, name))
    return True


def import_editor(path: Path) -> None:
    """Import what changing this file would take, for a program that lives longer than what is installed."""
    with contextlib.suppress(BadSpec):  # of no known format: it will not be changed
        editor_for(format_of(path, str(path)))


def _change_entry(document: Document, place: KeyPath, definition: Mapping[str, object]) -> Document:
    """With the definition at `place` changed to this one, each member that stays as it is left alone."""
    there = document.value_at(place)
    if not isinstance(there, dict):
        return document.with_value(place, definition)
    for key in [key for key in there if key not in definition]:
        document = document.without_entry(place, key)
    for key, value in definition.items():
        if key not in there or there[key] != value:
            document = document.with_value((*place, key), value)
    return document


def _already_exists(name: str, path: Path) -> BadSpec:
    fix = f"remove it first: `mcpctl remove {name}`"
    return BadSpec([Problem("$", f"server '{name}' is in {path} already", fix)], str(path))


def _servers_slot(document: Document) -> KeyPath:
    """Where this file keeps its servers, or would."""
    return ("mcp", "servers") if isinstance(document.value.get("mcp"), dict) else ("mcpServers",)
