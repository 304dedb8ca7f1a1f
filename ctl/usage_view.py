"""What servers are used for and what they cost, for a person: `mcpctl stats` and `top`."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import format_time, labelled_lines, mapping, number, objects, painted_state
from ctl.table import table
from ctl.terminal_text import ago, count, seconds_since

_DROP_ORDER = (4, 5, 8, 7, 6, 1)
"""Columns of `top` that a narrow terminal goes without, in this order: processes first, the state last."""
SORTS = ("memory", "cpu", "calls", "name")


def stats_table(answer: Json, fit: int | None) -> list[Line]:
    """One row a server."""
    header = ("SERVER", "STATUS", "CALLS", "ERRORS", "LOST", "P50", "P95", "P99", "CLIENTS")
    rows: list[Line] = [
        [
            str(server.get("server", "?")),
            painted_state(server),
            *_counts(mapping(server.get("counts"))),
            _client_names(objects(server.get("clients"))),
        ]
        for server in objects(answer.get("servers"))
    ]
    return [
        *table(header, rows, right=(2, 3, 4, 5, 6, 7), fit=fit),
        [],
        [paint(f"since {format_time(answer.get('since'))}", "dim")],
    ]


def server_stats(answer: Json, fit: int | None) -> list[Line]:
    """One server: its tools, who uses it, what it costs."""
    (server,) = objects(answer.get("servers"))
    lines = stats_table(answer, fit)
    tools: list[Line] = [
        [str(tool.get("tool", "?")), *_counts(mapping(tool.get("counts")))]
        for tool in objects(server.get("tools"))
    ]
    if tools:
        header = ("TOOL", "CALLS", "ERRORS", "LOST", "P50", "P95", "P99")
        lines += [[], *table(header, tools, right=(1, 2, 3, 4, 5, 6))]
    clients: list[Line] = [
        [
            str(client.get("name") or "-"),
            str(client.get("pid") or "-"),
            ago(client.get("since")),
            "attached"
            if client.get("attached") == server.get("server")
            else count(int(number(client.get("calls"))), "call"),
        ]
        for client in objects(server.get("clients"))
    ]
    if clients:
        lines += [[], *table(("CLIENT", "PID", "CONNECTED", "USE"), clients, right=(1,))]
    if cost := mapping(server.get("cost")):
        spent = f"{number(cost.get('cpu_seconds')):.1f} s since it was started"
        running = int(number(cost.get("processes")))
        processes = "1 process" if running == 1 else f"{running} processes"
        rows = [
            (
                "memory",
                f"{format_bytes(cost.get('memory'))} in {processes}",
            ),
            ("processor", spent),
        ]
        lines += [[], *labelled_lines(rows)]
    return lines


def top_table(before: Json | None, answer: Json, sort: str, fit: int | None) -> list[Line]:
    """What runs now. Rates are those between two answers; `-` without an earlier one."""
    header = ("SERVER", "STATUS", "MEMORY", "CPU", "PROCS", "IN FLIGHT", "CALLS", "CALLS/S", "P95", "CLIENTS")
    earlier = {str(server.get("server")): server for server in objects((before or {}).get("servers"))}
    passed = _elapsed(before, answer)
    found: list[tuple[tuple[float, str], Line]] = []
    for server in objects(answer.get("servers")):
        name, cost, counts = (
            str(server.get("server")),
            mapping(server.get("cost")),
            mapping(server.get("counts")),
        )
        old = earlier.get(name, {})
        cpu = _cpu(mapping(old.get("cost")), cost, passed)
        calls = number(counts.get("calls"))
        rate = None if passed is None else (calls - number(mapping(old.get("counts")).get("calls"))) / passed
        keys = {"memory": -number(cost.get("memory")), "cpu": -(cpu or 0.0), "calls": -calls, "name": 0.0}
        row = [
            name,
            painted_state(server),
            format_bytes(cost.get("memory")) if cost else "-",
            _format_percent(cpu),
            str(cost.get("processes", "-")),
            str(server.get("in_flight", 0)),
            f"{calls:.0f}",
            "-" if rate is None else f"{rate:.1f}",
            _format_ms(counts.get("p95_ms")),
            _client_names(objects(server.get("clients"))),
        ]
        found.append(((keys[sort], name), row))
    rows = [row for _, row in sorted(found, key=lambda entry: entry[0])]
    daemon = mapping(answer.get("daemon"))
    own = _format_percent(_cpu(mapping((before or {}).get("daemon")), daemon, passed))
    here = count(len(objects(answer.get("clients"))), "client")
    last = f"mcpd itself: {format_bytes(daemon.get('memory'))}, {own} CPU; {here}"
    right = tuple(range(2, len(header) - 1))
    return [*table(header, rows, right=right, fit=fit, drop=_DROP_ORDER), [], [paint(last, "dim")]]


def format_bytes(value: object) -> str:
    """`512 B`, `38 MB`, `1.2 GB`: decimal units, as most tools that show memory."""
    bytes_ = number(value)
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_ >= one:
            return f"{bytes_ / one:.1f} {unit}" if bytes_ < 10 * one else f"{bytes_ / one:.0f} {unit}"
    return f"{bytes_:.0f} B"


def _cpu(old: Json, new: Json, passed: float | None) -> float | None:
    """Share of one processor since then; None when it is not known, or was started anew meanwhile."""
    if passed is None or not old or not new:
        return None
    spent = number(new.get("cpu_seconds")) - number(old.get("cpu_seconds"))
    return spent / passed if spent >= 0 else None


def _elapsed(before: Json | None, answer: Json) -> float | None:
    if before is None:
        return None
    first, last = (seconds_since(str(each.get("at", "")), 0.0) for each in (before, answer))
    return first - last if first is not None and last is not None and first > last else None


def _counts(counts: Json) -> list[str]:
    errors, lost = (str(counts.get(key, 0)) for key in ("errors", "lost"))
    return [
        str(counts.get("calls", 0)),
        errors if errors == "0" else paint(errors, "yellow"),
        lost if lost == "0" else paint(lost, "red"),
        *(_format_ms(counts.get(f"p{share}_ms")) for share in (50, 95, 99)),
    ]


def _client_names(clients: Sequence[Json]) -> str:
    """Who, each program once, with how many of it."""
    counted: dict[str, int] = {}
    for client in clients:
        name = str(client.get("name") or client.get("pid"))
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in counted.items()) or "-"


def _format_ms(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.0f} s"


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
