"""What is known of certain servers, by their package: who may share them, and which calls must not overlap.

A definition's own `share` and `concurrency` win. Each row says where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from mcpd.config.section import Section
from mcpd.model.server_spec import Concurrency, Share, StdioSpec


@attrs.frozen
class ServerTraits:
    """Of one kind of server; None: nothing unusual."""

    share: Share | None = None
    concurrency: Concurrency | None = None


_NOTHING = ServerTraits()
_TABLE: tuple[tuple[str, ServerTraits], ...] = (
    # Thoughts of one conversation are numbered on from another's: the history is the process's.
    (r"server-sequential-thinking", ServerTraits(share="client")),
    # Pages and logins are the process's; without --isolated a second one cannot have the profile.
    (r"(playwright/mcp|playwright-mcp)\b.*--isolated", ServerTraits(share="client")),
    (r"chrome-devtools-mcp\b.*--isolated", ServerTraits(share="client")),
    (r"server-puppeteer|mobile-mcp", ServerTraits(share="client")),
    # Reads the file, changes it and writes it back: of 20 calls at once 19 are lost (measured, 2026.1.26).
    (r"server-memory", ServerTraits(concurrency="writes")),
)
# A package `server-x` installs a program `mcp-server-x`.
_PATTERNS = tuple((re.compile(rf"(^|[\s/@])(mcp-)?({pattern})"), known) for pattern, known in _TABLE)


def find_traits(command: str, args: Sequence[str]) -> ServerTraits:
    """What is known of the server that such a command line starts."""
    line = " ".join((command, *args))[:2000]
    return next((facts for pattern, facts in _PATTERNS if pattern.search(line)), _NOTHING)


def apply_traits(spec: StdioSpec, section: Section) -> StdioSpec:
    """The definition, completed where `section` says nothing."""
    facts = find_traits(spec.command, spec.args)
    share = spec.share if section.has("share") else facts.share or spec.share
    concurrency = spec.concurrency if section.has("concurrency") else facts.concurrency or spec.concurrency
    return attrs.evolve(spec, share=share, concurrency=concurrency)
