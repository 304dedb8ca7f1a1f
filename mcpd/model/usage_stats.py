"""Who uses the servers and what they cost: the results of `mcpd/clients` and `mcpd/stats`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.status import ServerState


@attrs.frozen(kw_only=True)
class StatsParams:
    server: str | None = None
    """null: all servers."""
    processes: bool = False
    """Also measure memory and CPU time. Costs about 50 µs for each process of the machine."""


@attrs.frozen(kw_only=True)
class CallCounts:
    """Completed tool calls, and the response times of those that were answered."""

    calls: int
    errors: int
    """The tool reported an error, or the server returned one."""
    lost: int
    """Calls without a response: they timed out, or the connection ended."""
    cancelled: int
    p50_ms: float | None = None
    """The median in milliseconds, accurate to 12 %. null: no call was answered."""
    p95_ms: float | None = None
    p99_ms: float | None = None


@attrs.frozen(kw_only=True)
class ToolStats:
    tool: str
    counts: CallCounts


@attrs.frozen(kw_only=True)
class LatencyBucket:
    seconds: float
    """The upper bound of the bucket."""
    calls: int
    """The number of calls that took at most this long."""


@attrs.frozen(kw_only=True)
class ProcessCost:
    """The resources of a process and its descendants."""

    processes: int
    memory: int
    """Resident bytes. Pages shared between processes count once for each process."""
    cpu_seconds: float
    """User and system time since they were started, including processes that have exited."""


@attrs.frozen(kw_only=True)
class ClientUsage:
    """One connected client."""

    pid: int | None
    """null for a client over TCP, where the process is not known."""
    name: str
    """The name that the client gave, or its program."""
    since: str
    attached: str = ""
    """The server to which it speaks MCP; `*` for all servers; empty if it does not speak MCP."""
    calls: int = 0
    """The number of tool calls it has started."""


@attrs.frozen(kw_only=True)
class ServerStats:
    server: str
    status: ServerState
    counts: CallCounts
    seconds: float
    """The total time of all answered calls."""
    in_flight: int
    restarts: int
    buckets: tuple[LatencyBucket, ...] = ()
    tools: tuple[ToolStats, ...] = ()
    """The most frequently called tools first."""
    clients: tuple[ClientUsage, ...] = ()
    """The connected clients that are attached to this server only, or have called one of its tools."""
    cost: ProcessCost | None = None
    """null: not requested, or mcpd runs no process for this server."""
    cpu_seconds: float = 0.0
    """CPU time of all its processes since mcpd started. It is updated when `cost` is requested, so the time
    that a process used after the last request and before its exit is missing."""


@attrs.frozen(kw_only=True)
class Stats:
    """The result of `mcpd/stats`: totals since mcpd started, for all connections of each server."""

    since: str
    at: str
    servers: tuple[ServerStats, ...]
    clients: tuple[ClientUsage, ...]
    """All connected clients."""
    daemon: ProcessCost | None = None
    """The cost of mcpd itself, without its servers."""


@attrs.frozen(kw_only=True)
class ServerUsage:
    """A server that a client has called."""

    calls: int
    revisions: str = ""
    """The protocol revisions of client and server: `2025-06-18 → 2026-07-28`. One if they are equal."""
    instance: str | None = None
    """The client's own instance of the server, if clients do not share one."""


@attrs.frozen(kw_only=True)
class ConnectedClient:
    """A connected client, or one session of a client over HTTP."""

    door: str
    """How it is connected: `socket`, `bridge`, `http`, or `page` for the dashboard."""
    name: str
    """Its name in mcpd's integration, the name it gave, or its program."""
    pid: int | None
    """null for a client over TCP, where the process is not known."""
    since: str
    sees: str = ""
    """The server to which it speaks MCP, `*` for all servers, `*PROFILE` for those of a profile; empty if it
    does not speak MCP."""
    protocol_version: str = ""
    """The protocol revision of its last request."""
    calls: int = 0
    in_flight: int = 0
    cwd: str = ""
    servers: Mapping[str, ServerUsage] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ClientsResult:
    clients: tuple[ConnectedClient, ...]
