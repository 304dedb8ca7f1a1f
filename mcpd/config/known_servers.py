"""Facts about well-known servers, by package: whether clients may share them, and which calls may overlap.

A definition's own `share` and `concurrency` take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs
import msgspec

from mcpd.model.server_spec import Concurrency, Share, StdioSpec


class ServerTraits(msgspec.Struct, frozen=True):
    """Defaults for one kind of server. None: the general default. With any of them, the server has no
    second process (`ServerSpec.is_single_process`)."""

    share: Share | None = None
    concurrency: Concurrency | None = None


_TABLE: tuple[tuple[str, ServerTraits], ...] = (
    # The process numbers thoughts consecutively, so two conversations would continue each other's.
    (r"server-sequential-thinking", ServerTraits(share="client")),
    # Pages and logins belong to the process. Without --isolated, a second process cannot open the profile.
    (r"(playwright/mcp|playwright-mcp)\b.*--isolated", ServerTraits(share="client")),
    (r"chrome-devtools-mcp\b.*--isolated", ServerTraits(share="client")),
    (r"server-puppeteer|mobile-mcp", ServerTraits(share="client")),
    (r"playwright/mcp|playwright-mcp|chrome-devtools-mcp", ServerTraits(share="all")),
    # The roots that clients declare replace the directories in its command, also after the clients have left.
    (r"server-filesystem|mcp/filesystem", ServerTraits(share="declared-root")),
    # The database file is locked by the process that opened it first.
    (r"server-motherduck|server-duckdb", ServerTraits(share="all")),
    # Reads its file, changes it and writes it back: 19 of 20 concurrent calls are lost (measured, 2026.1.26).
    (r"server-memory", ServerTraits(concurrency="writes")),
)
# A package `server-x` installs a program `mcp-server-x`.
_PATTERNS = tuple((re.compile(rf"(^|[\s/@])(mcp-)?({pattern})"), traits) for pattern, traits in _TABLE)


def find_traits(command: str, args: Sequence[str]) -> ServerTraits:
    """Return the traits of the server that this command line starts."""
    line = " ".join((command, *args))[:2000]
    return next((traits for pattern, traits in _PATTERNS if pattern.search(line)), ServerTraits())


def apply_traits(spec: StdioSpec, *, has_share: bool, has_concurrency: bool) -> StdioSpec:
    """Fill in `share` and `concurrency` where the definition does not set them, and rule out a second process
    of a server that is known."""
    traits = find_traits(spec.command, spec.args)
    share = spec.share if has_share else traits.share or spec.share
    concurrency = spec.concurrency if has_concurrency else traits.concurrency or spec.concurrency
    is_single_process = spec.is_single_process or traits != ServerTraits()
    return attrs.evolve(spec, share=share, concurrency=concurrency, is_single_process=is_single_process)
