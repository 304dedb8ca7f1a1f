"""Finds the permission lists, hooks, sub-agents and commands that name tools of servers that were taken over.

An editor puts the name of an entry before its tools. When mcpd's entry replaces another one, its tools get
other names, and a list that names the old ones has no effect any more. The same happens when mcpd's entry is
removed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
from msgspec import structs

from ctl.cli.json_text import mapping, strings
from ctl.daemon.client import Json
from ctl.editors.backups import (
    CURSOR_ALLOWED,
    GEMINI_TOOLS,
    PERMISSIONS,
    BackupRecord,
    EditorBackups,
    digest,
    with_names,
)
from ctl.editors.config_files import UserContext
from ctl.editors.mcpd_entry import InstallTarget
from mcpd.config.in_place_edits.document import (
    Document,
    KeyPath,
    parse_document,
    read_document,
    write_document,
)
from mcpd.model.errors import BadSpec
from mcpd.model.tool_names import ClientStyle, public_names

_MAX_FILE = 1024 * 1024
_MAX_FILES = 500
_TOOL = "Tool"
"""Stands for a pattern while a name is made."""


@attrs.frozen
class _Naming:
    """How an editor names tools, and where."""

    server: str
    """What comes before the tool. `{server}` is the name of the entry, `{word}` as editors change it."""
    separator: str
    lists: tuple[tuple[str, tuple[KeyPath, ...]], ...]
    """Files of settings, and where their permission lists are. `~/`, `./` and `{claude}` as in `_paths`."""
    texts: tuple[str, ...]
    """Other files in which tools are named."""
    is_whole_pattern: bool = True
    """Whether all tools of mcpd whose names begin with a server can be named."""


_VSCODE = _Naming(
    "{server}",
    "/",
    (),
    (
        "./.github/agents/*.md",
        "./.github/chatmodes/*.md",
        "./.github/prompts/*.md",
        "{config}/Code/User/prompts/*.md",
        "{config}/Code - Insiders/User/prompts/*.md",
    ),
    is_whole_pattern=False,
)
_NAMINGS: Mapping[str, _Naming] = {
    "claude-code": _Naming(
        "mcp__{word}",
        "__",
        (
            ("{claude}/settings.json", PERMISSIONS),
            ("./.claude/settings.local.json", PERMISSIONS),
            ("./.claude/settings.json", PERMISSIONS),
        ),
        tuple(
            f"{place}/{pattern}"
            for place in ("{claude}", "./.claude")
            for pattern in ("agents/**/*.md", "commands/**/*.md", "skills/**/SKILL.md")
        ),
    ),
    "cursor": _Naming(
        "{server}",
        ":",
        (
            ("~/.cursor/permissions.json", CURSOR_ALLOWED),
            ("~/.cursor/cli-config.json", PERMISSIONS),
            ("./.cursor/permissions.json", CURSOR_ALLOWED),
            ("./.cursor/cli.json", PERMISSIONS),
        ),
        ("~/.cursor/hooks.json", "./.cursor/hooks.json"),
    ),
    "gemini": _Naming(
        "mcp_{server}",
        "_",
        (("~/.gemini/settings.json", GEMINI_TOOLS), ("./.gemini/settings.json", GEMINI_TOOLS)),
        tuple(
            f"{place}/{pattern}"
            for place in ("~/.gemini", "./.gemini")
            for pattern in ("policies/*.toml", "agents/*.md", "commands/**/*.toml")
        ),
    ),
    "opencode": _Naming(
        "{word}",
        "_",
        (),
        (
            "./opencode.json",
            "./opencode.jsonc",
            *(
                f"{place}/{pattern}"
                for place in ("{config}/opencode", "./.opencode")
                for pattern in ("opencode.json", "opencode.jsonc", "agent*/*.md", "command*/*.md")
            ),
        ),
    ),
    "vscode": _VSCODE,
    "vscode-insiders": _VSCODE,
    "zed": _Naming("mcp:{server}", ":", (), ("{config}/zed/settings.json", "./.zed/settings.json")),
}


_Renamer = Callable[[str], tuple[str, list[tuple[str, str]]]]


@attrs.frozen
class Mention:
    """A place that names a former tool."""

    path: Path
    line: int
    old: str
    new: str
    """Its name now; empty if it is not known."""

    def to_json(self) -> Json:
        return {"path": str(self.path), "line": self.line, "old": self.old, "new": self.new}


@attrs.define
class OldNames:
    """The former names of the tools of one editor, in its files."""

    target: InstallTarget
    user: UserContext
    taken: Mapping[str, str]
    """The entries that were taken over, and their servers in mcpd."""
    entry: str
    """The name of mcpd's entry."""
    style: ClientStyle | None
    """How mcpd names the tools of several servers; None if the entry provides a single one."""

    @property
    def _naming(self) -> _Naming | None:
        return _NAMINGS.get(self.target.editor.name) if self.taken else None

    def mentions(self) -> list[Mention]:
        """Return all places with a former name."""
        naming = self._naming
        return [] if naming is None else self._mentions(naming, self._renamer(naming))

    def mentions_of_mcpd(self) -> list[Mention]:
        """Return all places with a name of a tool in mcpd's entry, which was removed. The new one is the name
        in the editor's own entry."""
        naming = _NAMINGS.get(self.target.editor.name)
        return [] if naming is None else self._mentions(naming, self._renamer_back(naming))

    def _mentions(self, naming: _Naming, rename: _Renamer) -> list[Mention]:
        found = list[Mention]()
        for path in self._files([*(each for each, _ in naming.lists), *naming.texts]):
            text = _read(path)
            head = (
                text.split("\n---", 1)[0] if path.suffix == ".md" and "mcp__" not in naming.server else text
            )
            for number, line in enumerate(head.splitlines(), 1):
                found += [Mention(path, number, old, new) for old, new in rename(line)[1]]
        return list(dict.fromkeys(found))

    def lists(self) -> dict[Path, dict[str, str]]:
        """Return the files with permission lists that can be rewritten, each with old → new names."""
        naming = self._naming
        found: dict[Path, dict[str, str]] = {}
        if naming is None:
            return found
        for pattern, places in naming.lists:
            if pattern == "./.claude/settings.json" and self.target.project is None:
                continue  # it belongs to a team that need not use mcpd
            for path in self._files([pattern]):
                with suppress(BadSpec, OSError):
                    document = read_document(path, foreign=True)
                    if names := self._renamed(naming, document, places):
                        found[path] = names
        return found

    def rewrite(self, backups: EditorBackups) -> dict[Path, dict[str, str]]:
        """Rewrite the permission lists, so that `restore_lists` can undo it. Returns what `lists` does.

        Raises BadSpec, CannotWrite and OSError.
        """
        chosen = self.lists()
        for path, names in chosen.items():
            before = read_document(path, foreign=True)
            record, known = backups.load(path), dict[str, str]()
            original, document = before.data, with_names(before, names)
            if record is not None and not record.of:  # mcpd's entry is in this file, and undone with it
                is_unchanged = digest(before.data) == record.written_digest
                written = digest(document.data) if is_unchanged else record.written_digest
                renamed = {**record.names, **names}
                backups.save(structs.replace(record, written_digest=written, names=renamed))
                write_document(path, document)
                continue
            if record is not None:
                known, original = record.names, _original(record, before).data
            kept = BackupRecord(
                str(path),
                existed=True,
                written_digest=digest(document.data),
                slot=(),
                original=original,
                of=str(self.target.path),
                names={**known, **names},
            )
            backups.save(kept)
            write_document(path, document)
        return chosen

    def _renamed(self, naming: _Naming, document: Document, places: Iterable[KeyPath]) -> dict[str, str]:
        rename = self._renamer(naming)
        items = [item for place in places for item in strings(document.value_at(place))]
        return {item: new for item in items if (new := rename(item)[0]) != item}

    def _renamer(self, naming: _Naming) -> _Renamer:
        prefixes = {_prefix(naming.server, entry): server for entry, server in self.taken.items()}

        def new_name(found: re.Match[str]) -> str:
            return self._new_name(naming, prefixes[found[1]], found[3] if found[2] else "*")

        return _make_renamer(naming, prefixes, new_name)

    def _renamer_back(self, naming: _Naming) -> _Renamer:
        beginnings = {
            self._new_name(naming, server, ""): _prefix(naming.server, entry) + naming.separator
            for entry, server in self.taken.items()
        }

        def former_name(found: re.Match[str]) -> str:
            names = [
                own + found[0].removeprefix(ours)
                for ours, own in beginnings.items()
                if found[0].startswith(ours)
            ]
            return names[0] if len(names) == 1 else ""

        return _make_renamer(naming, [_prefix(naming.server, self.entry)], former_name)

    def _new_name(self, naming: _Naming, server: str, tool: str) -> str:
        own = _prefix(naming.server, self.entry) + naming.separator
        if self.style is None or (tool == "*" and not naming.is_whole_pattern):
            return own + tool
        is_pattern = not tool or re.search(r"[?*]", tool)
        (name,) = public_names(self.style, [(server, _TOOL if is_pattern else tool)])
        if "{word}" in naming.server:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        return own + (name.replace(_TOOL, tool) if is_pattern else name)

    def _files(self, patterns: Iterable[str]) -> Iterator[Path]:
        for pattern in patterns:
            for path in sorted(self._paths(pattern))[:_MAX_FILES]:
                if path.is_file():
                    yield path

    def _paths(self, pattern: str) -> set[Path]:
        user = self.user
        if pattern.startswith("./"):
            bases = [*user.project_directories(), *self._known_projects()]
        elif self.target.project is not None:
            return set()  # the user's own files are not about the project's entries
        else:
            bases = [
                {"~": user.home, "{config}": user.config, "{claude}": user.claude}[pattern.split("/")[0]]
            ]
        rest = pattern.partition("/")[2]
        return {path for base in bases for path in base.glob(rest)}

    def _known_projects(self) -> list[Path]:
        """Return the directories in which Claude Code was used: its user's entries are for all of them."""
        if self.target.editor.name != "claude-code" or self.target.project is not None:
            return []
        try:
            document = read_document(self.target.path, foreign=True)
        except (BadSpec, OSError):
            return []
        names = list(mapping(document.value_at(("projects",))))[:_MAX_FILES]
        return [Path(name) for name in names if os.path.isabs(name)]


def _make_renamer(
    naming: _Naming, prefixes: Iterable[str], new_name: Callable[[re.Match[str]], str]
) -> _Renamer:
    """Return a function that replaces all names with these prefixes in a text, and returns them, too:
    (old, new). The groups of the match: the prefix, the separator if there is one, and the tool."""
    every = "|".join(map(re.escape, sorted(prefixes, key=len, reverse=True)))
    separator = re.escape(naming.separator)
    pattern = re.compile(
        rf"(?<![\w:/@.-])({every})(?:({separator})((?:[\w?*-]|\.\*)*)|(?![\w-]))"
        if "mcp__" in naming.server
        else rf"(?<![\w:/@.-])({every})({separator})((?:[\w?*-]|\.\*)*)"
    )

    def rename(text: str) -> tuple[str, list[tuple[str, str]]]:
        names: list[tuple[str, str]] = []

        def note(found: re.Match[str]) -> str:
            names.append((found[0], new_name(found)))
            return names[-1][1]

        return pattern.sub(note, text), names

    return rename


def client_style(written: object) -> ClientStyle:
    """Return the style that `clientToolNames` sets."""
    try:
        return ClientStyle(written)
    except ValueError:
        return ClientStyle.UNDERSCORES


def restore_lists(path: Path, backups: EditorBackups, *, dry_run: bool = False) -> list[Path]:
    """Undo `OldNames.rewrite` for the file of mcpd's entry: byte for byte in files that have not changed,
    and otherwise by renaming back. Returns the files. Raises BadSpec, CannotWrite and OSError."""
    restored: list[Path] = []
    for record in backups.records_of(path):
        file = Path(record.path)
        if file.exists():
            restored.append(file)
            if not dry_run:
                now = read_document(file, foreign=True)
                write_document(file, _original(record, now))
        if not dry_run:
            backups.delete(file)
    return restored


def _original(record: BackupRecord, now: Document) -> Document:
    """Return a file as it was before it was rewritten, with what was changed since."""
    if digest(now.data) == record.written_digest:
        return parse_document(record.original, Path(record.path), foreign=True)
    return with_names(now, {new: old for old, new in record.names.items()})


def _prefix(form: str, name: str) -> str:
    return form.format(server=name, word=re.sub(r"[^A-Za-z0-9_-]", "_", name))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return ""
