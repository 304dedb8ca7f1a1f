"""Reads the entries in the files of all editors: servers to import, entries to skip, and unreadable files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from ctl.cli.json_text import mapping
from ctl.editors.config_files import (
    BY_NAME,
    GENERIC,
    SERVERS,
    ConfigLocation,
    EditorFile,
    EditorSpec,
    Scope,
    UserContext,
)
from ctl.editors.convert_entry import Fields, RawEntry, map_entry, unwrap_proxy
from ctl.editors.mcpd_entry import is_mcpd_entry, opencode_slot
from ctl.editors.permission_rules import ToolPermission, entry_permissions
from ctl.editors.variables import NeededSecret, UnusableEntry, VariableTranslator, read_dotenv
from mcpd.config.in_place_edits.document import Document, KeyPath, read_document
from mcpd.config.server_specs import MAX_NAME_LENGTH
from mcpd.model.errors import BadSpec

IS_MCPD = "it is mcpd itself"
MAX_ENTRIES = 1000
"""Servers of one file that are read; each takes a millisecond or two until a person sees it."""
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
    fields: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    """As they are in the file."""


@attrs.define
class DiscoveredEntries:
    """The result of a search."""

    files: list[Path] = attrs.field(factory=list)
    candidates: list[ImportCandidate] = attrs.field(factory=list)
    skipped: list[SkippedEntry] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)
    not_chosen: list[ImportCandidate] = attrs.field(factory=list)
    """Entries that the user did not name."""


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
    for number, raw in enumerate(read_entries(found, document, context)):
        if number == MAX_ENTRIES:
            result.warnings.append(f"{found.path}: only the first {MAX_ENTRIES} servers of a file are read")
            break
        source = EntrySource(raw.editor.name, raw.editor.title, raw.path, raw.scope, raw.name, raw.project)
        if is_mcpd_entry(raw.fields, addresses):
            result.skipped.append(SkippedEntry(source, IS_MCPD))
            continue
        if raw.project is not None and not raw.project.is_dir():
            result.skipped.append(
                SkippedEntry(
                    source,
                    f"its directory no longer exists: {context.display_path(raw.project)}",
                    raw.fields,
                )
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
            result.skipped.append(SkippedEntry(source, str(reason), raw.fields))


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


# ---- the entries of one file ----------------------------------------------------------------------------

_REJECTED_SERVERS = "disabledMcpjsonServers"


def read_entries(found: EditorFile, document: Document, context: UserContext) -> Iterator[RawEntry]:
    """Yield the entries of a file in order."""
    place = found.location
    slot = opencode_slot(document, place.slot) if place.shape == "opencode" else place.slot
    off = disabled_names(found, document, slot, context)
    yield from _entries_at(found, document, slot, place.scope, found.project, off)
    if place.shape == "claude":
        projects = document.value.get("projects")
        for key in projects if isinstance(projects, dict) else ():
            off = string_set(document.value_at(("projects", key, "disabledMcpServers")))
            inner = ("projects", key, *SERVERS)
            yield from _entries_at(found, document, inner, "local", Path(key), off)


_SLOTS: tuple[tuple[KeyPath, str], ...] = (
    (("context_servers",), "zed"),
    (("mcp_servers",), "codex"),
    (("extensions",), "goose"),
    (("amp.mcpServers",), "amp"),
    (("servers",), "vscode"),
    (("mcp", "servers"), "opencode"),
    (("mcp",), "opencode"),
)
"""Where editors have their servers, other than at `mcpServers`."""


def identify_file(path: Path, document: Document) -> EditorFile:
    """Find out to which editor a named file belongs, from its path or else its content."""
    for editor in BY_NAME.values():
        for place in editor.locations:
            tail = _path_suffix(place)
            if tail and "*" not in tail and str(path).endswith(f"/{tail}"):
                project = Path(str(path)[: -len(tail) - 1] or "/") if place.scope == "project" else None
                return EditorFile(editor, place, path, project)
    for slot, name in _SLOTS:
        if isinstance(document.value_at(slot), dict):
            return _file_with_slot(path, document, slot, BY_NAME[name])
    listed = isinstance(document.value_at(SERVERS), list) and document.kind == "YAML"
    return EditorFile(BY_NAME["continue"] if listed else GENERIC, ConfigLocation(str(path), "user"), path)


def _file_with_slot(path: Path, document: Document, slot: KeyPath, editor: EditorSpec) -> EditorFile:
    if editor.name == "opencode" and not _is_opencode(document):
        return EditorFile(BY_NAME["vscode"], ConfigLocation(str(path), "user", slot), path)
    place = next(place for place in editor.locations if place.scope == "user")
    return EditorFile(editor, attrs.evolve(place, path=str(path)), path)


def _path_suffix(place: ConfigLocation) -> str:
    """Return the part of a location that does not depend on the user."""
    path = re.sub(r"^\{[A-Z_]+:([^}]*)\}", r"\1", place.path)
    return re.sub(r"^(?:~/|\./|\{[a-z]+\}/|/)", "", path)


def _is_opencode(document: Document) -> bool:
    """Tell opencode from VS Code, whose settings have `mcp.servers` too: in opencode, a command is a list."""
    found = document.value_at(opencode_slot(document, ("mcp",)))
    values = [value for value in found.values() if isinstance(value, dict)] if isinstance(found, dict) else []
    return any(isinstance(value.get("command"), list) or value.get("type") == "remote" for value in values)


def _entries_at(
    found: EditorFile,
    document: Document,
    slot: KeyPath,
    scope: Scope,
    project: Path | None,
    off: frozenset[str],
) -> Iterator[RawEntry]:
    value = document.value_at(slot)
    named: list[tuple[str, object]] = []
    if isinstance(value, dict):
        named = [(str(name), fields) for name, fields in value.items()]
    elif isinstance(value, list):
        named = [(str(each.get("name") or "server"), each) for each in value if isinstance(each, dict)]
    for name, fields in named:
        if isinstance(fields, str):  # the whole command line, or a URL
            fields = {"url" if "://" in fields else "command": fields}
        if isinstance(fields, dict) or slot[-1:] != ("mcp",):
            # An entry of another type has no command, which becomes the reason why it is skipped.
            switched_off = name in off
            yield RawEntry(
                name, mapping(fields), found.editor, found.path, slot, scope, project, switched_off
            )


def disabled_names(
    found: EditorFile, document: Document, slot: KeyPath, context: UserContext
) -> frozenset[str]:
    """Return the names of the entries at `slot` that a list elsewhere disables."""
    if found.editor.disable_method == "excluded":
        allowed = document.value_at(("mcp", "allowed"))
        others = set(document.entry_names(slot)) - string_set(allowed) if isinstance(allowed, list) else set()
        return string_set(document.value_at(("mcp", "excluded"))) | others
    if found.editor.name == "claude-code" and found.project is not None:
        return _rejected_names(found.project, context)
    return frozenset()


def dotenv_values(found: EditorFile, context: UserContext) -> dict[str, str]:
    """Return what the editor reads from `.env` files: Continue its secrets, Gemini unset variables."""
    values: dict[str, str] = {}
    if found.editor.name == "continue":
        for directory in (context.home, found.project):
            if directory is not None:
                values |= read_dotenv(directory / ".continue" / ".env") or {}
    if found.editor.name == "gemini":
        for directory in (found.project, context.home):
            for name in (".gemini/.env", ".env"):
                read = None if directory is None else read_dotenv(directory / name)
                if read is not None:  # Gemini reads only the first one that exists
                    return {key: value for key, value in read.items() if value and key not in context.environ}
    return values


def string_set(value: object) -> frozenset[str]:
    """Return the strings in a list; empty for anything else."""
    return frozenset(item for item in (value if isinstance(value, list) else ()) if isinstance(item, str))


def _rejected_names(project: Path, context: UserContext) -> frozenset[str]:
    """Return the servers of a project's `.mcp.json` that the user of Claude Code rejected."""
    files = (
        project / ".claude/settings.local.json",
        project / ".claude/settings.json",
        context.claude / "settings.json",
    )
    settings: list[Fields] = [_read_settings(path) for path in files]
    moved = bool(context.environ.get("CLAUDE_CONFIG_DIR"))
    projects = _read_settings((context.claude if moved else context.home) / ".claude.json").get("projects")
    settings.append(mapping(mapping(projects).get(str(project))))
    return frozenset[str]().union(*(string_set(each.get(_REJECTED_SERVERS)) for each in settings))


def _read_settings(path: Path) -> Mapping[str, object]:
    try:
        return read_document(path, foreign=True).value
    except BadSpec:
        return {}  # Claude Code reports this itself
