"""Render the status and statistics in the Prometheus text format (version 0.0.4).

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from mcpd.model.api import DaemonStatus
from mcpd.model.status import ServerState
from mcpd.model.usage import CallCounts, ServerStats, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]


def render(status: DaemonStatus, stats: Stats) -> str:
    """Return the metrics page. Server and tool names are escaped."""
    servers = stats.servers
    costs = [(server, server.cost) for server in servers if server.cost is not None]
    tools = {each.name: each.tools for each in status.servers}
    lines: list[str] = []

    def family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.append(f"# HELP mcpd_{name} {meaning}")
        lines.append(f"# TYPE mcpd_{name} {kind}")
        lines.extend(f"mcpd_{name}{_labels(labels)} {_number(value)}" for labels, value in samples)

    family(
        "build_info",
        "gauge",
        "Version of the running mcpd daemon.",
        [({"version": status.daemon.version}, 1)],
    )
    started = datetime.fromisoformat(stats.since).timestamp()
    family(
        "start_time_seconds",
        "gauge",
        "Start time of the mcpd daemon, in seconds since the Unix epoch.",
        [({}, started)],
    )
    family("clients", "gauge", "Clients connected to the mcpd daemon.", [({}, len(stats.clients))])
    if stats.daemon is not None:
        family(
            "memory_bytes",
            "gauge",
            "Resident memory of the mcpd daemon, without servers.",
            [({}, stats.daemon.memory)],
        )
        cpu = stats.daemon.cpu_seconds
        family(
            "cpu_seconds_total",
            "counter",
            "CPU seconds used by the mcpd daemon, without servers.",
            [({}, cpu)],
        )
    family(
        "server_up",
        "gauge",
        "1 if the MCP server is connected, else 0.",
        [(_server(s), s.status is ServerState.CONNECTED) for s in servers],
    )
    family(
        "server_state",
        "gauge",
        "1 for the current state of the MCP server, 0 for all others.",
        [({**_server(s), "state": state.value}, s.status is state) for s in servers for state in ServerState],
    )
    family(
        "server_restarts_total",
        "counter",
        "Times the MCP server was connected again after its first connection.",
        [(_server(s), s.restarts) for s in servers],
    )
    family(
        "server_tools",
        "gauge",
        "Tools provided by the MCP server.",
        [(_server(s), tools.get(s.server, 0)) for s in servers],
    )
    family(
        "server_in_flight",
        "gauge",
        "Requests sent to the MCP server that have no response yet.",
        [(_server(s), s.in_flight) for s in servers],
    )
    family(
        "server_clients",
        "gauge",
        "Connected clients that use the MCP server.",
        [(_server(s), len(s.clients)) for s in servers],
    )
    family(
        "server_calls_total",
        "counter",
        "Finished tool calls of the MCP server, by outcome.",
        [({**_server(s), **label}, value) for s in servers for label, value in _outcomes(s.counts)],
    )
    family(
        "tool_calls_total",
        "counter",
        "Finished calls of each tool, by outcome.",
        [
            ({**_server(s), "tool": tool.tool, **label}, value)
            for s in servers
            for tool in s.tools
            for label, value in _outcomes(tool.counts)
        ],
    )
    lines.extend(_histogram(servers))
    if costs:
        family(
            "server_processes",
            "gauge",
            "Processes in the server's process tree.",
            [(_server(s), c.processes) for s, c in costs],
        )
        family(
            "server_memory_bytes",
            "gauge",
            "Resident memory of the server's process tree; shared pages count once per process.",
            [(_server(s), c.memory) for s, c in costs],
        )
    spent = [(_server(s), s.cpu_seconds) for s in servers if s.cost is not None or s.cpu_seconds]
    if spent:
        family(
            "server_cpu_seconds_total",
            "counter",
            "CPU seconds used by the server's processes, including exited ones.",
            spent,
        )
    return "\n".join(lines) + "\n"


def _server(server: ServerStats) -> dict[str, str]:
    return {"server": server.server}


def _outcomes(counts: CallCounts) -> Iterator[tuple[dict[str, str], int]]:
    ok = counts.calls - counts.errors - counts.lost - counts.cancelled
    for outcome, number in (
        ("ok", ok),
        ("error", counts.errors),
        ("lost", counts.lost),
        ("cancelled", counts.cancelled),
    ):
        yield {"outcome": outcome}, number


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
