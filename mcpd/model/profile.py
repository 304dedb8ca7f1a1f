"""Profiles: named selections of servers and tools, and the rules that assign them to directories."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from fnmatch import fnmatchcase

import attrs

from mcpd.model.record import Record
from mcpd.model.tool_names import ClientStyle


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Profile(Record):
    """One of `settings.profiles`. The default selects all servers and tools."""

    name: str = ""
    servers: tuple[str, ...] | None = None
    """The names of the servers, with the wildcards `*` and `?`. None selects all servers."""
    include_tools: tuple[str, ...] | None = None
    """Patterns such as `tool` or `tool@server`, with the wildcards `*` and `?`. None selects all tools."""
    exclude_tools: tuple[str, ...] = ()
    tags: tuple[str, ...] | None = None
    """The tags of the tools to select, with the wildcards `*` and `?`. Prompts and resources are selected if
    the definition of their server uses any of these tags. None selects all."""
    style: ClientStyle | None = None
    """The style of tool names. None selects the style set in `settings.clientToolNames`."""
    read_only: bool = False
    """Whether tools that are not annotated as read-only are refused."""
    validate: bool | None = None
    """Whether tool calls are checked against the tools' schemas. None: as `ServerSpec.validate`."""


ALL_SERVERS = "*"
"""Selects all servers and tools when it is used instead of the name of a profile."""


def match_profile(directory: str, rules: Mapping[str, str]) -> str | None:
    """Return the profile that the rules (`settings.profileByDirectory`) assign to an absolute directory.

    A pattern is matched part by part, and also applies to all directories below. The deepest matching
    pattern wins; among equally deep ones, the one with fewer wildcards.
    """
    here = _parts(directory)
    best: tuple[int, int] | None = None
    found = None
    for pattern, profile in rules.items():
        wanted = _parts(pattern)
        if len(wanted) <= len(here) and all(map(fnmatchcase, here, wanted)):
            rank = (len(wanted), sum(not set("*?[") & set(part) for part in wanted))
            if best is None or rank > best:
                best, found = rank, profile
    return found


def _parts(path: str) -> list[str]:
    return [part for part in os.path.normpath(path).split("/") if part]
