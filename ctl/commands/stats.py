"""`mcpctl stats`, `top`, `metrics`, `clients` and `cache`: what servers do, and for whom."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ctl.cli.completion import server_names
from ctl.cli.errors import UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint, table
from ctl.cli.text import ago, count, format_time, seconds_since
from ctl.show.status import painted_state

if TYPE_CHECKING:
    from ctl.api_types import (
        CallCounts,
        ClientsResult,
        ListedTools,
        ProcessCost,
        ServerStats,
        ServerUsage,
        Stats,
        StatsParams,
        WaitingCall,
    )

_WATCH_SECONDS = 2.0
"""Time between two updates of `top --watch`."""
SORTS = ("memory", "cpu", "calls", "name")
_SAMPLE_SECONDS = 0.5
"""Time between the two samples from which rates are computed."""
_DROP_ORDER = (4, 5, 8, 7, 6, 1)
"""Columns of `top` that a narrow terminal omits, in this order: processes first, the state last."""
WITH_PROCESSES: StatsParams = {"processes": True}


@click.command(epilog="Examples:\n\n\b\n  mcpctl stats\n  mcpctl stats github --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def stats(cli: CliContext, server: str | None) -> int:
    """Show calls, errors and latencies per server.

    Counts since the daemon started, over all connections. With SERVER, also per tool, with the memory and
    CPU usage of its processes.
    """
    return show_stats(cli, server)


def show_stats(cli: CliContext, server: str | None) -> int:
    """Print the calls of all servers, or of one with its tools."""
    reply = cli.call("mcpd/stats", {"server": server, "processes": server is not None})
    if not cli.show_json(reply):
        show = server_stats if server is not None else stats_table
        cli.out.lines(show(reply.value, cli.out.columns))
    return 0


@click.command(epilog="Examples:\n\n\b\n  mcpctl top --watch\n  mcpctl top --calls\n  mcpctl top github")
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--calls", is_flag=True, help="Show calls, errors and latencies instead.")
@click.option("-w", "--watch", is_flag=True, help="Keep updating the display until Ctrl-C.")
@click.option("--sort", type=click.Choice(SORTS), default="memory", show_default=True, help="Sort order.")
@click.pass_obj
def top(cli: CliContext, server: str | None, calls: bool, watch: bool, sort: str) -> int:
    """Show the memory, CPU, calls and latencies of each server.

    Memory and CPU time include the whole process tree of a server. With SERVER, shows calls, errors and
    latencies per tool. Calls count since the daemon started, over all connections.
    """
    if server or calls:
        if watch:
            raise UsageError("--watch shows the usage of all servers", hint="mcpctl top --watch")
        return show_stats(cli, server)
    if watch:
        from ctl.show.watch import watch_top

        return watch_top(
            cli,
            lambda: cli.call("mcpd/stats", WITH_PROCESSES).value,
            lambda before, answer: top_table(before, answer, sort, cli.out.columns),
            _WATCH_SECONDS,
        )
    before = cli.call("mcpd/stats", WITH_PROCESSES)
    if cli.out.json:
        cli.out.json_document(cli.call("mcpd/stats", WITH_PROCESSES).text)
        return 0
    time.sleep(_SAMPLE_SECONDS)
    answer = cli.call("mcpd/stats", WITH_PROCESSES).value
    cli.out.lines(top_table(before.value, answer, sort, cli.out.columns))
    return 0


@click.command(epilog="Examples:\n\n\b\n  mcpctl metrics\n  mcpctl metrics --json | jq -r .text")
@click.pass_obj
def metrics(cli: CliContext) -> int:
    """Print all metrics in Prometheus text format.

    For example, for a textfile collector: `mcpctl debug --metrics > /var/lib/node_exporter/mcpd.prom`.
    """
    return show_metrics(cli)


def show_metrics(cli: CliContext) -> int:
    reply = cli.call("mcpd/metrics")
    if not cli.show_json(reply):
        cli.out.block(reply.value["text"].rstrip("\n"))
    return 0


def stats_table(answer: Stats, fit: int | None) -> list[Line]:
    """One row per server."""
    header = ("SERVER", "STATUS", "CALLS", "ERRORS", "LOST", "P50", "P95", "P99", "CLIENTS")
    rows: list[Line] = [
        [
            server["server"],
            painted_state(server),
            *_counts(server["counts"]),
            _client_names(server.get("clients", ())),
        ]
        for server in answer["servers"]
    ]
    return [
        *table(header, rows, right=(2, 3, 4, 5, 6, 7), fit=fit),
        [],
        [paint(f"since {format_time(answer['since'])}", "dim")],
    ]


def server_stats(answer: Stats, fit: int | None) -> list[Line]:
    """One server: its tools and its resource usage."""
    (server,) = answer["servers"]
    lines = stats_table(answer, fit)
    if tools := server.get("tools"):
        header = ("TOOL", "CALLS", "ERRORS", "LOST", "P50", "P95", "P99")
        rows: list[Line] = [[tool["tool"], *_counts(tool["counts"])] for tool in tools]
        lines += [[], *table(header, rows, right=(1, 2, 3, 4, 5, 6))]
    if asked := (hits := server.get("cache_hits", 0)) + server.get("cache_misses", 0):
        lines += [[], *labelled_lines([("cache", f"{hits} of {count(asked, 'cacheable request')} answered")])]
    if cost := server.get("cost"):
        processes = "1 process" if cost["processes"] == 1 else f"{cost['processes']} processes"
        usage = [
            ("memory", f"{format_bytes(cost['memory'])} in {processes}"),
            ("cpu time", f"{cost['cpu_seconds']:.1f} s since start"),
        ]
        lines += [[], *labelled_lines(usage)]
    return lines


def top_table(before: Stats | None, answer: Stats, sort: str, fit: int | None) -> list[Line]:
    """Current usage. Rates are computed from two answers; they are `-` without an earlier one."""
    header = ("SERVER", "STATUS", "MEMORY", "CPU", "PROCS", "IN FLIGHT", "CALLS", "CALLS/S", "P95", "CLIENTS")
    earlier = {server["server"]: server for server in before["servers"]} if before else {}
    elapsed = _elapsed(before, answer)
    found: list[tuple[tuple[float, str], Line]] = []
    for server in answer["servers"]:
        name, cost, calls = server["server"], server.get("cost"), server["counts"]["calls"]
        old: ServerStats | None = earlier.get(name)
        cpu = _cpu(old.get("cost") if old else None, cost, elapsed)
        rate = None if elapsed is None else (calls - (old["counts"]["calls"] if old else 0)) / elapsed
        memory = cost["memory"] if cost else 0
        keys = {"memory": -memory, "cpu": -(cpu or 0.0), "calls": -calls, "name": 0.0}
        row = [
            name,
            painted_state(server),
            format_bytes(memory) if cost else "-",
            _format_percent(cpu),
            str(cost["processes"]) if cost else "-",
            str(server["in_flight"]),
            str(calls),
            "-" if rate is None else f"{rate:.1f}",
            _format_ms(server["counts"].get("p95_ms")),
            _client_names(server.get("clients", ())),
        ]
        found.append(((keys[sort], name), row))
    rows = [row for _, row in sorted(found, key=lambda entry: entry[0])]
    daemon = answer.get("daemon")
    cpu = _cpu(before.get("daemon") if before else None, daemon, elapsed)
    memory = daemon["memory"] if daemon else 0
    clients = count(answer["clients"], "client")
    footer = f"mcpd itself: {format_bytes(memory)}, {_format_percent(cpu)} CPU; {clients}"
    right = tuple(range(2, len(header) - 1))
    return [*table(header, rows, right=right, fit=fit, drop=_DROP_ORDER), [], [paint(footer, "dim")]]


def format_bytes(size: float) -> str:
    """`512 B`, `38 MB`, `1.2 GB`: decimal units, as in most tools that show memory."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return f"{size / one:.1f} {unit}" if size < 10 * one else f"{size / one:.0f} {unit}"
    return f"{size:.0f} B"


def _cpu(old: ProcessCost | None, new: ProcessCost | None, elapsed: float | None) -> float | None:
    """Return the share of one processor; None if it is unknown or the server was restarted in between."""
    if elapsed is None or not old or not new:
        return None
    spent = new["cpu_seconds"] - old["cpu_seconds"]
    return spent / elapsed if spent >= 0 else None


def _elapsed(before: Stats | None, answer: Stats) -> float | None:
    if before is None:
        return None
    first, last = (seconds_since(each["at"], 0.0) for each in (before, answer))
    return first - last if first is not None and last is not None and first > last else None


def _counts(counts: CallCounts) -> list[str]:
    errors, lost = counts["errors"], counts["lost"]
    return [
        str(counts["calls"]),
        paint(str(errors), "yellow") if errors else "0",
        paint(str(lost), "red") if lost else "0",
        _format_ms(counts.get("p50_ms")),
        _format_ms(counts.get("p95_ms")),
        _format_ms(counts.get("p99_ms")),
    ]


def _client_names(clients: Sequence[str]) -> str:
    """Return each program once, with the number of its connections."""
    counted = Counter(clients)
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in counted.items()) or "-"


def _format_ms(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.0f} s"


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


HEADER = ("CLIENT", "PID", "VIA", "CONNECTED", "SCOPE", "REVISION", "LISTED", "CALLS", "SERVERS")


@click.command(epilog="Example:\n\n\b\n  mcpctl clients --json")
@click.pass_obj
def clients(cli: CliContext) -> int:
    """List connected clients and the servers they use.

    SCOPE is the server that a client is connected to, `*` for all servers, or `*PROFILE`. LISTED is the
    surface with the tools that it was last listed, and about how many tokens they take.
    """
    reply = cli.call("mcpd/clients")
    if not cli.show_json(reply):
        cli.out.lines(clients_table(reply.value, cli.out.columns))
    return 0


def clients_table(answer: ClientsResult, fit: int | None) -> list[Line]:
    """One row per client, without this mcpctl."""
    rows: list[Line] = [
        [
            client["name"] or "-",
            str(client["pid"] or "-"),
            client["via"],
            ago(client["since"]),
            client.get("sees") or "-",
            client.get("protocol_version") or "-",
            _listed(client.get("listed")),
            str(client.get("calls", 0)),
            "; ".join([_server_uses(client.get("servers", {})), *map(_wait, client.get("waiting", ()))]),
        ]
        for client in answer["clients"]
        if client["pid"] != os.getpid()
    ]
    return table(HEADER, rows, right=(1, 7), fit=fit) if rows else [[paint("no clients connected", "dim")]]


def _listed(listed: ListedTools | None) -> str:
    """`search: 4 tools, 620 tokens`."""
    return (
        f"{listed['surface']}: {count(listed['tools'], 'tool')}, {listed['tokens']} tokens" if listed else "-"
    )


def _wait(call: WaitingCall) -> str:
    """`git: tool 'commit' waits for tool 'push' of cursor (3s ago)`."""
    what_for = call.get("waits_for") or "its turn"
    return f"{call.get('server')}: {call['call']} waits for {what_for} ({ago(call['since'])})"


def _server_uses(servers: Mapping[str, ServerUsage]) -> str:
    """`git (12), time (3, 2025-06-18 → 2026-07-28)`."""
    uses = []
    for name, use in servers.items():
        revisions = use.get("revisions", "")
        translated = f", {revisions}" if "→" in revisions and "?" not in revisions else ""
        uses.append(f"{use.get('instance') or name} ({use['calls']}{translated})")
    return ", ".join(uses) or "-"


@click.group(epilog="Examples:\n\n\b\n  mcpctl cache clear\n  mcpctl cache clear github")
def cache() -> None:
    """Manage the results that mcpd uses again.

    Servers and definitions say what may be cached; `mcpctl top SERVER` shows how often it was used.
    """


@cache.command()
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def clear(cli: CliContext, server: str | None) -> int:
    """Drop the cached results of one server or all servers."""
    reply = cli.call("mcpd/cache/clear", {"server": server})
    if not cli.show_json(reply):
        cli.out.line(f"dropped {count(reply.value['results'], 'result')}")
    return 0
