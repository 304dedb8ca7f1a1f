"""All the files of the editors, gone through: servers, what cannot be one, and files that are broken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import attrs

from ctl.editors.editor_paths import Found, Surroundings
from ctl.editors.external_settings import variables
from ctl.editors.mapping import mapped
from ctl.editors.read_entries import Raw, entries, whose
from ctl.editors.remote_proxies import behind
from ctl.editors.self_detection import is_ours
from ctl.editors.variables import Needed, Translator, Unusable
from mcpd.config.definition import MAX_NAME_LENGTH
from mcpd.config.in_place_edits.document import Document, read_document
from mcpd.model.errors import BadSpec

OURSELVES = "it is mcpd itself"
"""Why an entry that `mcpctl install` wrote, or somebody like it, is passed over."""


@attrs.frozen
class Source:
    """Where an entry stands."""

    editor: str
    title: str
    path: Path
    scope: str
    name: str
    """What it is called there."""
    project: Path | None = None


@attrs.frozen
class Candidate:
    """One entry of one file that could become a server of ours."""

    name: str
    """Its name, made fit to be one of ours."""
    definition: dict[str, object] = attrs.field(repr=False)
    source: Source
    implied_cwd: str | None = None
    notes: tuple[str, ...] = ()
    needed: tuple[Needed, ...] = ()


@attrs.frozen
class Passed:
    """One entry that is left where it is, and why."""

    source: Source
    reason: str


@attrs.define
class Survey:
    """All that was found."""

    files: list[Path] = attrs.field(factory=list)
    candidates: list[Candidate] = attrs.field(factory=list)
    passed: list[Passed] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)


def survey(
    found: Iterable[Found], named: Iterable[Path], around: Surroundings, addresses: frozenset[str]
) -> Survey:
    """Read the files found, and those that somebody named. A broken one is a warning; nothing is raised."""
    result = Survey()
    for one in found:
        document = _read(one.path, result)
        if document is not None:
            _look_into(one, document, around, addresses, result)
    for path in named:
        document = _read(path, result)
        if document is not None:
            _look_into(whose(path, document), document, around, addresses, result)
    return result


def look_into(found: Found, document: Document, around: Surroundings) -> Survey:
    """The same for one file that has been read."""
    result = Survey([found.path])
    _look_into(found, document, around, frozenset(), result)
    return result


def unfolded(one: Candidate) -> Candidate:
    """The server behind `mcp-remote` or `mcp-proxy`, where the entry runs that; else the entry itself."""
    definition = behind(one.definition)
    return one if definition is None else attrs.evolve(one, definition=definition, implied_cwd=None)


def our_name(name: str) -> str:
    """`name`, or the nearest that a server of ours can have."""
    better = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:MAX_NAME_LENGTH].rstrip(".-")
    return better or "server"


def _read(path: Path, result: Survey) -> Document | None:
    try:
        document = read_document(path, foreign=True)
    except BadSpec as error:
        for problem in error.problems:
            place = str(path) if problem.path == "$" else problem.path
            result.warnings.append(f"{place}: {problem.message}")
        return None
    result.files.append(path)
    return document


def _look_into(
    found: Found, document: Document, around: Surroundings, addresses: frozenset[str], result: Survey
) -> None:
    inputs = _inputs(document)
    values = variables(found, around)
    for raw in entries(found, document, around):
        source = Source(raw.editor.name, raw.editor.title, raw.path, raw.scope, raw.name, raw.project)
        if is_ours(raw.fields, addresses):
            result.passed.append(Passed(source, OURSELVES))
            continue
        if raw.project is not None and not raw.project.is_dir():
            result.passed.append(Passed(source, f"its directory is gone: {around.shown(raw.project)}"))
            continue
        workspace = raw.project or (around.project if around.chosen else None)
        translator = Translator(
            raw.editor.variables, around.home, workspace, found.path.parent, inputs, values
        )
        try:
            result.candidates.append(_candidate(raw, source, translator))
        except Unusable as reason:
            result.passed.append(Passed(source, str(reason)))


def _candidate(raw: Raw, source: Source, translator: Translator) -> Candidate:
    one = mapped(raw, translator)
    notes = one.notes
    if behind(one.definition) is not None:
        words = (
            "it only passes on to a URL, which mcpd can reach itself unless a login is wanted: see --unfold"
        )
        notes = (*notes, words)
    return Candidate(our_name(raw.name), one.definition, source, one.implied_cwd, notes, one.needed)


def _inputs(document: Document) -> dict[str, dict[str, object]]:
    """VS Code's questions by their id."""
    found: dict[str, dict[str, object]] = {}
    for slot in (("inputs",), ("mcp", "inputs")):
        asked = document.value_at(slot)
        for one in asked if isinstance(asked, list) else ():
            if isinstance(one, dict) and isinstance(one.get("id"), str):
                found[one["id"]] = one
    return found
