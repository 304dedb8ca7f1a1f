"""Resolves the paths in the catalog to files of the user and the project."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from ctl.editors.catalog import EDITORS, SCOPES, ConfigLocation, EditorSpec

_VARIABLE = re.compile(r"\{([A-Z_]+):([^}]*)\}")


@attrs.frozen
class UserContext:
    """Everything on which a path in the catalog depends."""

    environ: Mapping[str, str] = attrs.field(repr=False)
    project: Path
    """The current directory, or the one that the user named."""
    project_given: bool = False
    """Whether the user named it; then it is also the workspace for user files."""
    mac: bool = sys.platform == "darwin"
    root: Path = Path("/")

    @property
    def home(self) -> Path:
        return Path(self.environ.get("HOME") or os.path.expanduser("~"))

    @property
    def config(self) -> Path:
        base = self.environ.get("XDG_CONFIG_HOME", "")
        return Path(base) if os.path.isabs(base) else self.home / ".config"

    @property
    def claude(self) -> Path:
        """The directory of Claude Code's settings."""
        return Path(self.environ.get("CLAUDE_CONFIG_DIR") or self.home / ".claude")

    def project_directories(self) -> list[Path]:
        """Return the project and its parents up to the repository, if there is one."""
        above = [self.project, *self.project.parents]
        for number, directory in enumerate(above):
            if directory == self.home:
                break
            if os.path.exists(directory / ".git"):
                return above[: number + 1]
        return [self.project]

    def display_path(self, path: Path) -> str:
        """Return a path with `~` for the home directory."""
        try:
            return str(Path("~") / path.relative_to(self.home))
        except ValueError:
            return str(path)


@attrs.frozen
class EditorFile:
    """An existing file of an editor."""

    editor: EditorSpec
    location: ConfigLocation
    path: Path
    project: Path | None = None
    """The directory of a project file."""


def resolve_paths(location: ConfigLocation, context: UserContext) -> Iterator[tuple[Path, Path | None]]:
    """Yield the paths of a location, and their projects. Paths with `*` exist; others may not."""
    if location.path.startswith("./"):
        for directory in context.project_directories():
            yield from ((path, directory) for path in _glob(directory, location.path[2:]))
        return
    text = location.path
    if variable := _VARIABLE.match(text):
        value = context.environ.get(variable[1]) or variable[2]
        if not value:
            return
        text = value + text[variable.end() :]
    text = text.replace("{config}", str(context.config))
    text = text.replace(
        "{app}", str(context.home / "Library/Application Support" if context.mac else context.config)
    )
    if text == "~" or text.startswith("~/"):
        text = str(context.home) + text[1:]
    if location.scope == "system":
        text = str(context.root / text.lstrip("/"))
    if os.path.isabs(text):
        yield from ((path, None) for path in _glob(Path("/"), text[1:]))


def find_editor_files(editors: tuple[EditorSpec, ...], context: UserContext) -> list[EditorFile]:
    """Return the existing files, each once, nearest scope first.

    In the home directory, a file that is both the user's and the project's counts as the user's.
    """
    found: dict[str, EditorFile] = {}
    for scope in reversed(SCOPES):
        for editor in editors:
            for place in editor.locations:
                if place.scope != scope:
                    continue
                for path, project in resolve_paths(place, context):
                    if os.path.isfile(path) or os.path.islink(path):
                        found.setdefault(os.path.realpath(path), EditorFile(editor, place, path, project))
    order = {editor.name: number for number, editor in enumerate(EDITORS)}
    return sorted(
        found.values(), key=lambda one: (SCOPES.index(one.location.scope), order.get(one.editor.name, 99))
    )


def _glob(directory: Path, pattern: str) -> list[Path]:
    if "*" not in pattern:
        return [directory / pattern]
    fixed, _, rest = pattern.partition("*")
    base = directory / fixed.rpartition("/")[0]
    return sorted(base.glob(fixed.rpartition("/")[2] + "*" + rest)) if os.path.isdir(base) else []
