"""mcpd's own entry in the files of editors: its format, its location, and the other entries around it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import attrs

from ctl.cli.errors import CtlError
from ctl.editors.config_files import BY_NAME, ConfigLocation, EditorSpec, UserContext, resolve_paths
from mcpd.config.in_place_edits.document import (
    Document,
    KeyPath,
    parse_document,
)

_CODEX_TOOL_TIMEOUT = 600
"""Seconds that Codex waits for a tool. It is long because mcpd applies the timeouts of each server itself."""
_SOCKET = "mcpd.sock"


@attrs.frozen
class InstallTarget:
    """The file of an editor that gets mcpd's entry."""

    editor: EditorSpec
    path: Path
    location: ConfigLocation
    addresses: frozenset[str] = frozenset()
    """Where mcpd listens, to recognize its entries."""
    project: Path | None = None
    """The directory of a project file."""


def install_targets(
    editor: EditorSpec, context: UserContext, *, project: bool, addresses: frozenset[str] = frozenset()
) -> list[InstallTarget]:
    """Return the existing files for mcpd's entry, or the one to create. Raises CtlError if there is none.

    Of a project's files, those in the nearest directory that has any. A new one is created in the root of
    the repository, which editors open, or without a repository in the current directory.
    """
    scope = "project" if project else "user"
    options = [
        InstallTarget(editor, path, location, addresses, directory)
        for location in editor.locations
        if location.scope == scope and location.installable
        for path, directory in resolve_paths(location, context)
    ]
    if editor.entry_form is None or (not options and not project):
        raise CtlError(f"mcpctl cannot add mcpd to {editor.title}")
    if not options:
        raise CtlError(f"{editor.title} has no project file for MCP servers; omit --project")
    return _in_nearest_directory(options, context.project_directories() if project else [None])


def _in_nearest_directory(
    options: Sequence[InstallTarget], directories: Sequence[Path | None]
) -> list[InstallTarget]:
    """Return the existing files in the first directory that has any, or the first to create in the last."""
    for directory in directories:
        found = [one for one in options if one.project == directory and os.path.lexists(one.path)]
        if found:
            return found
    return [one for one in options if one.project == directories[-1]][:1]


def slot_of(one: InstallTarget, document: Document) -> KeyPath:
    """Return the path of the servers inside the file."""
    slot = one.location.slot
    return opencode_slot(document, slot) if one.location.shape == "opencode" else slot


def opencode_slot(document: Document, slot: KeyPath) -> KeyPath:
    """Return where opencode keeps its servers: its second version moved them from `mcp` to `mcp.servers`.

    In the first version, `servers` may be the name of a server, which then has a `type`.
    """
    inner = document.value_at((*slot, "servers"))
    moved = isinstance(inner, dict) and not isinstance(inner.get("type"), str)
    return (*slot, "servers") if moved else slot


def uses_list(one: InstallTarget) -> bool:
    """Return whether this editor keeps its servers in a list."""
    return one.editor.entry_form in ("continue", "vibe")


def command_entry(
    editor: EditorSpec, slot: KeyPath, name: str, mcpctl: str, args: Sequence[str]
) -> dict[str, object]:
    """Return the entry that runs `mcpctl` with `args`, which begin with `bridge`."""
    words = list(args)
    plain: dict[str, object] = {"command": mcpctl, "args": words}
    match editor.entry_form:
        case "typed" | "continue":
            return {"type": "stdio", **plain}
        case "copilot":
            return {"type": "local", **plain, "tools": ["*"]}
        case "codex":
            return {**plain, "startup_timeout_sec": 10, "tool_timeout_sec": _CODEX_TOOL_TIMEOUT}
        case "opencode":
            # Its schema is strict: an unknown key, or one of the other version, prevents its start.
            enabled = {} if slot[-1] == "servers" else {"enabled": True}
            return {"type": "local", "command": [mcpctl, *words], **enabled}
        case "zed":
            return {**plain, "env": {}}
        case "goose":
            return {"name": name, "type": "stdio", "cmd": mcpctl, "args": words} | {
                "enabled": True,
                "timeout": 300,
            }
        case "vibe":
            return {"transport": "stdio", **plain}
        case _:
            return plain


def new_file_content(editor: EditorSpec) -> bytes:
    """Return the content of a new file of this editor, before the entry is added."""
    return b"name: My assistant\nversion: 1.0.0\nschema: v1\n" if editor.entry_form == "continue" else b""


def installable_editors() -> list[str]:
    """Return the names of the editors to which mcpctl can add mcpd."""
    return [name for name, editor in BY_NAME.items() if editor.entry_form is not None]


def is_mcpd_entry(fields: Mapping[str, object], addresses: frozenset[str] = frozenset()) -> bool:
    """Return whether an entry, in any spelling, runs `mcpctl bridge` or has a URL of mcpd on this machine.

    `addresses`: where mcpd listens besides the default socket, as HOST:PORT or socket path.
    """
    words: list[str] = []
    for key in ("command", "cmd", "args"):
        value = fields.get(key)
        words += [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
    urls = (fields.get(key) for key in ("url", "serverUrl", "httpUrl", "uri"))
    return _runs_bridge(words) or any(_is_mcpd_url(url, addresses) for url in urls if isinstance(url, str))


def _runs_bridge(words: list[str]) -> bool:
    if len(words) == 1:
        words = words[0].split()
    for number, word in enumerate(words):
        program = re.split(r"[\\/]", word)[-1]
        module = word == "ctl" and words[number - 1] == "-m"
        if (program == "mcpctl" or module) and "bridge" in words[number + 1 :]:
            return not any(each.partition("=")[0] == "--host" for each in words[number + 1 :])
    return False


def mcpctl_path() -> str:
    """Return the absolute path of mcpctl, because editors may have another PATH. Raises CtlError."""
    here = sys.argv[0] if os.path.basename(sys.argv[0]) == "mcpctl" else ""
    for path in (here, str(Path(sys.executable).parent / "mcpctl")):
        if os.path.sep in path and os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    if found := shutil.which("mcpctl"):
        return os.path.abspath(found)
    raise CtlError("cannot find the mcpctl program", hint="install mcpctl in a directory of your PATH")


def _is_mcpd_url(url: str, addresses: frozenset[str]) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.scheme == "unix":
        path = unquote(parts.path)
        return os.path.basename(path) == _SOCKET or path in addresses
    return parts.netloc in addresses


EXCLUDED, _ALLOWED = ("mcp", "excluded"), ("mcp", "allowed")
"""Gemini's lists of the servers that it does not start, and of the only ones that it starts."""


@attrs.frozen
class FileContent:
    """The content of a target file, whose servers are at `slot`."""

    target: InstallTarget
    document: Document
    slot: KeyPath

    def entry(self, name: str) -> dict[str, object]:
        return entry_at(self.document, self.slot, name)

    def mcpd_entries(self) -> list[str]:
        """Return the names of mcpd's entries."""
        names, addresses = self.document.entry_names(self.slot), self.target.addresses
        return [name for name in names if is_mcpd_entry(self.entry(name), addresses)]

    def replaced_by(self, name: str, new: Mapping[str, object]) -> list[str]:
        """Return mcpd's entries that a new one replaces: with its name, or also for all servers."""
        for_all = not _is_partial(new)
        return [
            other
            for other in self.mcpd_entries()
            if other == name or (for_all and not _is_partial(self.entry(other)))
        ]

    def without(self, names: list[str]) -> FileContent:
        document = self.document
        for name in names:
            document = set_allowed(self.target.editor, document.without_entry(self.slot, name), name, False)
        return attrs.evolve(self, document=document)


def parse_content(target: InstallTarget, data: bytes | None) -> FileContent:
    """Parse the content of a file; None is a file that does not exist yet."""
    content = new_file_content(target.editor) if data is None else data
    document = parse_document(content, target.path, foreign=True)
    return FileContent(target, document, slot_of(target, document))


def _is_partial(entry: Mapping[str, object]) -> bool:
    """Return whether an entry of mcpd provides only one server or profile."""
    words = str([entry.get("command"), entry.get("args")])
    url = entry.get("url")
    return "--server" in words or "--profile" in words or (isinstance(url, str) and not url.endswith("#/mcp"))


def set_allowed(editor: EditorSpec, document: Document, name: str, allowed: bool) -> Document:
    """Add a name to Gemini's list of allowed servers, or remove it. Without such a list, all are allowed."""
    if editor.disable_method != "excluded" or not is_list(document, _ALLOWED):
        return document
    return set_listed(document, _ALLOWED, name, allowed)


def set_listed(document: Document, path: KeyPath, name: str, listed: bool) -> Document:
    """Return the document with `name` in the list at `path`, or without it; itself if nothing changes."""
    value = document.value_at(path)
    names = value if isinstance(value, list) else []
    if (name in names) is listed:
        return document
    others = [each for each in names if each != name]
    return document.with_value(path, [*others, name] if listed else others)


def disable_method(editor: EditorSpec, slot: KeyPath) -> tuple[str, bool] | Literal["excluded"] | None:
    """Return how this editor disables an entry. In opencode, the two versions of the format differ."""
    if editor.entry_form == "opencode" and slot[-1] == "servers":
        return ("disabled", True)
    return editor.disable_method


def entry_at(document: Document, slot: KeyPath, name: str) -> dict[str, object]:
    """Return the entry of this name in an object or a list; empty if there is none."""
    value = document.value_at(slot)
    if isinstance(value, list):
        return next((one for one in value if isinstance(one, dict) and one.get("name") == name), {})
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def is_list(document: Document, slot: KeyPath) -> bool:
    """Return whether the servers are a list, whose entries contain their names."""
    return isinstance(document.value_at(slot), list)
