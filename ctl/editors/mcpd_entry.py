"""Our one entry, as each editor wants it written, and where it goes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

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


_SOCKET = "mcpd.sock"


def is_mcpd_entry(fields: Mapping[str, object], addresses: frozenset[str] = frozenset()) -> bool:
    """Whether an entry, in whatever spelling, runs `mcpctl bridge` or has a URL of ours.

    `addresses`: where else mcpd listens, HOST:PORT or the path of a socket.
    """
    words: list[str] = []
    for key in ("command", "cmd", "args"):
        value = fields.get(key)
        if isinstance(value, dict):
            value = [value.get("path"), *_list(value.get("args"))]
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
    """The absolute path of mcpctl, as a program without our PATH can start it. Raises CtlError."""
    here = sys.argv[0] if os.path.basename(sys.argv[0]) == "mcpctl" else ""
    for path in (here, str(Path(sys.executable).parent / "mcpctl")):
        if os.path.sep in path and os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    if found := shutil.which("mcpctl"):
        return os.path.abspath(found)
    raise CtlError("cannot find mcpctl itself", hint="install it so that it is in the PATH")


def socket_url(path: str, server: str | None, profile: str | None) -> str:
    """The URL of mcpd's own socket for editors that take such, with all servers, one, or a profile's."""
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


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
