"""Results with a row for each server. With many servers, they are created in several turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio
from msgspec import Raw

from mcpd.api import metrics
from mcpd.daemon_operations import Operations
from mcpd.model import api, codec
from mcpd.model.usage_stats import Stats, StatsParams
from mcpd.support.turns import collect

FEW = 100
"""Servers for which a result is created in one turn. The status of a server takes 0.03 ms, the statistics of
one 0.1 ms, and its metrics 0.2 ms."""
_NO_ROWS = b'"servers":[]'


def status(operations: Operations, _: api.NoParams) -> api.DaemonStatus | Awaitable[Raw]:
    """Return the result of `mcpd/status`."""
    if _are_few(operations):
        return operations.status()
    return _encode_in_turns(operations, operations.status_rows(), lambda: operations.status_with(()))


async def stats(operations: Operations, params: StatsParams) -> Callable[[], Stats] | Raw:
    """Return the result of `mcpd/stats`, or what creates it."""
    report = await operations.prepare_stats(params.server, processes=params.processes)
    if len(report.servers) <= FEW:
        return report.build
    return await _encode_in_turns(operations, report.rows(), lambda: report.with_rows(()))


async def collect_metrics(operations: Operations, _: api.NoParams | None = None) -> api.Metrics:
    """Return the result of `mcpd/metrics`."""
    report = await operations.prepare_stats(None, processes=True)
    statuses = operations.login_statuses
    logins = () if statuses is None else (await statuses()).logins
    if _are_few(operations):
        text = metrics.render(operations.status(), report.build(), logins)
    else:
        async with operations.large_result:
            status = operations.status_with(tuple(await collect(operations.status_rows())))
            stats = report.with_rows(tuple(await collect(report.rows())))
            text = await trio.to_thread.run_sync(metrics.render, status, stats, logins)
    return api.Metrics(content_type=metrics.CONTENT_TYPE, text=text)


def _are_few(operations: Operations) -> bool:
    return len(operations.supervisor.desired) + len(operations.supervisor.instances()) <= FEW


async def _encode_in_turns(
    operations: Operations, rows: Iterable[object], without_rows: Callable[[], object]
) -> Raw:
    """Encode each row when it is created, and then the rest of the result, whose first empty list of servers
    the rows fill. Only one such result exists at a time, however many requests wait for one."""
    async with operations.large_result:
        encoded = await collect(codec.encode(row) for row in rows)
        before, _, after = codec.encode(without_rows()).partition(_NO_ROWS)
        return Raw(b"".join((before, _NO_ROWS[:-1], b",".join(encoded), b"]", after)))
