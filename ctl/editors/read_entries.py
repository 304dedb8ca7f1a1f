"""Reads the server entries of an editor's file, and what its other files say about them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from ctl.cli.json_text import mapping
from ctl.editors.editor_catalog import (
    BY_NAME,
    GENERIC,
    OTHER_MCPD,
    SERVERS,
    ConfigLocation,
    EditorSpec,
    Scope,
)
from ctl.editors.editor_paths import EditorFile, UserContext
from ctl.editors.variables import read_dotenv
from mcpd.config.in_place_edits.document import Document, KeyPath, read_document
from mcpd.model.errors import BadSpec

Fields = Mapping[str, object]
_BACKENDS = ("backends",)
_REJECTED_SERVERS = "disabledMcpjsonServers"


@attrs.frozen
class RawEntry:
    """One entry as the editor wrote it."""

    name: str
    fields: Fields = attrs.field(repr=False)
    editor: EditorSpec
    path: Path
    slot: KeyPath
    scope: Scope
    project: Path | None = None
    """The directory to which the entry is limited, if any."""
    disabled_elsewhere: bool = False
    """Disabled by a list outside of the entry."""


def read_entries(found: EditorFile, document: Document, context: UserContext) -> Iterator[RawEntry]:
    """Yield the entries of a file in order. Anything that is not an object is skipped."""
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


def opencode_slot(document: Document, slot: KeyPath) -> KeyPath:
    """Return where opencode keeps its servers: its second version moved them from `mcp` to `mcp.servers`.

    In the first version, `servers` may be the name of a server, which then has a `type`.
    """
    inner = document.value_at((*slot, "servers"))
    moved = isinstance(inner, dict) and not isinstance(inner.get("type"), str)
    return (*slot, "servers") if moved else slot


def identify_file(path: Path, document: Document) -> EditorFile:
    """Find out to which editor a named file belongs, from its path or else its content."""
    for editor in BY_NAME.values():
        for place in editor.locations:
            tail = _path_suffix(place)
            if tail and "*" not in tail and str(path).endswith(f"/{tail}"):
                project = Path(str(path)[: -len(tail) - 1] or "/") if place.scope == "project" else None
                return EditorFile(editor, place, path, project)
    for slot, name in (
        (("context_servers",), "zed"),
        (("mcp_servers",), "codex"),
        (("extensions",), "goose"),
        (("amp.mcpServers",), "amp"),
        (("servers",), "vscode"),
        (("mcp", "servers"), "opencode"),
        (("mcp",), "opencode"),
    ):
        if isinstance(document.value_at(slot), dict):
            if name == "opencode" and not _is_opencode(document):
                return EditorFile(BY_NAME["vscode"], ConfigLocation(str(path), "user", slot), path)
            editor = BY_NAME[name]
            place = next(place for place in editor.locations if place.scope == "user")
            return EditorFile(editor, attrs.evolve(place, path=str(path)), path)
    if isinstance(document.value_at(_BACKENDS), dict):
        return EditorFile(OTHER_MCPD, ConfigLocation(str(path), "user", _BACKENDS), path)
    listed = isinstance(document.value_at(SERVERS), list) and document.kind == "YAML"
    return EditorFile(BY_NAME["continue"] if listed else GENERIC, ConfigLocation(str(path), "user"), path)


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
        named = [(_name_of_listed(fields), fields) for fields in value]
    for name, fields in named:
        if isinstance(fields, dict):
            switched_off = name in off
            yield RawEntry(name, fields, found.editor, found.path, slot, scope, project, switched_off)


def _name_of_listed(fields: object) -> str:
    """Return the name of an entry in a list. Old files of Continue have no names and a nested transport."""
    if not isinstance(fields, dict):
        return ""
    if fields.get("name"):
        return str(fields["name"])
    inner = fields.get("transport")
    command = inner.get("command") if isinstance(inner, dict) else fields.get("command")
    return os.path.basename(str(command or "server"))


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
