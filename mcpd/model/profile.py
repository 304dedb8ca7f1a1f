"""A named choice among the servers, for one kind of client."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from fnmatch import fnmatchcase

import attrs

from mcpd.model.tool_names import ClientStyle


@attrs.frozen(kw_only=True)
class Profile:
    """`settings.profiles.<name>`; the nameless default is all servers, all tools."""

    name: str = ""
    servers: tuple[str, ...] | None = None
    """None: all. `*` and `?` allowed."""
    include_tools: tuple[str, ...] | None = None
    """`tool` or `tool@server`, `*` and `?` allowed. None: all."""
    exclude_tools: tuple[str, ...] = ()
    style: ClientStyle | None = None
    """None: `settings.clientToolNames`."""


ALL_SERVERS = "*"
"""As a profile's name: none, all servers and tools."""


def match_profile(directory: str, rules: Mapping[str, str]) -> str | None:
    """The profile of whoever works in `directory` (absolute), by `settings.profileByDirectory`.

    A rule is for the directories that its pattern matches, part by part, and for all below them. The
    deepest rule counts; of two equally deep ones that with fewer wildcards.
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
