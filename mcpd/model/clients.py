"""Who is connected: the answer of `mcpd/clients`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ServerUsage:
    """A server that a client has called."""

    calls: int
    revisions: str = ""
    """The client's protocol revision and the server's: `2025-06-18 → 2026-07-28`. Alone when they are one."""
    instance: str | None = None
    """The instance of it that is this client's, where not all share one."""


@attrs.frozen(kw_only=True)
class ConnectedClient:
    """One client, or one session of a client over HTTP."""

    door: str
    """How it came in: `socket`, `bridge`, `http`, or `page` for the dashboard."""
    name: str
    """What its configuration calls it, else what it calls itself, or its program."""
    pid: int | None
    """null: it came over TCP, where nobody vouches for one."""
    since: str
    sees: str = ""
    """The server that it speaks MCP to, `*` for all together, `*PROFILE` for those of a profile; empty: it
    does not speak MCP."""
    protocol_version: str = ""
    """The revision it last spoke."""
    calls: int = 0
    in_flight: int = 0
    cwd: str = ""
    servers: Mapping[str, ServerUsage] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ClientsResult:
    clients: tuple[ConnectedClient, ...]
