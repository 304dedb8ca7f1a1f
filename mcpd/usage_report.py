"""Usage statistics: calls by server, tool and client, with memory and CPU time, computed on request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec
import trio

from mcpd.model.status import rfc3339
from mcpd.model.tags import tags_of_tool
from mcpd.model.usage_stats import (
    CallCounts,
    ClientUsage,
    LatencyBucket,
    ProcessCost,
    ServerStats,
    Stats,
    ToolStats,
)
from mcpd.process import processes
from mcpd.state.clients import ClientConnection
from mcpd.supervision.managed_server import ManagedServer
from mcpd.transports.tool_call_stats import ToolCallStats

_MIN_BUCKET, _MAX_BUCKET = 0.00025, 300.0
"""Seconds; only buckets between them are reported."""


class StatsReport(msgspec.Struct, frozen=True, eq=False):
    """Creates the statistics of these servers. The usage of a dedicated instance counts for its server."""

    servers: Sequence[ManagedServer]
    instances: Sequence[ManagedServer]
    clients: Sequence[ClientConnection]
    started_at: float
    costs: Mapping[ManagedServer | None, ProcessCost]
    """Memory and CPU time, as far as they are included."""

    def build(self) -> Stats:
        return Stats(
            since=rfc3339(self.started_at),
            at=rfc3339(time.time()),
            servers=tuple(map(self._stats_of, self.servers)),
            clients=tuple(_client_use(client, None) for client in self.clients),
            daemon=_sum_costs([self.costs.get(None)]),
        )

    def _stats_of(self, server: ManagedServer) -> ServerStats:
        own = [server, *(each for each in self.instances if each.original is server)]
        cost = _sum_costs([self.costs.get(each) for each in own])
        return _server_stats(server, own, self.clients, cost)


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
