"""The control API in types: what the `mcpd/…` methods take and answer.

Families with a file of their own: `definitions`, `features`, `clients`, `usage`, `history`, `tap`.
`api/control_methods.py` binds each method to one call of Operations; `rpc.discover` and
`docs/reference/control-api.md` are made from these classes. Keys are snake_case; lists are never null;
members that hold MCP objects (`tools`, a raw result, …) carry the server's own bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.definitions import ConfigStatus
from mcpd.model.history import HistoryEntry
from mcpd.model.status import ServerStatus

API_VERSION = 1
"""Raised when a method or a member changes its meaning; additions do not raise it."""


@attrs.frozen(kw_only=True)
class NoParams:
    """The method takes nothing."""


@attrs.frozen(kw_only=True)
class EmptyResult:
    """The method answers nothing but that it was done."""


@attrs.frozen(kw_only=True)
class ServerParam:
    server: str


@attrs.frozen(kw_only=True)
class OptionalServerParam:
    server: str | None = None
    """None: every server."""


@attrs.frozen(kw_only=True)
class LifecycleParams:
    """For connect, disconnect, reconnect and enable."""

    server: str
    wait: float = 0.0
    """Answer when the server has settled (connected, failed, …), after this many seconds at the latest."""


@attrs.frozen(kw_only=True)
class DisableParams:
    server: str
    wait: float = 0.0
    """As for the others."""
    until: str | None = None
    """Come back by itself then (RFC 3339); null: stay off until somebody switches it on."""


@attrs.frozen(kw_only=True)
class HttpListener:
    """Where clients come in over HTTP."""

    url: str
    """The endpoint of all servers together, with the real port."""
    auth: str
    """`token`, or `none`: whoever can reach the port may come in."""
    token_file: str | None = None
    """Holds what goes into `Authorization: Bearer …`."""


@attrs.frozen(kw_only=True)
class DaemonInfo:
    version: str
    pid: int
    started_at: str
    socket: str
    instance: str
    """The mark that every process of this daemon carries in `MCPD_INSTANCE`."""
    clients: int
    http: HttpListener | None = None
    """None: nobody listens for HTTP."""


@attrs.frozen(kw_only=True)
class ServerResult:
    """How the server is after the wish; with `wait`, after it has settled."""

    server: ServerStatus


@attrs.frozen(kw_only=True)
class DaemonStatus:
    """`mcpd/status`."""

    servers: tuple[ServerStatus, ...]
    config: ConfigStatus
    daemon: DaemonInfo


@attrs.frozen(kw_only=True)
class ConnectStep:
    """One step of reaching a server: what was tried and what came of it."""

    at: str
    step: str
    outcome: str
    ms: float


@attrs.frozen(kw_only=True)
class ServerDetail:
    """`mcpd/server`: one status with everything that explains it."""

    server: ServerStatus
    command: tuple[str, ...] = ()
    """The command line, secrets masked; empty for a remote server."""
    url: str = ""
    """Where a remote server listens, without query and secrets; empty for a program."""
    cwd: str | None = None
    env: tuple[str, ...] = ()
    """Names only, of what the child is given."""
    executable: str | None = None
    """Where the command was found."""
    path: str = ""
    """The PATH it was looked for in."""
    log: tuple[str, ...] = ()
    """The last stderr lines, from the bounded log that survives restarts."""
    log_file: str = ""
    junk_lines: int = 0
    """Lines on stdout that were no messages."""
    junk_sample: str = ""
    late_replies: int = 0
    """Answers that came after their request was cancelled or had timed out."""
    negotiation: tuple[ConnectStep, ...] = ()
    definition: Mapping[str, object] = attrs.field(factory=dict)
    """The definition in force, secrets masked."""
    history: tuple[HistoryEntry, ...] = ()
    """What happened to it last, oldest first; `mcpd/history` has more."""


@attrs.frozen(kw_only=True)
class LogsParams:
    server: str
    lines: int = 100
    follow: bool = False
    """Keep sending `mcpd/log` notifications until the request is cancelled."""


@attrs.frozen(kw_only=True)
class LogLines:
    lines: tuple[str, ...]
    """Each `2026-11-21T06:30:00.123Z text`."""


@attrs.frozen(kw_only=True)
class EventsParams:
    servers: tuple[str, ...] = ()
    """Only these; empty: all."""


@attrs.frozen(kw_only=True)
class AttachedClient:
    """Who is at the other end of an attached connection: for people, and for servers that ask."""

    name: str = ""
    """What its configuration calls it: `cursor`, `zed`, …"""
    pid: int | None = None
    """Of the program that the messages come from, not of a bridge in between."""
    cwd: str | None = None
    """Where it works; the root of a client that declares none."""


@attrs.frozen(kw_only=True)
class AttachParams:
    server: str | None = None
    """None: all servers together."""
    profile: str | None = None
    """Which selection of servers and tools the client is to see, `*` for everything; None: what
    `settings.profileByDirectory` says of the client's `cwd`, else everything."""
    client: AttachedClient | None = None
    wait: float = 0.0
    """How long to wait for the server to be connected, seconds; requests wait by themselves."""


@attrs.frozen(kw_only=True)
class AttachResult:
    """From here on this connection speaks MCP: to one server, unrenamed, or to those of a profile."""

    server: str | None = None
    profile: str | None = None
    protocol_version: str | None = None
    """The revision the server speaks, when it is connected."""


@attrs.frozen(kw_only=True)
class Metrics:
    """`mcpd/metrics`."""

    content_type: str
    text: str


@attrs.frozen(kw_only=True)
class DashboardLink:
    """`mcpd/page`: the way into the dashboard."""

    url: str
    """Good once."""
    seconds: float
    """And for so long."""


@attrs.frozen(kw_only=True)
class PingParams:
    server: str
    timeout: float = 10.0


@attrs.frozen(kw_only=True)
class PingResult:
    """The server has answered, with whatever."""

    server: str
    ms: float


@attrs.frozen(kw_only=True)
class VersionInfo:
    version: str
    api: int
    pid: int
    python: str
    started_at: str
    search_path: str
    """The PATH of mcpd: where servers' commands are looked for, unless a definition says otherwise."""
    protocol_versions: tuple[str, ...]
