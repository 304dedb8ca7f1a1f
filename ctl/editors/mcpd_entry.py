"""Our one entry, as each editor wants it written, and where it goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from ctl.editors.editor_catalog import BY_NAME, SCOPES, Editor, Place
from ctl.editors.editor_paths import Surroundings, paths_of
from ctl.editors.read_entries import v2
from ctl.errors import CtlError
from mcpd.config.in_place_edits.document import Document, KeyPath

_CALL = 600
"""Seconds that Codex may wait for a tool: mcpd has the patience that each server needs, and ends the rest."""


@attrs.frozen
class Target:
    """The file of an editor that gets our entry."""

    editor: Editor
    path: Path
    place: Place
    addresses: frozenset[str] = frozenset()
    """Where mcpd listens, for telling entries of ours."""


def target(
    editor: Editor, around: Surroundings, *, project: bool, addresses: frozenset[str] = frozenset()
) -> Target:
    """Which file: the one that is there, else the one that the editor would make. Raises CtlError."""
    return targets(editor, around, project=project, addresses=addresses)[0]


def targets(
    editor: Editor, around: Surroundings, *, project: bool, addresses: frozenset[str] = frozenset()
) -> list[Target]:
    """Every file that may have our entry: those that are there, else the one that `target` chooses."""
    scope = "project" if project else "user"
    assert scope in SCOPES
    options: list[Target] = []
    for place in editor.places:
        if place.scope == scope and place.ours:
            for path, directory in paths_of(place, around):
                if directory in (None, around.project):
                    options.append(Target(editor, path, place, addresses))
    if not options or editor.form is None:
        what = "servers for one project" if project and editor.form else "an entry for mcpd"
        raise CtlError(f"{editor.title} has no file for {what}")
    there = [one for one in options if os.path.lexists(one.path)]
    return there or options[:1]


def slot_of(one: Target, document: Document) -> KeyPath:
    """Where in the file the entry goes."""
    return v2(document, one.place.slot) if one.place.shape == "opencode" else one.place.slot


def listed(one: Target) -> bool:
    """Whether a new collection of servers is a list there."""
    return one.editor.form in ("continue", "vibe")


def entry(editor: Editor, slot: KeyPath, name: str, mcpctl: str, args: Sequence[str]) -> dict[str, object]:
    """The entry that runs `mcpctl args…`. `args` are those of `bridge`, with the word itself."""
    words = list(args)
    match editor.form:
        case "typed":
            return {"type": "stdio", "command": mcpctl, "args": words}
        case "copilot":
            return {"type": "local", "command": mcpctl, "args": words, "tools": ["*"]}
        case "codex":
            return {"command": mcpctl, "args": words, "startup_timeout_sec": 10, "tool_timeout_sec": _CALL}
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


def entry_by_url(url: str) -> dict[str, object]:
    """The entry that leads to our socket, for an editor that takes its URL."""
    return {"type": "http", "url": url}


def preface(editor: Editor) -> bytes:
    """What a file of this editor has to begin with when we make it."""
    return b"name: My assistant\nversion: 1.0.0\nschema: v1\n" if editor.form == "continue" else b""


def able() -> list[str]:
    """The editors that can be given an entry."""
    return [name for name, editor in BY_NAME.items() if editor.form is not None]
