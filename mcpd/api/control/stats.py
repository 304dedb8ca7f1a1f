"""Usage statistics by server, tool and client, computed on request; and as metrics for Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/ (text format, version 0.0.4)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import trio

from mcpd.model.api import (
    CallCounts,
    DaemonStatus,
    LatencyBucket,
    Metrics,
    ProcessCost,
    ServerStats,
    Stats,
    ToolStats,
)
from mcpd.model.login import LoginStatus
from mcpd.model.policy import tags_of_tool
from mcpd.model.status import ServerState, rfc3339
from mcpd.operations import Operations
from mcpd.process import processes
from mcpd.state.clients import ClientConnection
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.tool_call_stats import ToolCallStats

_LAG_INTERVAL, _LAG_KEPT = 0.1, 600.0
_one_at_a_time = trio.CapacityLimiter(1)
"""For requests that read /proc, so that many of them do not all continue in the same round."""
_MAX_CLIENTS = 100
"""Names of clients in the metrics: they come from the clients."""
_MIN_BUCKET, _MAX_BUCKET = 0.00025, 300.0
"""Seconds; only buckets between them are reported."""


async def collect_stats(operations: Operations, name: str | None, *, processes: bool) -> Stats:
    """Return the statistics of one server or of all. `processes`: with memory and CPU time.

    Raises UnknownServer.
    """
    supervisor, clients = operations.supervisor, operations.clients.connected()
    servers = supervisor.servers() if name is None else [supervisor.get(name)]
    chosen = frozenset(servers)
    instances = [each for each in supervisor.instances.servers() if each.original in chosen]
    costs = await measure_costs([*servers, *instances]) if processes else {}

    def stats_of(server: ManagedServer) -> ServerStats:
        """The usage of a dedicated instance counts for its server."""
        own = [server, *(each for each in instances if each.original is server)]
        cost = _sum_costs([costs.get(each) for each in own])
        return _server_stats(server, own, clients, cost, operations.redactor.mask)

    return Stats(
        since=rfc3339(operations.started_at),
        at=rfc3339(time.time()),
        servers=tuple(map(stats_of, servers)),
        clients=len(clients),
        daemon=_sum_costs([costs.get(None)]),
    )


async def measure_costs(servers: Sequence[ManagedServer]) -> dict[ManagedServer | None, ProcessCost]:
    """Return memory and CPU time by server; None is the daemon. Reads /proc in a thread.

    Also adds the CPU time of instances to the total of their server.
    """
    marks = {server: server.child.mark for server in servers if server.child is not None}
    roots = {server.child.mark: (server.child.pid, server.child.mark) for server in servers if server.child}
    found = await trio.to_thread.run_sync(processes.measure_trees, roots, limiter=_one_at_a_time)
    for server in servers:
        if server.original is None:
            own = (marks[each] for each in marks if each is server or each.original is server)
            server.cpu_usage.update({mark: found[mark].cpu_seconds for mark in own})
    return {**{server: found[mark] for server, mark in marks.items()}, None: processes.measure_self()}


def _sum_costs(costs: Sequence[ProcessCost | None]) -> ProcessCost | None:
    known = [cost for cost in costs if cost is not None]
    if not known:
        return None
    return ProcessCost(
        processes=sum(cost.processes for cost in known),
        memory=sum(cost.memory for cost in known),
        cpu_seconds=round(sum(cost.cpu_seconds for cost in known), 2),
    )


def _server_stats(
    server: ManagedServer,
    instances: Sequence[ManagedServer],
    clients: Sequence[ClientConnection],
    cost: ProcessCost | None,
    mask: Callable[[str], str],
) -> ServerStats:
    name, tally, status = server.spec.name, server.call_stats, server.status()
    total = tally.total()
    tools = sorted(tally.by_tool().items(), key=lambda item: (-item[1].calls, item[0]))
    return ServerStats(
        server=name,
        status=status.status,
        counts=_call_counts(total),
        seconds=round(total.times.total, 6),
        in_flight=sum(
            each.upstream.link.requests.in_flight for each in instances if each.upstream is not None
        ),
        restarts=status.restarts,
        denied=tally.denied,
        cache_hits=sum(each.results.hits for each in instances),
        cache_misses=sum(each.results.misses for each in instances),
        buckets=tuple(
            LatencyBucket(seconds=seconds, calls=calls)
            for seconds, calls in total.times.cumulative_counts()
            if _MIN_BUCKET < seconds < _MAX_BUCKET
        ),
        tools=tuple(
            ToolStats(tool=tool, counts=_call_counts(count), tags=tags_of_tool(server.spec, tool))
            for tool, count in tools
        ),
        clients=tuple(
            mask(client.name) or str(client.pid)
            for client in clients
            if client.attached == name or client.calls.get(name)
        ),
        cost=cost,
        cpu_seconds=server.cpu_usage.seconds,
    )


def _call_counts(count: ToolCallStats) -> CallCounts:
    return CallCounts(
        calls=count.calls,
        errors=count.errors,
        lost=count.lost,
        cancelled=count.cancelled,
        p50_ms=_ms(count.times.quantile(0.5)),
        p95_ms=_ms(count.times.quantile(0.95)),
        p99_ms=_ms(count.times.quantile(0.99)),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DURATIONS = "server_call_duration_seconds"
_HELP = {
    "client_connections": "Connections to the mcpd daemon, by the name of the client.",
    "event_loop_lag_seconds": "Longest delay of a timer of the daemon since the page before.",
    "config_problems": "Errors in the configuration file, whose entries are not in effect.",
    "state_problems": "What the mcpd daemon cannot save or read; see mcpctl status.",
    "approvals_waiting": "Calls that wait for the approval of a person.",
    "server_waiting_calls": "Calls of the MCP server that wait for a person, a turn or a connection.",
    "server_denied_total": "Uses of the MCP server that a policy or a person has refused.",
    "build_info": "Version of the running mcpd daemon.",
    "start_time_seconds": "Start time of the mcpd daemon, in seconds since the Unix epoch.",
    "clients": "Clients connected to the mcpd daemon.",
    "memory_bytes": "Resident memory of the mcpd daemon, without servers.",
    "cpu_seconds_total": "CPU seconds used by the mcpd daemon, without servers.",
    "server_up": "1 if the MCP server is connected, else 0.",
    "server_state": "1 for the current state of the MCP server, 0 for all others.",
    "server_restarts_total": "Number of times mcpd started the MCP server again after a failure.",
    "server_tools": "Tools provided by the MCP server.",
    "server_in_flight": "Requests sent to the MCP server that have no response yet.",
    "server_clients": "Connected clients that use the MCP server.",
    "server_calls_total": "Finished tool calls of the MCP server, by outcome.",
    "tool_calls_total": "Finished calls of each tool, by outcome.",
    _DURATIONS: "Duration of answered tool calls of the MCP server, in seconds.",
    "server_processes": "Processes in the server's process tree.",
    "server_memory_bytes": "Resident memory of the server's process tree; shared pages count per process.",
    "server_cpu_seconds_total": "CPU seconds used by the server's processes, including exited ones.",
    "login_needed": "1 if a person has to log in to the MCP server, else 0.",
    "login_renewals_total": "Renewals of the MCP server's login since mcpd started, by outcome.",
    "login_time_seconds": "When a person logged in to the MCP server, in seconds since the Unix epoch.",
    "login_renewed_time_seconds": "When that login was last renewed, in seconds since the Unix epoch.",
    "login_token_expiry_time_seconds": "When its current token expires, in seconds since the Unix epoch.",
}
"""Metric (without the prefix `mcpd_`) → its HELP text. Names in `_total` are counters, others gauges, and the
durations are a histogram."""


class Add(Protocol):
    """Adds a sample to a family of metrics."""

    def __call__(self, family: str, value: float, suffix: str = "", **labels: str) -> None: ...


async def collect_metrics(operations: Operations) -> Metrics:
    """Return the metrics of now."""
    stats = await collect_stats(operations, None, processes=True)
    logins = await operations.logins.statuses()
    mask = operations.redactor.mask
    names = Counter(mask(client.name) or "?" for client in operations.clients.connected())
    text = render(operations.status(), stats, logins, names, await _measure_lag())
    return Metrics(content_type=CONTENT_TYPE, text=text)


class _LoopLag:
    """The longest delay of a timer since the last page, measured only as long as somebody asks for pages."""

    def __init__(self) -> None:
        self._longest = self._until = 0.0
        self._is_running = False

    async def take(self) -> float:
        self._until = trio.current_time() + _LAG_KEPT
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._measure)
            await trio.sleep(1.5 * _LAG_INTERVAL)
        longest, self._longest = self._longest, 0.0
        return round(longest, 6)

    async def _measure(self) -> None:
        while (due := trio.current_time() + _LAG_INTERVAL) < self._until:
            await trio.sleep_until(due)
            self._longest = max(self._longest, trio.current_time() - due)
        self._is_running = False


_loop_lag = trio.lowlevel.RunVar[_LoopLag]("loop lag")


async def _measure_lag() -> float:
    """Return how late the latest timer was since the last call."""
    try:
        lag = _loop_lag.get()
    except LookupError:
        _loop_lag.set(lag := _LoopLag())
    return await lag.take()


def render(
    status: DaemonStatus,
    stats: Stats,
    logins: Sequence[LoginStatus] = (),
    clients: Mapping[str, int] | None = None,
    lag: float = 0.0,
) -> str:
    """Return the metrics page. Server, tool and client names are escaped."""
    families: dict[str, list[str]] = {}

    def add(family: str, value: float, suffix: str = "", **labels: str) -> None:
        line = f"mcpd_{family}{suffix}{_labels(labels)} {_number(value)}"
        families.setdefault(family, []).append(line)

    add("build_info", 1, version=status.daemon.version)
    add("start_time_seconds", datetime.fromisoformat(stats.since).timestamp())
    add("clients", stats.clients)
    for name, number in sorted((clients or {}).items(), key=lambda item: -item[1])[:_MAX_CLIENTS]:
        add("client_connections", number, client=name)
    add("event_loop_lag_seconds", lag)
    add("config_problems", len(status.config.problems))
    add("state_problems", len(status.daemon.warnings))
    add("approvals_waiting", status.daemon.approvals)
    for each in status.servers:
        add("server_waiting_calls", each.waiting_calls, server=each.name)
    if stats.daemon is not None:
        add("memory_bytes", stats.daemon.memory)
        add("cpu_seconds_total", stats.daemon.cpu_seconds)
    tools = {each.name: each.tools for each in status.servers}
    for server in stats.servers:
        add("server_tools", tools.get(server.server, 0), server=server.server)
        _add_server(add, server)
        _add_durations(add, server)
    used = {name: login for login in logins for name in login.servers}
    needed = {name: login.state == "over" for name, login in used.items()}
    needed |= {each.name: True for each in status.servers if each.status is ServerState.NEEDS_AUTH}
    for name, is_needed in needed.items():
        add("login_needed", is_needed, server=name)
    for name, login in used.items():
        _add_login(add, name, login)
    page: list[str] = []
    for family, lines in families.items():
        kind = "counter" if family.endswith("_total") else "gauge"
        if family == _DURATIONS:
            kind = "histogram"
        page += [f"# HELP mcpd_{family} {_HELP[family]}", f"# TYPE mcpd_{family} {kind}", *lines]
    return "\n".join(page) + "\n"


def _add_server(add: Add, server: ServerStats) -> None:
    name = server.server
    add("server_up", server.status is ServerState.CONNECTED, server=name)
    for state in ServerState:
        add("server_state", server.status is state, server=name, state=state.value)
    add("server_restarts_total", server.restarts, server=name)
    add("server_in_flight", server.in_flight, server=name)
    add("server_denied_total", server.denied, server=name)
    add("server_clients", len(server.clients), server=name)
    for outcome, number in _outcomes(server.counts).items():
        add("server_calls_total", number, server=name, outcome=outcome)
    for tool in server.tools:
        for outcome, number in _outcomes(tool.counts).items():
            add("tool_calls_total", number, server=name, tool=tool.tool, outcome=outcome)
    if server.cost is not None:
        add("server_processes", server.cost.processes, server=name)
        add("server_memory_bytes", server.cost.memory, server=name)
    if server.cost is not None or server.cpu_seconds:
        add("server_cpu_seconds_total", server.cpu_seconds, server=name)


def _add_durations(add: Add, server: ServerStats) -> None:
    counts = server.counts
    answered = counts.calls - counts.lost - counts.cancelled
    for bucket in server.buckets:
        add(_DURATIONS, bucket.calls, "_bucket", server=server.server, le=repr(bucket.seconds))
    add(_DURATIONS, answered, "_bucket", server=server.server, le="+Inf")
    add(_DURATIONS, server.seconds, "_sum", server=server.server)
    add(_DURATIONS, answered, "_count", server=server.server)


def _add_login(add: Add, server: str, login: LoginStatus) -> None:
    add("login_renewals_total", login.renewals, server=server, outcome="ok")
    add("login_renewals_total", login.failed_renewals, server=server, outcome="failed")
    for family, at in (
        ("login_time_seconds", login.logged_in_at),
        ("login_renewed_time_seconds", login.renewed_at),
        ("login_token_expiry_time_seconds", login.expires_at),
    ):
        if at:
            add(family, datetime.fromisoformat(at).timestamp(), server=server)


def _outcomes(counts: CallCounts) -> dict[str, int]:
    ok = counts.calls - counts.errors - counts.lost - counts.cancelled
    return {"ok": ok, "error": counts.errors, "lost": counts.lost, "cancelled": counts.cancelled}


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
