"""Types for the results of `mcpd/clients` and `mcpd/stats`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.record import Record
from mcpd.model.status import ServerState


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StatsParams(Record):
    server: str | None = None
    """If this is null, the request applies to all servers."""
    processes: bool = False
    """If this is true, mcpd also measures memory and CPU time. This takes about 50 µs for each process on
    the machine."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CacheCleared(Record):
    """The result of `mcpd/cache/clear`."""

    results: int
    """The number of results that were dropped."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CallCounts(Record):
    """The number of completed tool calls, and the response times of calls that received a response."""

    calls: int
    errors: int
    """The number of calls in which the tool or the server reported an error."""
    lost: int
    """The number of calls that did not receive a response because they timed out or the connection ended."""
    cancelled: int
    p50_ms: float | None = None
    """The median in milliseconds, accurate to 12 %. This is null if no call received a response."""
    p95_ms: float | None = None
    p99_ms: float | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ToolStats(Record):
    tool: str
    counts: CallCounts
    tags: tuple[str, ...] = ()
    """The tags that the server's definition gives the tool."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LatencyBucket(Record):
    seconds: float
    """The upper bound of the bucket."""
    calls: int
    """The number of calls that took at most this long."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessCost(Record):
    """The resources that a process and its descendants use."""

    processes: int
    memory: int
    """The resident memory in bytes. Pages that several processes share are counted once for each process."""
    cpu_seconds: float
    """The user and system time since the processes started, including processes that have exited."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ClientUsage(Record):
    """A connected client."""

    pid: int | None
    """The process ID. This is null if the client is connected over TCP, because its process is unknown."""
    name: str
    """The name that the client provided, or the name of its program."""
    since: str
    attached: str = ""
    """The server that the client uses through MCP, or `*` for all servers. This is empty if the client
    does not use MCP."""
    calls: int = 0
    """The number of tool calls that the client has started."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerStats(Record):
    server: str
    status: ServerState
    counts: CallCounts
    seconds: float
    """The total time of all calls that received a response."""
    in_flight: int
    restarts: int
    cache_hits: int = 0
    """The number of requests that mcpd answered with the result of an equal request."""
    cache_misses: int = 0
    """The number of cacheable requests that mcpd sent to the server."""
    buckets: tuple[LatencyBucket, ...] = ()
    tools: tuple[ToolStats, ...] = ()
    """The server's tools, starting with the tool that is called most often."""
    clients: tuple[ClientUsage, ...] = ()
    """The connected clients that are attached only to this server or have called one of its tools."""
    cost: ProcessCost | None = None
    """The resources of the server. This is null if they were not requested, or if mcpd does not run a process
    for the server."""
    cpu_seconds: float = 0.0
    """The CPU time of all the server's processes since mcpd started. mcpd updates it when `cost` is
    requested. It does not include the time that a process used between the last request and its exit."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Stats(Record):
    """The result of `mcpd/stats`. It contains totals since mcpd started for all connections of each
    server."""

    since: str
    at: str
    servers: tuple[ServerStats, ...]
    clients: tuple[ClientUsage, ...]
    """All connected clients."""
    daemon: ProcessCost | None = None
    """The resources of mcpd itself, not including its servers."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServerUsage(Record):
    """A client's use of a server."""

    calls: int
    revisions: str = ""
    """The protocol revisions of the client and the server, such as `2025-06-18 → 2026-07-28`. If they are
    equal, only one revision is shown."""
    instance: str | None = None
    """The name of the client's own server instance, if clients do not share one."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConnectedClient(Record):
    """A connected client or an HTTP client session."""

    via: str
    """The type of the connection, which is `socket`, `bridge`, `http`, or `page` for the dashboard."""
    name: str
    """The name that mcpd uses for the client, the name that the client provided, or the name of its
    program."""
    pid: int | None
    """The process ID. This is null if the client is connected over TCP, because its process is unknown."""
    since: str
    sees: str = ""
    """The server that the client uses through MCP, `*` for all servers, or `*PROFILE` for the servers in a
    profile. This is empty if the client does not use MCP and has no profile."""
    protocol_version: str = ""
    """The protocol revision of the client's last request."""
    calls: int = 0
    in_flight: int = 0
    cwd: str = ""
    servers: Mapping[str, ServerUsage] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ClientsResult(Record):
    clients: tuple[ConnectedClient, ...]
