"""Entries of single projects, which `mcpctl install --take-over` of the user's file leaves on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import attrs

from ctl.daemon.client import Json
from ctl.editors.discovery import EntrySource, discover_in_file
from ctl.editors.editor_paths import EditorFile, UserContext, find_editor_files
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.secrets import named_by_owner
from ctl.editors.take_over import TakeOver
from mcpd.config import definition_view
from mcpd.config.in_place_edits.document import (
    MAX_FOREIGN_SIZE,
    Document,
    parse_document,
    read_document,
)
from mcpd.model.errors import BadSpec
from mcpd.support.regular_files import read_regular_file

_MAX_PROJECTS = 200
"""Claude Code remembers every directory in which it was ever started."""


@attrs.frozen
class ProjectEntry:
    """An enabled entry that an editor uses in one project only."""

    source: EntrySource
    server: str | None
    """The server in mcpd that it means, if mcpd has it."""
    reason: str
    """Why the new entry does not provide the server; empty if it does."""
    can_take_over: bool
    """Whether `mcpctl install --project --take-over` can disable it."""

    def describe(self, context: UserContext) -> str:
        """Return what happens to the entry, and how to disable it, in one line."""
        source = self.source
        where = context.display_path(source.project) if source.project is not None else "a project"
        if self.server is None:
            return f"{source.name}: only in {where}, where {source.title} still starts it; {self.reason}"
        if self.reason:
            return f"{source.name}: left on in {where}, where {source.title} starts it, because {self.reason}"
        text = f"{source.name}: left on in {where}, where {source.title} uses it in addition to mcpd"
        if self.can_take_over:
            return f"{text}; in that directory: mcpctl install {source.editor} --project --take-over"
        if source.editor == "claude-code":
            command = shlex.join(["claude", "mcp", "remove", "--scope", source.scope, source.name])
            return f"{text}; to delete it for good, in that directory: {command}"
        return text

    def to_json(self) -> Json:
        source = self.source
        project = None if source.project is None else str(source.project)
        return {"name": source.name, "path": str(source.path), "project": project, "server": self.server}


def project_entries(entry: TakeOver, target: InstallTarget) -> list[ProjectEntry]:
    """Return the entries of projects for the editor of a user's file, as far as the projects are known.

    These are the projects in the file itself and the current one. Unreadable files have no entries.
    """
    if target.location.scope != "user":
        return []
    found: dict[EntrySource, ProjectEntry] = {}
    for file, document in _files(target, entry.user):
        for one in map(
            named_by_owner, discover_in_file(file, document, entry.user, target.addresses).candidates
        ):
            source = one.source
            if source.scope in ("project", "local") and definition_view.is_enabled(one.definition):
                can_take_over = source.scope == "project" and file.location.installable
                server = entry.provided.find(one)
                reason = "" if server is not None else entry.reason_not_provided(one)
                found[source] = ProjectEntry(source, server or entry.known.find(one), reason, can_take_over)
    return list(found.values())


def _files(target: InstallTarget, context: UserContext) -> Iterator[tuple[EditorFile, Document]]:
    directories: list[Path] = []
    with suppress(BadSpec, OSError):
        data = read_regular_file(target.path, MAX_FOREIGN_SIZE)
        document = parse_document(data, target.path, foreign=True)
        yield EditorFile(target.editor, target.location, target.path), document
        names = [each for each in document.entry_names(("projects",)) if os.path.isabs(each)]
        directories = [Path(each) for each in names[:_MAX_PROJECTS]]
    contexts = [context]
    if target.location.shape == "claude":
        contexts += [attrs.evolve(context, project=each) for each in directories if os.path.isdir(each)]
    seen: set[Path] = set()
    for each in contexts:
        for file in find_editor_files((target.editor,), each):
            if file.location.scope == "project" and file.path not in seen:
                seen.add(file.path)
                with suppress(BadSpec):
                    yield file, read_document(file.path, foreign=True)
