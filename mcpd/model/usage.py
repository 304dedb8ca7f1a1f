"""What servers are used for and what they cost: the answer of `mcpd/stats`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mcpd.model.status import ServerState


@attrs.frozen(kw_only=True)
class StatsParams:
    server: str | None = None
    """None: every server."""
    processes: bool = False
    """Look at the process table too, for memory and processor time: about 50 µs a process of the machine."""


@attrs.frozen(kw_only=True)
class CallCounts:
    """The calls that have ended, and how long those took that were answered."""

    calls: int
    errors: int
    """The tool said that it failed, or the server refused."""
    lost: int
    """Not answered: timed out, or the connection ended."""
    cancelled: int
    p50_ms: float | None = None
    """Half of the calls took no longer; good to 12 %. None: none was answered."""
    p95_ms: float | None = None
    p99_ms: float | None = None


@attrs.frozen(kw_only=True)
class ToolStats:
    tool: str
    counts: CallCounts


@attrs.frozen(kw_only=True)
class LatencyBucket:
    seconds: float
    """The bound."""
    calls: int
    """How many took at most so long."""


@attrs.frozen(kw_only=True)
class ProcessCost:
    """Of a process with all that came from it."""

    processes: int
    memory: int
    """Bytes resident; pages that processes share count once for each."""
    cpu_seconds: float
    """User and system, since they were started; of those that have ended, too."""


@attrs.frozen(kw_only=True)
class ClientUsage:
    """One connected client."""

    pid: int | None
    """null: it came over TCP, where nobody vouches for one."""
    name: str
    """What it calls itself, or its program."""
    since: str
    attached: str = ""
    """The server that it speaks MCP to, `*` for all of them together; empty: it does not."""
    calls: int = 0
    """Tool calls that it began."""


@attrs.frozen(kw_only=True)
class ServerStats:
    server: str
    status: ServerState
    counts: CallCounts
    seconds: float
    """The sum of all answered calls' times."""
    in_flight: int
    restarts: int
    buckets: tuple[LatencyBucket, ...] = ()
    tools: tuple[ToolStats, ...] = ()
    """Those called most first."""
    clients: tuple[ClientUsage, ...] = ()
    """The connected clients that use it: attached to it alone, or having called one of its tools."""
    cost: ProcessCost | None = None
    """None: not asked for, or no process of ours runs."""
    cpu_seconds: float = 0.0
    """Processor time of all its processes since the daemon started, as far as anybody has asked for `cost`:
    what one has used after it was last looked at is missing when it has ended."""


@attrs.frozen(kw_only=True)
class Stats:
    """`mcpd/stats`: since the daemon started, over all connections of each server and of its instances."""

    since: str
    at: str
    servers: tuple[ServerStats, ...]
    clients: tuple[ClientUsage, ...]
    """Every connected client, whoever it uses."""
    daemon: ProcessCost | None = None
    """Of mcpd itself, without its servers."""


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
