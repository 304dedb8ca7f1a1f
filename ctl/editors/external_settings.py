"""What is said of an entry elsewhere than in it: lists of those that are off, and files with variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ctl.editors import dotenv
from ctl.editors.editor_paths import EditorFile, UserContext
from mcpd.config.in_place_edits.document import Document, KeyPath, read_document
from mcpd.model.errors import BadSpec

_REJECTED_SERVERS = "disabledMcpjsonServers"
"""Servers of a project's `.mcp.json` that its user has refused, as Claude Code remembers them."""


def disabled_names(
    found: EditorFile, document: Document, slot: KeyPath, around: UserContext
) -> frozenset[str]:
    """The names of those entries at `slot` that are off because some list says so."""
    if found.editor.disable_method == "excluded":
        allowed = document.value_at(("mcp", "allowed"))
        others = set(document.entry_names(slot)) - string_set(allowed) if isinstance(allowed, list) else set()
        return string_set(document.value_at(("mcp", "excluded"))) | others
    if found.editor.name == "claude-code" and found.project is not None:
        return _rejected_names(found.project, around)
    return frozenset()


def dotenv_values(found: EditorFile, around: UserContext) -> dict[str, str]:
    """What the editor would read from an `.env` file: Continue its secrets, Gemini what is not set."""
    values: dict[str, str] = {}
    if found.editor.name == "continue":
        for directory in (around.home, found.project):
            if directory is not None:
                values |= dotenv.read_dotenv(directory / ".continue" / ".env") or {}
    if found.editor.name == "gemini":
        for directory in (found.project, around.home):
            for name in (".gemini/.env", ".env"):
                read = None if directory is None else dotenv.read_dotenv(directory / name)
                if read is not None:  # the first that is there, and no other
                    return {key: value for key, value in read.items() if value and key not in around.environ}
    return values


def string_set(value: object) -> frozenset[str]:
    """The texts in a list of names; whatever else it may be holds none."""
    return (
        frozenset(item for item in value if isinstance(item, str)) if isinstance(value, list) else frozenset()
    )


def _rejected_names(project: Path, around: UserContext) -> frozenset[str]:
    ours = around.environ.get("CLAUDE_CONFIG_DIR")
    user = Path(ours) if ours else around.home / ".claude"
    refused = [
        _read_settings(directory / name).get(_REJECTED_SERVERS)
        for directory, name in (
            (project / ".claude", "settings.local.json"),
            (project / ".claude", "settings.json"),
            (user, "settings.json"),
        )
    ]
    projects = _read_settings((Path(ours) if ours else around.home) / ".claude.json").get("projects")
    mine = projects.get(str(project)) if isinstance(projects, dict) else None
    refused.append(mine.get(_REJECTED_SERVERS) if isinstance(mine, dict) else None)
    return frozenset[str]().union(*map(string_set, refused))


def _read_settings(path: Path) -> Mapping[str, object]:
    try:
        return read_document(path, foreign=True).value
    except BadSpec:
        return {}  # about this file, Claude Code will complain itself
