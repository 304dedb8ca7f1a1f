"""Our one entry, as each editor wants it written, and where it goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from ctl.editors.editor_catalog import BY_NAME, SCOPES, ConfigLocation, EditorSpec
from ctl.editors.editor_paths import UserContext, resolve_paths
from ctl.editors.read_entries import opencode_slot
from ctl.errors import CtlError
from mcpd.config.in_place_edits.document import Document, KeyPath

_CODEX_TOOL_TIMEOUT = 600
"""Seconds that Codex may wait for a tool: mcpd has the patience that each server needs, and ends the rest."""


@attrs.frozen
class InstallTarget:
    """The file of an editor that gets our entry."""

    editor: EditorSpec
    path: Path
    location: ConfigLocation
    addresses: frozenset[str] = frozenset()
    """Where mcpd listens, for telling entries of ours."""


def install_target(
    editor: EditorSpec, around: UserContext, *, project: bool, addresses: frozenset[str] = frozenset()
) -> InstallTarget:
    """Which file: the one that is there, else the one that the editor would make. Raises CtlError."""
    return install_targets(editor, around, project=project, addresses=addresses)[0]


def install_targets(
    editor: EditorSpec, around: UserContext, *, project: bool, addresses: frozenset[str] = frozenset()
) -> list[InstallTarget]:
    """Every file that may have our entry: those that are there, else the one that `target` chooses."""
    scope = "project" if project else "user"
    assert scope in SCOPES
    options: list[InstallTarget] = []
    for place in editor.locations:
        if place.scope == scope and place.installable:
            for path, directory in resolve_paths(place, around):
                if directory in (None, around.project):
                    options.append(InstallTarget(editor, path, place, addresses))
    if not options or editor.entry_form is None:
        what = "servers for one project" if project and editor.entry_form else "an entry for mcpd"
        raise CtlError(f"{editor.title} has no file for {what}")
    there = [one for one in options if os.path.lexists(one.path)]
    return there or options[:1]


def slot_of(one: InstallTarget, document: Document) -> KeyPath:
    """Where in the file the entry goes."""
    return (
        opencode_slot(document, one.location.slot) if one.location.shape == "opencode" else one.location.slot
    )


def uses_list(one: InstallTarget) -> bool:
    """Whether a new collection of servers is a list there."""
    return one.editor.entry_form in ("continue", "vibe")


def command_entry(
    editor: EditorSpec, slot: KeyPath, name: str, mcpctl: str, args: Sequence[str]
) -> dict[str, object]:
    """The entry that runs `mcpctl args…`. `args` are those of `bridge`, with the word itself."""
    words = list(args)
    match editor.entry_form:
        case "typed":
            return {"type": "stdio", "command": mcpctl, "args": words}
        case "copilot":
            return {"type": "local", "command": mcpctl, "args": words, "tools": ["*"]}
        case "codex":
            return {
                "command": mcpctl,
                "args": words,
                "startup_timeout_sec": 10,
                "tool_timeout_sec": _CODEX_TOOL_TIMEOUT,
            }
        case "opencode":
            # Its schema is strict: an unknown key, or the other version's, keeps it from starting.
            switch = {} if slot[-1] == "servers" else {"enabled": True}
            return {"type": "local", "command": [mcpctl, *words], **switch}
        case "zed":
            return {"command": mcpctl, "args": words, "env": {}}
        case "continue":
            return {"type": "stdio", "command": mcpctl, "args": words}
        case "goose":
            return {
                "name": name,
                "type": "stdio",
                "cmd": mcpctl,
                "args": words,
                "enabled": True,
                "timeout": 300,
            }
        case "vibe":
            return {"transport": "stdio", "command": mcpctl, "args": words}
        case _:
            return {"command": mcpctl, "args": words}


def url_entry(url: str) -> dict[str, object]:
    """The entry that leads to our socket, for an editor that takes its URL."""
    return {"type": "http", "url": url}


def new_file_content(editor: EditorSpec) -> bytes:
    """What a file of this editor has to begin with when we make it."""
    return b"name: My assistant\nversion: 1.0.0\nschema: v1\n" if editor.entry_form == "continue" else b""


def installable_editors() -> list[str]:
    """The editors that can be given an entry."""
    return [name for name, editor in BY_NAME.items() if editor.entry_form is not None]
