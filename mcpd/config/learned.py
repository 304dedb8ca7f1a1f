"""What mcpd has learned of a definition: its key, its file, and the tools that its `cache` names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Raw

from mcpd.files.regular import read_regular_file
from mcpd.model import json_limits
from mcpd.model.policy import is_read_only
from mcpd.model.server_spec import ServerSpec
from mcpd.model.text import shorten, similar_names

_MAX_SIZE = 64 << 20
"""Bytes. Larger files were not written by mcpd and are ignored."""


def definition_key(spec: ServerSpec) -> str:
    """Return the key. Definitions have the same one if they lead to the same server in the same way."""
    return fingerprint(spec.identity if spec.era == "auto" else (spec.era, *spec.identity))


def fingerprint(identity: object) -> str:
    """Return a stable name for a definition, safe in file names. Does not reveal its secrets."""
    return sha256(repr(identity).encode()).hexdigest()[:32]


def uncached_tools(
    spec: ServerSpec, find: Callable[[str], bytes | None], names: Iterable[str]
) -> Iterator[str]:
    """Return a warning for each tool in the definition's `cache` that is unknown or may write.

    `find` returns the list entry of a tool, or None; `names` are all tools of the server.
    """
    for name in spec.cache or ():
        tool, shown = find(name), shorten(name, 60)
        if tool is None:
            near = similar_names(name, names)
            hint = f" (did you mean {' or '.join(near)}?)" if near else ""
            yield f"`cache` names the tool {shown!r}, which is not in the server's list of tools{hint}"
        elif not is_read_only(tool):
            yield (
                f"`cache` names the tool {shown!r}, whose results are not cached, because the server does "
                "not declare that it only reads (`readOnlyHint`)"
            )


def warn_of_uncached_tools(specs: Mapping[str, ServerSpec], cache_directory: Path) -> list[str]:
    """Return the warnings for the servers whose lists are known from an earlier connection.

    `cache_directory` is where the daemon keeps these lists (see `StateFile`). Reads files, and never raises.
    """
    warnings = []
    for name, spec in specs.items():
        tools = _stored_tools(lists_path(cache_directory, definition_key(spec))) if spec.cache else None
        if tools is not None:
            warnings += [f"{name}: {each}" for each in uncached_tools(spec, tools.get, tools)]
    return warnings


def lists_path(cache_directory: Path, key: str) -> Path:
    """Return the file with the lists of the definition with this key."""
    return cache_directory / "lists" / f"{key}.json"


def _stored_tools(path: Path) -> Mapping[str, bytes] | None:
    """Return the list entries in a file by name; None if there is no such file, or it is damaged."""
    try:
        members = json_limits.members(read_regular_file(path, _MAX_SIZE))
        entries = msgspec.json.decode(members["tools"], type=list[Raw])
        return {
            msgspec.json.decode(json_limits.members(each)["name"], type=str): bytes(each) for each in entries
        }
    except (OSError, KeyError, ValueError, RecursionError):
        return None
