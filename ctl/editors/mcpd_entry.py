"""mcpd's own entry in the files of editors: its format, its location, and how to recognize it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import attrs

from ctl.cli.errors import CtlError
from ctl.editors.editor_catalog import BY_NAME, ConfigLocation, EditorSpec
from ctl.editors.editor_paths import UserContext, resolve_paths
from ctl.editors.read_entries import opencode_slot
from mcpd.config.in_place_edits.document import Document, KeyPath

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
    options: list[InstallTarget] = []
    for location in editor.locations:
        if location.scope == scope and location.installable:
            for path, directory in resolve_paths(location, context):
                options.append(InstallTarget(editor, path, location, addresses, directory))
    if not options or editor.entry_form is None:
        if project and editor.entry_form:
            raise CtlError(f"{editor.title} has no project file for MCP servers; omit --project")
        raise CtlError(f"mcpctl cannot add mcpd to {editor.title}")
    existing = [one for one in options if os.path.lexists(one.path)]
    directories = context.project_directories() if project else [None]
    with_file = (each for each in directories if any(one.project == each for one in existing))
    chosen = next(with_file, directories[-1])
    return [one for one in existing if one.project == chosen] or [
        one for one in options if one.project == chosen
    ][:1]


def slot_of(one: InstallTarget, document: Document) -> KeyPath:
    """Return the path of the servers inside the file."""
    slot = one.location.slot
    return opencode_slot(document, slot) if one.location.shape == "opencode" else slot


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


def url_entry(url: str) -> dict[str, object]:
    """Return the entry with the URL of mcpd's socket."""
    return {"type": "http", "url": url}


def new_file_content(editor: EditorSpec) -> bytes:
    """Return the content of a new file of this editor, before the entry is added."""
    return b"name: My assistant\nversion: 1.0.0\nschema: v1\n" if editor.entry_form == "continue" else b""


def installable_editors() -> list[str]:
    """Return the names of the editors to which mcpctl can add mcpd."""
    return [name for name, editor in BY_NAME.items() if editor.entry_form is not None]


def is_mcpd_entry(fields: Mapping[str, object], addresses: frozenset[str] = frozenset()) -> bool:
    """Return whether an entry, in any spelling, runs `mcpctl bridge` or has a URL of mcpd.

    `addresses`: where mcpd listens besides the default socket, as HOST:PORT or socket path.
    """
    words: list[str] = []
    for key in ("command", "cmd", "args"):
        value = fields.get(key)
        if isinstance(value, dict):
            args = value.get("args")
            value = [value.get("path"), *(args if isinstance(args, list) else [])]
        words += [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]
    if len(words) == 1:
        words = words[0].split()
    for number, word in enumerate(words):
        program = re.split(r"[\\/]", word)[-1]
        module = word == "ctl" and words[number - 1] == "-m"
        if (program == "mcpctl" or module) and "bridge" in words[number + 1 :]:
            return True
    urls = (fields.get(key) for key in ("url", "serverUrl", "httpUrl", "uri"))
    return any(_is_mcpd_url(url, addresses) for url in urls if isinstance(url, str))


def mcpctl_path() -> str:
    """Return the absolute path of mcpctl, because editors may have another PATH. Raises CtlError."""
    here = sys.argv[0] if os.path.basename(sys.argv[0]) == "mcpctl" else ""
    for path in (here, str(Path(sys.executable).parent / "mcpctl")):
        if os.path.sep in path and os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    if found := shutil.which("mcpctl"):
        return os.path.abspath(found)
    raise CtlError("cannot find the mcpctl program", hint="install mcpctl in a directory of your PATH")


def socket_url(path: str, server: str | None, profile: str | None) -> str:
    """Return the URL of mcpd's socket with all servers, one server, or the servers of a profile."""
    place = f"/servers/{quote(server, safe='')}/mcp" if server else "/mcp"
    return f"unix://{quote(path)}#{place}{f'/{quote(profile, safe=str())}' if profile and not server else ''}"


def _is_mcpd_url(url: str, addresses: frozenset[str]) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.scheme == "unix":
        path = unquote(parts.path)
        return os.path.basename(path) == _SOCKET or path in addresses
    return parts.netloc in addresses
