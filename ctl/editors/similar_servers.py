"""Finds servers that are probably the same, although a variable, a header or a version differs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import attrs

from ctl.editors.merging import Environ, Identity, MergedServer, fill_in_secrets, identity
from mcpd.model.server_spec import definition_parts

_PACKAGE_VERSION = re.compile(r"((?:@[\w.-]+/)?[\w.-]+)(?:@[\w.^~*-]+|==[\w.*]+)")
_NO_MEANING = frozenset({"-y", "--yes", "-q", "--quiet"})
"""Options that do not decide which server a package runner starts."""


@attrs.frozen
class SimilarServer:
    """A server that another one resembles."""

    name: str
    differs_in: tuple[str, ...]
    """The names of the parts that differ, such as `env.GITHUB_TOKEN`. The values may be secret."""
    is_in_mcpd: bool

    def describe(self) -> str:
        where = " (in mcpd)" if self.is_in_mcpd else ""
        return f"{self.name}{where}, except for {', '.join(self.differs_in)}"


def find_similar(
    servers: Sequence[MergedServer], ours: Mapping[str, Mapping[str, object]], environ: Environ
) -> dict[str, SimilarServer]:
    """Return, for each server to import, the first one before it or in mcpd that it resembles.

    Two servers are similar if they run the same program with the same arguments, or have the same URL,
    regardless of versions of packages, spellings of paths, environment, headers, and directory.
    """
    first: dict[Identity, tuple[str, Mapping[str, object], bool]] = {}
    for name, definition in ours.items():
        if key := _likeness(definition, environ):
            first.setdefault(key, (name, definition, True))
    found: dict[str, SimilarServer] = {}
    for server in servers:
        key = _likeness(server.definition, environ)
        if key is None:
            continue
        name, definition, is_in_mcpd = first.setdefault(key, (server.name, server.definition, False))
        if name != server.name:
            differs_in = _differing_parts(server.definition, definition, environ)
            found[server.name] = SimilarServer(name, differs_in or ("the directory",), is_in_mcpd)
    return found


def _likeness(definition: Mapping[str, object], environ: Environ) -> Identity | None:
    """Return what similar servers have in common; None if the definition is invalid."""
    match identity(definition, None, environ):
        case ("program", str(program), tuple(args), *_):
            return ("program", program, *(_normal(str(arg)) for arg in args if arg not in _NO_MEANING))
        case ("url", str(url), *_):
            parts = urlsplit(url)
            return ("url", parts.netloc.lower(), parts.path.rstrip("/"))
    return None


def _normal(argument: str) -> str:
    """Return an argument without the version of a package; a path without `~`, links and a final slash."""
    if argument.startswith(("/", "~", "./", "../")):
        return os.path.realpath(os.path.expanduser(argument))
    found = _PACKAGE_VERSION.fullmatch(argument)
    return found[1] if found else argument


def _differing_parts(
    one: Mapping[str, object], other: Mapping[str, object], environ: Environ
) -> tuple[str, ...]:
    here, there = (definition_parts(fill_in_secrets(each, environ)) for each in (one, other))
    names = dict.fromkeys([*here, *there])
    differing = [name for name in names if name != "enabled" and here.get(name) != there.get(name)]
    if "type" in differing and not ("type" in here and "type" in there):
        differing.remove("type")  # many editors leave it out
    return tuple(differing)
