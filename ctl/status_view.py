"""What the daemon's answers look like to a person: the status table, and one server with its evidence.

Pure functions from parsed JSON to lines. The fast path and the full command line share them, so both
print the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctl.daemon_client import Json
from ctl.next_steps import next_command
from ctl.output import Line, paint
from ctl.table import table
from ctl.terminal_text import ago, count, until

COLORS = {
    "connected": "green",
    "pending": "yellow",
    "failed": "red",
    "disabled": "dim",
    "needs-auth": "yellow",
    "idle": "cyan",
}

READY = ("connected", "idle")
"""States in which a call can be made at once, or as soon as the server has been started for it."""

WIDE = 110
"""From so many columns on the table has the process ids as well."""

FIRST_RUN = (
    "No servers yet. Three ways to begin:",
    "  mcpctl add time -- uvx mcp-server-time     add one; it is connected at once",
    "  mcpctl import                              take over what your editors have",
)


def objects(value: object) -> list[Json]:
    """The objects in a list that should hold nothing else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def format_time(stamp: object) -> str:
    """`2026-11-21 06:30:00 UTC (3m ago)`."""
    return f"{str(stamp)[:19].replace('T', ' ')} UTC ({ago(stamp)})"


def painted_state(status: Json) -> str:
    """The state's word, painted."""
    word = str(status.get("status", "?"))
    return paint(word, COLORS.get(word, "bold"))


def status_table(result: Json, columns: int | None) -> list[Line]:
    """`mcpctl status`: one row a server, then whatever is wrong with the configuration."""
    servers = objects(result.get("servers"))
    config = mapping(result.get("config"))
    if not servers:
        return [
            *([line] for line in FIRST_RUN),
            [f"  mcpctl edit                                write {config.get('path', 'the file')} yourself"],
            *_config_problems(config),
            *(_config_warnings(config) if config.get("source") != "none" else []),
        ]
    header = ("SERVER", "STATUS", "PID", "TOOLS", "RESTARTS", "UPDATED", "LAST ERROR")
    rows: list[Line] = [
        [
            str(server.get("name", "?")),
            painted_state(server),
            str(server.get("pid") or "-"),
            str(server.get("tools", 0)),
            str(server.get("restarts", 0)),
            ago(server.get("updated")),
            _last_error(server),
        ]
        for server in servers
    ]
    return [
        *table(header, rows, right=(2, 3, 4), fit=columns, drop=(2, 4, 5, 3)),
        *_config_problems(config),
        *_config_warnings(config),
        *_next_steps(servers),
        *_http_line(mapping(mapping(result.get("daemon")).get("http"))),
    ]


def _http_line(door: Json) -> list[Line]:
    """Where HTTP clients come in, when they may."""
    if not door:
        return []
    file = door.get("token_file")
    how = f"token in {file}" if file else "WITHOUT a token (--http-auth none)"
    return [[f"http: {door.get('url')}, {how}"]]


def _last_error(server: Json) -> str:
    """The last failure in one phrase: painted where it still matters, dim where it is history. Of a server
    that is off for a time, until when.
    """
    if server.get("off_until"):
        return paint(str(server.get("reason")), "dim")
    failure = mapping(server.get("last_error"))
    waiting = server.get("status") in ("failed", "pending", "needs-auth")
    if not failure:
        return str(server.get("reason") or "-") if waiting else "-"
    # The first clause says what; where it was looked for, and the like, is in `status SERVER`.
    message = str(failure.get("message", "")).partition("\n")[0].partition("; ")[0]
    if waiting:
        if server.get("retry_at"):
            return f"{message} (next try {until(server['retry_at'])})"
        doing = server.get("reason") if server.get("status") == "pending" else ""
        return message if doing in ("", "connecting", "queued") else f"{doing} (before: {message})"
    return paint(f"{message} ({ago(failure.get('at'))})", "dim")


def _config_problems(config: Json) -> list[Line]:
    problems = objects(config.get("problems"))
    if not problems:
        return []
    return [
        [],
        [
            paint("The configuration was refused", "red"),
            f"; the set loaded {ago(config.get('loaded_at'))} stays in force: {config.get('path', '')}",
        ],
        *problem_lines(problems),
        [paint("next: ", "dim"), "mcpctl edit"],
    ]


def _config_warnings(config: Json) -> list[Line]:
    """What the configuration says in vain: the first of it, and where the rest is. Two lines at most."""
    first, *rest = strings(config.get("warnings")) or [""]
    if not first:
        return []
    more = f" ({len(rest)} more: mcpctl config validate)" if rest else ""
    return [[], [paint("warning: ", "yellow"), f"{first}{more}"]]


def problem_lines(problems: Sequence[Json]) -> list[Line]:
    """One line for each complaint about a document: where, what, how to mend it."""
    lines: list[Line] = []
    for problem in problems:
        fix = f" ({problem['fix']})" if problem.get("fix") else ""
        lines.append([f"  {problem.get('path', '$')}: {problem.get('message', '')}{fix}"])
    return lines


def _next_steps(servers: Sequence[Json]) -> list[Line]:
    """One line on where to look, when something needs a person."""
    for server in servers:
        if server.get("status") == "failed":
            return [[], [paint("next: ", "dim"), f"mcpctl why {server.get('name')}"]]
    return []


# ---- one server ----------------------------------------------------------------------------------


def server_block(detail: Json, log_lines: int = 10) -> list[Line]:
    """`mcpctl status SERVER`: how it is, since when, why, and what to type next."""
    server = mapping(detail.get("server"))
    name = str(server.get("name", "?"))
    lines: list[Line] = [[paint(name, "bold"), *_server_title(server)], *_labelled(_rows(detail, server))]
    lines += _failure_block(server)
    for warning in strings(server.get("warnings")):
        lines.append([paint("   warning: ", "yellow"), warning])
    if log_lines and (log := strings(detail.get("log"))[-log_lines:]):
        lines += [[], *([paint(line, "dim")] for line in log)]
    return [*lines, [], [paint("next: ", "dim"), next_command(server)]]


def _server_title(server: Json) -> Line:
    info = mapping(server.get("server_info"))
    title = str(info.get("title") or info.get("name") or "")
    said = f"{title} {info.get('version', '')}".strip()
    return [f" - {said}"] if said else []


def _rows(detail: Json, server: Json) -> list[tuple[str, Line]]:
    since = server.get("since")
    rows: list[tuple[str, Line]] = [("state", [painted_state(server), f" since {format_time(since)}"])]
    if server.get("reason"):
        rows.append(("reason", [str(server["reason"])]))
    if server.get("retry_at"):
        rows.append(("next try", [f"{until(server['retry_at'])} ({server['retry_at']})"]))
    if url := detail.get("url"):
        rows.append(("url", [str(url)]))
    elif command := strings(detail.get("command")) or _configured_command(mapping(detail.get("definition"))):
        rows.append(("command", [shell_join(command)]))
    if server.get("pid"):
        rows.append(("pid", [str(server["pid"])]))
    if server.get("protocol_version"):
        rows.append(("protocol", [_protocol(server)]))
    offers = ", ".join(
        count(int(number(server.get(f"{noun}s"))), noun) for noun in ("tool", "resource", "prompt")
    )
    rows.append(("offers", [f"{offers}; lists fetched {ago(server.get('updated'))}"]))
    in_vain = (
        "" if server.get("status") in READY else f"; failed attempts in a row: {server.get('attempts', 0)}"
    )
    rows.append(("restarts", [f"{server.get('restarts', 0)}{in_vain}"]))
    if server.get("last_ok"):
        rows.append(("last answer", [ago(server["last_ok"])]))
    if server.get("in_flight"):
        rows.append(("in flight", [count(int(number(server["in_flight"])), "request")]))
    return rows


def _protocol(server: Json) -> str:
    """Transport, revision, era, and whether the server keeps a session: never which."""
    parts = [str(server.get("transport")), str(server["protocol_version"])]
    if server.get("era"):
        parts.append(str(server["era"]))
    if isinstance(session := server.get("session"), bool):
        parts.append("session" if session else "no session")
    return " · ".join(parts)


def _failure_block(server: Json) -> list[Line]:
    failure = mapping(server.get("last_error"))
    if not failure:
        return []
    still = server.get("status") not in READY
    kind = f"[{', '.join([str(failure.get('kind', '?')), *exit_details(failure)])}] "
    message = str(failure.get("message", ""))
    text: Line = [kind, paint(message, "red") if still else message, f" ({ago(failure.get('at'))})"]
    noise = [str(failure["noise"])] if failure.get("noise") else []
    return [
        *_labelled([("last error", text)]),
        *([f"              | {line}"] for line in (*noise, *strings(failure.get("stderr")))),
    ]


def exit_details(failure: Json) -> list[str]:
    """What the process or the connection left, in words: `exit code 3`, `SIGKILL`, `HTTP status 503`."""
    left = [str(failure["signal"])] if failure.get("signal") else []
    left += [f"exit code {failure['exit_code']}"] if failure.get("exit_code") is not None else []
    left += [f"HTTP status {failure['http_status']}"] if failure.get("http_status") is not None else []
    return left + (["crash loop"] if failure.get("crash_loop") else [])


def short_message(message: object) -> str:
    """A failure's message without the PATH that was searched, which `why` has in a row of its own."""
    return str(message).partition("; looked in PATH=")[0]


def _labelled(rows: Sequence[tuple[str, Line]]) -> list[Line]:
    """Labels aligned right before a colon, the way systemctl shows a unit."""
    return [[paint(f"{label:>12}: ", "dim"), *parts] for label, parts in rows]


def labelled_lines(rows: Sequence[tuple[str, str]]) -> list[Line]:
    return _labelled([(label, [text]) for label, text in rows])


def not_ready_exit(server: Mapping[str, object]) -> int:
    """The exit code that tells a script how the server is: 0 ready, 4 needs a login, 6 anything else."""
    if server.get("status") in READY:
        return 0
    return 4 if server.get("status") == "needs-auth" else 6


def shell_join(command: Sequence[str]) -> str:
    """A command line that could be pasted into a shell."""
    import shlex  # here, because the table does not need it and each import delays it

    return shlex.join(command)


def _configured_command(definition: Json) -> list[str]:
    """The command line as it was written, for a server of which nothing could be started."""
    from ctl.definition_fields import command  # here, because the table does not need it

    return command(definition)
