"""Change the user's file: servers added or removed, everything else left as it was written."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from mcpd.config.document import Document, Slot, editor_of, read_document, write_document
from mcpd.config.formats import format_of
from mcpd.model.errors import BadSpec, Problem


def add_server(path: Path, name: str, definition: Mapping[str, object], *, replace: bool = False) -> None:
    """Write the server into the file, last of all, or in the place of the one that it replaces.

    The file and its directory are made if missing. Comments, order and formatting of the rest stay. The
    definition is written as it is: check it first.
    Raises BadSpec when the file cannot be parsed or written, or has the server already and not `replace`.
    """
    add_servers(path, {name: definition}, replace=replace)


def add_servers(
    path: Path, definitions: Mapping[str, Mapping[str, object]], *, replace: bool = False
) -> None:
    """The same for several in their order: all of them are written, or none."""
    document = read_document(path)
    for name, definition in definitions.items():
        slot = _slot(document)
        if name in document.names(slot):
            if not replace:
                fix = f"remove it first: `mcpctl remove {name}`"
                raise BadSpec([Problem("$", f"server '{name}' is in {path} already", fix)], str(path))
            document = document.with_value((*slot, name), definition)
        else:
            document = document.with_entry(slot, name, definition)
    write_document(path, document)


def remove_server(path: Path, name: str) -> bool:
    """Take the server out of the file. False: it was not in there, and nothing was written.

    Raises BadSpec when the file cannot be parsed or written.
    """
    document = read_document(path)
    slot = _slot(document)
    if name not in document.names(slot):
        return False
    write_document(path, document.without_entry(slot, name))
    return True


def prepare(path: Path) -> None:
    """Import what changing this file would take, for a program that lives longer than what is installed."""
    with contextlib.suppress(BadSpec):  # of no known format: it will not be changed
        editor_of(format_of(path, str(path)))


def _slot(document: Document) -> Slot:
    """Where this file keeps its servers, or would."""
    return ("mcp", "servers") if isinstance(document.value.get("mcp"), dict) else ("mcpServers",)
