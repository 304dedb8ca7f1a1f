"""Usage statistics by server, tool and client, computed on request; and as metrics for Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/ (text format, version 0.0.4)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import trio

from mcpd.model.api import DaemonStatus, Metrics
from mcpd.model.login import LoginStatus
from mcpd.model.policy import tags_of_tool
from mcpd.model.status import ServerState, rfc3339
from mcpd.model.usage_stats import (
    CallCounts,
    ClientUsage,
    LatencyBucket,
    ProcessCost,
    ServerStats,
    Stats,
    ToolStats,
)
from mcpd.operations import Operations
from mcpd.process import processes
from mcpd.state.clients import ClientConnection
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.tool_call_stats import ToolCallStats

_MIN_BUCKET, _MAX_BUCKET = 0.00025, 300.0
"""Seconds; only buckets between them are reported."""


async def collect_stats(operations: Operations, name: str | None, *, processes: bool) -> Stats:
    """Return the statistics of one server or of all. `processes`: with memory and CPU time.

    Raises UnknownServer.
    """
    supervisor, clients = operations.supervisor, operations.clients.connected()
    servers = supervisor.servers() if name is None else [supervisor.get(name)]
    chosen = frozenset(servers)
    instances = [each for each in supervisor.instances() if each.original in chosen]
    costs = await measure_costs([*servers, *instances]) if processes else {}

    def stats_of(server: ManagedServer) -> ServerStats:
        """The usage of a dedicated instance counts for its server."""
        own = [server, *(each for each in instances if each.original is server)]
        return _server_stats(server, own, clients, _sum_costs([costs.get(each) for each in own]))

    return Stats(
        since=rfc3339(operations.started_at),
        at=rfc3339(time.time()),
        servers=tuple(map(stats_of, servers)),
        clients=tuple(_client_use(client, None) for client in clients),
        daemon=_sum_costs([costs.get(None)]),
    )


async def measure_costs(servers: Sequence[ManagedServer]) -> dict[ManagedServer | None, ProcessCost]:
    """Return memory and CPU time by server; None is the daemon. Reads /proc in a thread.

    Also adds the CPU time of instances to the total of their server.
    """
    marks = {server: server.child.mark for server in servers if server.child is not None}
    roots = {server.child.mark: (server.child.pid, server.child.mark) for server in servers if server.child}
    found = await trio.to_thread.run_sync(processes.measure_trees, roots)
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
) -> ServerStats:
    name, tally, status = server.spec.name, server.call_stats, server.status()
    total = tally.total()
    tools = sorted(tally.by_tool().items(), key=lambda item: (-item[1].calls, item[0]))
    return ServerStats(
        server=name,
        status=status.status,
        counts=_call_counts(total),
        seconds=round(total.times.total, 6),
        in_flight=sum(each.upstream.link.in_flight for each in instances if each.upstream is not None),
        restarts=status.restarts,
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
            _client_use(client, name)
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


def _client_use(client: ClientConnection, server: str | None) -> ClientUsage:
    return ClientUsage(
        pid=client.pid,
        name=client.name,
        since=rfc3339(client.since),
        attached=client.attached,
        calls=sum(client.calls.values()) if server is None else client.calls.get(server, 0),
    )


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]


_HELP = {
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
    "server_processes": "Processes in the server's process tree.",
    "server_memory_bytes": "Resident memory of the server's process tree; shared pages count per process.",
    "server_cpu_seconds_total": "CPU seconds used by the server's processes, including exited ones.",
    "login_needed": "1 if a person has to log in to the MCP server, else 0.",
    "login_renewals_total": "Renewals of the MCP server's login since mcpd started, by outcome.",
    "login_time_seconds": "When a person logged in to the MCP server, in seconds since the Unix epoch.",
    "login_renewed_time_seconds": "When that login was last renewed, in seconds since the Unix epoch.",
    "login_token_expiry_time_seconds": "When its current token expires, in seconds since the Unix epoch.",
}
"""Metric (without the prefix `mcpd_`) → its HELP text. Names in `_total` are counters, others gauges."""


async def collect_metrics(operations: Operations) -> Metrics:
    """Return the metrics of now."""
    stats = await collect_stats(operations, None, processes=True)
    logins = await operations.logins.statuses()
    return Metrics(content_type=CONTENT_TYPE, text=render(operations.status(), stats, logins))


def render(status: DaemonStatus, stats: Stats, logins: Sequence[LoginStatus] = ()) -> str:
    """Return the metrics page. Server and tool names are escaped."""
    tools = {each.name: each.tools for each in status.servers}
    lines: list[str] = []
    families = {
        **_daemon_families(status, stats),
        **_server_families(stats.servers, tools),
        **_call_families(stats.servers),
    }
    for name, samples in families.items():
        lines.extend(_family(name, samples))
    lines.extend(_histogram(stats.servers))
    for name, samples in {**_cost_families(stats.servers), **_login_families(status, logins)}.items():
        if samples:
            lines.extend(_family(name, samples))
    return "\n".join(lines) + "\n"


def _family(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP mcpd_{name} {_HELP[name]}"
    yield f"# TYPE mcpd_{name} {'counter' if name.endswith('_total') else 'gauge'}"
    yield from (f"mcpd_{name}{_labels(labels)} {_number(value)}" for labels, value in samples)


def _daemon_families(status: DaemonStatus, stats: Stats) -> dict[str, list[Sample]]:
    families: dict[str, list[Sample]] = {
        "build_info": [({"version": status.daemon.version}, 1)],
        "start_time_seconds": [({}, datetime.fromisoformat(stats.since).timestamp())],
        "clients": [({}, len(stats.clients))],
    }
    if stats.daemon is not None:
        families["memory_bytes"] = [({}, stats.daemon.memory)]
        families["cpu_seconds_total"] = [({}, stats.daemon.cpu_seconds)]
    return families


def _server_families(servers: Sequence[ServerStats], tools: Mapping[str, int]) -> dict[str, list[Sample]]:
    return {
        "server_up": [(_server(s), s.status is ServerState.CONNECTED) for s in servers],
        "server_state": [
            ({**_server(s), "state": state.value}, s.status is state)
            for s in servers
            for state in ServerState
        ],
        "server_restarts_total": [(_server(s), s.restarts) for s in servers],
        "server_tools": [(_server(s), tools.get(s.server, 0)) for s in servers],
        "server_in_flight": [(_server(s), s.in_flight) for s in servers],
        "server_clients": [(_server(s), len(s.clients)) for s in servers],
    }


def _call_families(servers: Sequence[ServerStats]) -> dict[str, list[Sample]]:
    return {
        "server_calls_total": [sample for s in servers for sample in _outcomes(s.counts, _server(s))],
        "tool_calls_total": [
            sample
            for s in servers
            for tool in s.tools
            for sample in _outcomes(tool.counts, {**_server(s), "tool": tool.tool})
        ],
    }


def _cost_families(servers: Sequence[ServerStats]) -> dict[str, list[Sample]]:
    """Return the samples of each server whose processes were measured, now or before."""
    costs = [(server, server.cost) for server in servers if server.cost is not None]
    return {
        "server_processes": [(_server(s), cost.processes) for s, cost in costs],
        "server_memory_bytes": [(_server(s), cost.memory) for s, cost in costs],
        "server_cpu_seconds_total": [
            (_server(s), s.cpu_seconds) for s in servers if s.cost is not None or s.cpu_seconds
        ],
    }


def _login_families(status: DaemonStatus, logins: Sequence[LoginStatus]) -> dict[str, list[Sample]]:
    """Return the samples of each server that has, or needs, a login."""
    used = [(name, login) for login in logins for name in login.servers]
    needed = {name: login.state == "over" for name, login in used}
    needed |= {each.name: True for each in status.servers if each.status is ServerState.NEEDS_AUTH}

    def times(read: Callable[[LoginStatus], str | None]) -> list[Sample]:
        found = [(name, read(login)) for name, login in used]
        return [({"server": name}, datetime.fromisoformat(at).timestamp()) for name, at in found if at]

    return {
        "login_needed": [({"server": name}, is_needed) for name, is_needed in needed.items()],
        "login_renewals_total": [
            ({"server": name, "outcome": outcome}, number)
            for name, login in used
            for outcome, number in (("ok", login.renewals), ("failed", login.failed_renewals))
        ],
        "login_time_seconds": times(lambda login: login.logged_in_at),
        "login_renewed_time_seconds": times(lambda login: login.renewed_at),
        "login_token_expiry_time_seconds": times(lambda login: login.expires_at),
    }


def _server(server: ServerStats) -> dict[str, str]:
    return {"server": server.server}


def _outcomes(counts: CallCounts, labels: dict[str, str]) -> Iterator[Sample]:
    ok = counts.calls - counts.errors - counts.lost - counts.cancelled
    numbers = {"ok": ok, "error": counts.errors, "lost": counts.lost, "cancelled": counts.cancelled}
    yield from (({**labels, "outcome": outcome}, number) for outcome, number in numbers.items())


def _histogram(servers: Iterable[ServerStats]) -> Iterator[str]:
    name = "mcpd_server_call_duration_seconds"
    yield f"# HELP {name} Duration of answered tool calls of the MCP server, in seconds."
    yield f"# TYPE {name} histogram"
    for server in servers:
        counts = server.counts
        answered = counts.calls - counts.lost - counts.cancelled
        for bucket in server.buckets:
            yield f"{name}_bucket{_labels({**_server(server), 'le': repr(bucket.seconds)})} {bucket.calls}"
        yield f"{name}_bucket{_labels({**_server(server), 'le': '+Inf'})} {answered}"
        yield f"{name}_sum{_labels(_server(server))} {_number(server.seconds)}"
        yield f"{name}_count{_labels(_server(server))} {answered}"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
