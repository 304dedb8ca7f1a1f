"""All the files of the editors, gone through: servers, what cannot be one, and files that are broken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from ctl.editors.editor_paths import EditorFile, UserContext
from ctl.editors.mapping import map_entry, unwrap_proxy
from ctl.editors.mcpd_entry import is_mcpd_entry
from ctl.editors.read_entries import RawEntry, dotenv_values, identify_file, read_entries
from ctl.editors.variables import NeededSecret, UnusableEntry, VariableTranslator
from mcpd.config.definition import MAX_NAME_LENGTH
from mcpd.config.in_place_edits.document import Document, read_document
from mcpd.model.errors import BadSpec

IS_MCPD = "it is mcpd itself"
"""Why an entry that `mcpctl install` wrote, or somebody like it, is passed over."""


@attrs.frozen
class EntrySource:
    """Where an entry stands."""

    editor: str
    title: str
    path: Path
    scope: str
    name: str
    """What it is called there."""
    project: Path | None = None


@attrs.frozen
class ImportCandidate:
    """One entry of one file that could become a server of ours."""

    name: str
    """Its name, made fit to be one of ours."""
    definition: dict[str, object] = attrs.field(repr=False)
    source: EntrySource
    implied_cwd: str | None = None
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()


@attrs.frozen
class SkippedEntry:
    """One entry that is left where it is, and why."""

    source: EntrySource
    reason: str


@attrs.define
class DiscoveredEntries:
    """All that was found."""

    files: list[Path] = attrs.field(factory=list)
    candidates: list[ImportCandidate] = attrs.field(factory=list)
    skipped: list[SkippedEntry] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)


def discover(
    found: Iterable[EditorFile], named: Iterable[Path], around: UserContext, addresses: frozenset[str]
) -> DiscoveredEntries:
    """Read the files found, and those that somebody named. A broken one is a warning; nothing is raised."""
    result = DiscoveredEntries()
    for one in found:
        document = _read(one.path, result)
        if document is not None:
            _add_entries(one, document, around, addresses, result)
    for path in named:
        document = _read(path, result)
        if document is not None:
            _add_entries(identify_file(path, document), document, around, addresses, result)
    return result


def discover_in_file(found: EditorFile, document: Document, around: UserContext) -> DiscoveredEntries:
    """The same for one file that has been read."""
    result = DiscoveredEntries([found.path])
    _add_entries(found, document, around, frozenset(), result)
    return result


def unwrap_candidate(one: ImportCandidate) -> ImportCandidate:
    """The server behind `mcp-remote` or `mcp-proxy`, where the entry runs that; else the entry itself."""
    definition = unwrap_proxy(one.definition)
    return one if definition is None else attrs.evolve(one, definition=definition, implied_cwd=None)


def valid_server_name(name: str) -> str:
    """`name`, or the nearest that a server of ours can have."""
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
    around: UserContext,
    addresses: frozenset[str],
    result: DiscoveredEntries,
) -> None:
    inputs = _inputs(document)
    values = dotenv_values(found, around)
    for raw in read_entries(found, document, around):
        source = EntrySource(raw.editor.name, raw.editor.title, raw.path, raw.scope, raw.name, raw.project)
        if is_mcpd_entry(raw.fields, addresses):
            result.skipped.append(SkippedEntry(source, IS_MCPD))
            continue
        if raw.project is not None and not raw.project.is_dir():
            result.skipped.append(
                SkippedEntry(source, f"its directory is gone: {around.display_path(raw.project)}")
            )
            continue
        workspace = raw.project or (around.project if around.project_given else None)
        translator = VariableTranslator(
            raw.editor.variables, around.home, workspace, found.path.parent, inputs, values
        )
        try:
            result.candidates.append(_candidate(raw, source, translator))
        except UnusableEntry as reason:
            result.skipped.append(SkippedEntry(source, str(reason)))


def _candidate(raw: RawEntry, source: EntrySource, translator: VariableTranslator) -> ImportCandidate:
    one = map_entry(raw, translator)
    notes = one.notes
    if unwrap_proxy(one.definition) is not None:
        words = (
            "it only passes on to a URL, which mcpd can reach itself unless a login is wanted: see --unfold"
        )
        notes = (*notes, words)
    return ImportCandidate(
        valid_server_name(raw.name), one.definition, source, one.implied_cwd, notes, one.needed_secrets
    )


def _inputs(document: Document) -> dict[str, dict[str, object]]:
    """VS Code's questions by their id."""
    found: dict[str, dict[str, object]] = {}
    for slot in (("inputs",), ("mcp", "inputs")):
        asked = document.value_at(slot)
        for one in asked if isinstance(asked, list) else ():
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                found[one["id"]] = one
    return found
