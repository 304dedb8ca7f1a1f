"""What servers are used for and what they cost, for a person: `mcpctl stats` and `top`."""

from __future__ import annotations

from collections.abc import Sequence

from ctl.client import Json
from ctl.render import Line, paint
from ctl.table import table
from ctl.text import ago, count, seconds_since
from ctl.views import WIDE, facts, mapping, objects, state

SORTS = ("memory", "cpu", "calls", "name")


def stats_table(answer: Json, fit: int | None) -> list[Line]:
    """One row a server."""
    header = ("SERVER", "STATUS", "CALLS", "ERRORS", "LOST", "P50", "P95", "P99", "CLIENTS")
    rows: list[Line] = [
        [
            str(server.get("server", "?")),
            state(server),
            *_counts(mapping(server.get("counts"))),
            _names(objects(server.get("clients"))),
        ]
        for server in objects(answer.get("servers"))
    ]
    return [
        *table(header, rows, right=(2, 3, 4, 5, 6, 7), fit=fit),
        [],
        [paint(f"since {answer.get('since')} ({ago(answer.get('since'))})", "dim")],
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
            else count(int(_number(client.get("calls"))), "call"),
        ]
        for client in objects(server.get("clients"))
    ]
    if clients:
        lines += [[], *table(("CLIENT", "PID", "CONNECTED", "USE"), clients, right=(1,))]
    if cost := mapping(server.get("cost")):
        spent = f"{_number(cost.get('cpu_seconds')):.1f} s since it was started"
        number = int(_number(cost.get("processes")))
        rows = [
            ("memory", f"{size(cost.get('memory'))} in {number} {'process' if number == 1 else 'processes'}"),
            ("processor", spent),
        ]
        lines += [[], *facts(rows)]
    return lines


def top_table(before: Json | None, answer: Json, sort: str, fit: int | None) -> list[Line]:
    """What runs now. Rates are those between two answers; `-` without an earlier one."""
    header: Sequence[str]
    header = ("SERVER", "STATUS", "MEMORY", "CPU", "PROCS", "IN FLIGHT", "CALLS", "CALLS/S", "P95", "CLIENTS")
    earlier = {str(server.get("server")): server for server in objects((before or {}).get("servers"))}
    passed = _between(before, answer)
    found: list[tuple[tuple[float, str], Line]] = []
    for server in objects(answer.get("servers")):
        name, cost, counts = (
            str(server.get("server")),
            mapping(server.get("cost")),
            mapping(server.get("counts")),
        )
        old = earlier.get(name, {})
        cpu = _cpu(mapping(old.get("cost")), cost, passed)
        calls = _number(counts.get("calls"))
        rate = None if passed is None else (calls - _number(mapping(old.get("counts")).get("calls"))) / passed
        keys = {"memory": -_number(cost.get("memory")), "cpu": -(cpu or 0.0), "calls": -calls, "name": 0.0}
        row = [
            name,
            state(server),
            size(cost.get("memory")) if cost else "-",
            _percent(cpu),
            str(cost.get("processes", "-")),
            str(server.get("in_flight", 0)),
            f"{calls:.0f}",
            "-" if rate is None else f"{rate:.1f}",
            _ms(counts.get("p95_ms")),
            _names(objects(server.get("clients"))),
        ]
        found.append(((keys[sort], name), row))
    rows = [row for _, row in sorted(found, key=lambda entry: entry[0])]
    daemon = mapping(answer.get("daemon"))
    own = _percent(_cpu(mapping((before or {}).get("daemon")), daemon, passed))
    here = count(len(objects(answer.get("clients"))), "client")
    last = f"mcpd itself: {size(daemon.get('memory'))}, {own} CPU; {here}"
    if fit is not None and fit < WIDE:
        header, rows = (_without_wide(header), [_without_wide(row) for row in rows])
    right = tuple(range(2, len(header) - 1))
    return [*table(header, rows, right=right, fit=fit), [], [paint(last, "dim")]]


def _without_wide(row: Sequence[str]) -> list[str]:
    """Without PROCS and IN FLIGHT, which a narrow terminal has no room for."""
    return [*row[:4], *row[6:]]


def size(value: object) -> str:
    """`512 B`, `38 MB`, `1.2 GB`: decimal units, as most tools that show memory."""
    number = _number(value)
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= one:
            return f"{number / one:.1f} {unit}" if number < 10 * one else f"{number / one:.0f} {unit}"
    return f"{number:.0f} B"


def _cpu(old: Json, new: Json, passed: float | None) -> float | None:
    """Share of one processor since then; None when it is not known, or was started anew meanwhile."""
    if passed is None or not old or not new:
        return None
    spent = _number(new.get("cpu_seconds")) - _number(old.get("cpu_seconds"))
    return spent / passed if spent >= 0 else None


def _between(before: Json | None, answer: Json) -> float | None:
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
        *(_ms(counts.get(f"p{share}_ms")) for share in (50, 95, 99)),
    ]


def _names(clients: Sequence[Json]) -> str:
    """Who, each program once, with how many of it."""
    counted: dict[str, int] = {}
    for client in clients:
        name = str(client.get("name") or client.get("pid"))
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(name if number == 1 else f"{name} ({number})" for name, number in counted.items()) or "-"


def _ms(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.0f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
