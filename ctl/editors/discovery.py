"""Goes through the files of all editors: servers to import, entries to skip, and unreadable files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from ctl.editors.editor_paths import EditorFile, UserContext
from ctl.editors.mapping import is_disabled, map_entry, unwrap_proxy
from ctl.editors.mcpd_entry import is_mcpd_entry
from ctl.editors.read_entries import RawEntry, dotenv_values, identify_file, read_entries
from ctl.editors.rules import ToolPermission, entry_permissions
from ctl.editors.variables import NeededSecret, UnusableEntry, VariableTranslator
from mcpd.config.in_place_edits.document import Document, read_document
from mcpd.config.server_definition import MAX_NAME_LENGTH
from mcpd.model.errors import BadSpec

IS_MCPD = "it is mcpd itself"
"""Why an entry such as the one of `mcpctl install` is skipped."""


@attrs.frozen
class EntrySource:
    """The location of an entry."""

    editor: str
    title: str
    path: Path
    scope: str
    name: str
    """The name in the editor's file."""
    project: Path | None = None


@attrs.frozen
class ImportCandidate:
    """One entry of one file that can become a server of mcpd."""

    name: str
    """The name of the entry, made valid for mcpd."""
    definition: dict[str, object] = attrs.field(repr=False)
    source: EntrySource
    implied_cwd: str | None = None
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()
    permissions: tuple[ToolPermission, ...] = ()
    """Which of its tools the editor denies or asks about."""


@attrs.frozen
class SkippedEntry:
    """One entry that is not imported."""

    source: EntrySource
    reason: str
    is_used: bool = True
    """Whether the editor uses it, because it is not disabled there."""


@attrs.define
class DiscoveredEntries:
    """The result of a search."""

    files: list[Path] = attrs.field(factory=list)
    candidates: list[ImportCandidate] = attrs.field(factory=list)
    skipped: list[SkippedEntry] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)


def discover(
    found: Iterable[EditorFile], named: Iterable[Path], context: UserContext, addresses: frozenset[str]
) -> DiscoveredEntries:
    """Read the files found and the files that the user named. An unreadable file gives a warning."""
    result = DiscoveredEntries()
    for one in found:
        document = _read(one.path, result)
        if document is not None:
            _add_entries(one, document, context, addresses, result)
    for path in named:
        document = _read(path, result)
        if document is not None:
            _add_entries(identify_file(path, document), document, context, addresses, result)
    return result


def discover_in_file(
    found: EditorFile, document: Document, context: UserContext, addresses: frozenset[str]
) -> DiscoveredEntries:
    """Do the same for one file that has been read."""
    result = DiscoveredEntries([found.path])
    _add_entries(found, document, context, addresses, result)
    return result


def unwrap_candidate(one: ImportCandidate) -> ImportCandidate:
    """Return the server behind `mcp-remote`; any other entry unchanged."""
    definition = unwrap_proxy(one.definition)
    return one if definition is None else attrs.evolve(one, definition=definition, implied_cwd=None)


def valid_server_name(name: str) -> str:
    """Return `name`, or a similar one that is valid in mcpd."""
    better = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:MAX_NAME_LENGTH].rstrip(".-")
    return better or "server"


def _read(path: Path, result: DiscoveredEntries) -> Document | None:
    try:
        document = read_document(path, foreign=True)
    except BadSpec as error:
        for problem in error.problems:
            place = str(path) if problem.path == "$" else problem.path
            result.warnings.append(f"{place}: {problem.message}")
        return None
    result.files.append(path)
    return document


def _add_entries(
    found: EditorFile,
    document: Document,
    context: UserContext,
    addresses: frozenset[str],
    result: DiscoveredEntries,
) -> None:
    inputs = _inputs(document)
    values = dotenv_values(found, context)
    for raw in read_entries(found, document, context):
        source = EntrySource(raw.editor.name, raw.editor.title, raw.path, raw.scope, raw.name, raw.project)
        if is_mcpd_entry(raw.fields, addresses):
            result.skipped.append(SkippedEntry(source, IS_MCPD))
            continue
        if raw.project is not None and not raw.project.is_dir():
            result.skipped.append(
                SkippedEntry(source, f"its directory no longer exists: {context.display_path(raw.project)}")
            )
            continue
        workspace = raw.project or (context.project if context.project_given else None)
        translator = VariableTranslator(
            raw.editor.variables,
            context.home,
            workspace,
            found.path.parent,
            inputs,
            values,
            raw.editor.name,
            str(found.path),
        )
        try:
            result.candidates.append(_candidate(raw, source, translator))
        except UnusableEntry as reason:
            result.skipped.append(SkippedEntry(source, str(reason), is_used=not is_disabled(raw)))


def _candidate(raw: RawEntry, source: EntrySource, translator: VariableTranslator) -> ImportCandidate:
    one = map_entry(raw, translator)
    notes = one.notes
    if unwrap_proxy(one.definition) is not None:
        note = "it only connects to a URL, which mcpd can do itself: see --unfold"
        notes = (*notes, note)
    return ImportCandidate(
        valid_server_name(raw.name),
        one.definition,
        source,
        one.implied_cwd,
        notes,
        one.needed_secrets,
        entry_permissions(raw.fields, raw.path, raw.project),
    )


def _inputs(document: Document) -> dict[str, dict[str, object]]:
    """Return VS Code's inputs by id."""
    found: dict[str, dict[str, object]] = {}
    for slot in (("inputs",), ("mcp", "inputs")):
        asked = document.value_at(slot)
        for one in asked if isinstance(asked, list) else ():
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                found[one["id"]] = one
    return found
