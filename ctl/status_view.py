"""`mcpctl status`: the table of all servers, one server in detail, and helpers that other commands share.

The fast path and the full command line share this module, so both print the same. It must not import click,
rich or attrs: `mcpctl status` runs in shell prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctl.invocation import CliContext
from ctl.output import Line, paint
from ctl.table import table
from ctl.terminal_text import (
    ago,
    clock_time,
    count,
    format_duration,
    in_local_time,
    log_line,
    seconds_since,
    time_left,
    until,
)

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import (
        ConfigStatus,
        DaemonInfo,
        DaemonStatus,
        Failure,
        HistoryEntry,
        Problem,
        Reply,
        ServerDetail,
        ServerStats,
        ServerStatus,
    )

STATUS_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory, so it is stuck if it needs longer."""

COLORS = {
    "connected": "green",
    "pending": "yellow",
    "failed": "red",
    "disabled": "dim",
    "needs-auth": "yellow",
    "idle": "cyan",
}

READY = ("connected", "idle")
"""States in which a call works immediately, or as soon as the server has started on demand."""

BROKEN = ("failed", "needs-auth")
"""States that a person has to do something about."""

WIDE = 110
"""Columns from which on `history` shows the year."""

_ERROR_WIDTH = 36
"""Characters of the last error that take precedence over other columns: the name of a missing variable."""

_SECOND_CONNECTION = "connection 2"
"""The daemon calls the step so."""

FIRST_RUN = (
    "No servers yet. Three ways to begin:",
    "  mcpctl add time -- uvx mcp-server-time     add a server and connect it",
    "  mcpctl import                              import the servers from your editors",
)


def show_status(cli: CliContext, server: str | None, *, utc: bool = False) -> int:
    """Print the table, or one server in detail. Returns the exit code."""
    if server is None:
        reply = cli.call("mcpd/status", timeout=STATUS_TIMEOUT)
        if cli.out.json:
            cli.out.json_document(_with_member(reply.text, "next", table_step(reply.value) or None))
        else:
            cli.out.lines(status_table(reply.value, cli.out.columns, utc=utc))
            _note_version_mismatch(cli, reply.value["daemon"]["version"])
        return 0
    detail = cli.call("mcpd/server", {"server": server}, timeout=STATUS_TIMEOUT)
    if cli.out.json:
        cli.out.json_document(_with_next_step(detail))
    else:
        cli.out.lines(server_block(detail.value, utc=utc))
    return not_ready_exit(detail.value["server"])


def _with_member(document: str, name: str, value: object) -> str:
    """Return a JSON object with one more member, and otherwise byte for byte."""
    import json

    head = document.rstrip().removesuffix("}")
    return f"{head}{'' if head.rstrip().endswith('{') else ', '}{json.dumps(name)}: {json.dumps(value)}}}"


def table_step(result: DaemonStatus) -> str:
    """Return the next step of the whole table: the file comes first. Empty if nothing needs attention."""
    servers, config = result.get("servers", []), result.get("config")
    if config and (problems := config.get("problems")):
        from ctl.next_steps import config_step  # here, because the table does not need it

        return config_step(problems, config["path"])
    broken = next((server["name"] for server in servers if server["status"] in BROKEN), None)
    impaired = next((server["name"] for server in servers if impairment(server)), None)
    return f"mcpctl why {broken or impaired}" if broken or impaired else ""


def _with_next_step(reply: Reply[ServerDetail]) -> str:
    """Return the daemon's document, byte for byte unless the text form shows another step."""
    from ctl.next_steps import next_step  # here, because the table does not need it

    step = next_step(reply.value)
    if reply.value.get("next") in (None, step):  # None: an older daemon
        return reply.text
    import json

    return json.dumps({**reply.value, "next": step})


def show_several(cli: CliContext, servers: Sequence[str], *, utc: bool) -> int:
    """Print several servers in detail. Returns the highest of their exit codes."""
    replies = [cli.call("mcpd/server", {"server": name}, timeout=STATUS_TIMEOUT) for name in servers]
    if cli.out.json:
        cli.out.json_document(f'{{"servers":[{",".join(map(_with_next_step, replies))}]}}')
    for number, reply in enumerate(replies if not cli.out.json else ()):
        cli.out.lines([*([[]] if number else []), *server_block(reply.value, utc=utc)])
    return max(not_ready_exit(reply.value["server"]) for reply in replies)


def _note_version_mismatch(cli: CliContext, running: str) -> None:
    from mcpd import __version__

    if running != __version__:
        cli.out.message(
            f"note: the running mcpd is version {running}, mcpctl is {__version__}; mcpctl daemon restart"
        )


def format_time(stamp: str | None, *, utc: bool = False) -> str:
    """`2026-11-21 07:30:00 (3m ago)` in local time, or `2026-11-21 06:30:00 UTC (3m ago)`."""
    return f"{clock_time(str(stamp), utc=utc)}{' UTC' if utc else ''} ({ago(stamp)})"


def painted_state(status: ServerStatus | ServerStats) -> str:
    """Return the state of a server in its color."""
    return paint(status["status"], COLORS.get(status["status"], "bold"))


def status_table(result: DaemonStatus, columns: int | None, *, utc: bool = False) -> list[Line]:
    """`mcpctl status`: one row per server, then problems of the configuration."""
    servers, config = result["servers"], result["config"]
    if not servers:
        path = config["path"]
        return [
            *([line] for line in FIRST_RUN),
            [f"  mcpctl edit                                write {path} yourself"],
            *config_problem_lines(config, servers),
            *config_warning_lines(config),
            *daemon_warning_lines(result["daemon"]),
        ]
    header = ("SERVER", "STATUS", "PID", "TOOLS", "RESTARTS", "UPTIME", "LAST ERROR")
    rows: list[Line] = [
        [
            server["name"],
            painted_state(server),
            str(server.get("pid") or "-"),
            str(server.get("tools", 0)),
            str(server.get("restarts", 0)),
            _uptime(server),
            _last_error(server, utc=utc),
        ]
        for server in servers
    ]
    http = result["daemon"].get("http")
    lines = [
        *table(header, rows, right=(2, 3, 4), fit=columns, drop=(2, 4, 5, 3), preferred=_ERROR_WIDTH),
        *config_problem_lines(config, servers),
        *config_warning_lines(config),
        *daemon_warning_lines(result["daemon"]),
    ]
    if config["source"] == "api":
        text = f"The servers come from a command, and {config['path']} is not in effect"
        lines += [[], [text, paint("; to use it: ", "dim"), "mcpctl reload"]]
    if not config.get("problems") and (step := table_step(result)):  # otherwise it is shown above
        lines += [[], [paint("next: ", "dim"), step]]
    if waiting := result["daemon"].get("approvals", 0):
        verb = "waits" if waiting == 1 else "wait"
        text = f"{count(waiting, 'call')} {verb} for your approval"
        lines += [[], [paint(text, "yellow"), ": mcpctl approvals"]]
    if http:
        file = http.get("token_file")
        token = f"token in {file}" if file else "WITHOUT a token (--http-auth none)"
        lines.append([f"http: {http['url']}, {token}"])
    return lines


def _uptime(server: ServerStatus) -> str:
    """Return for how long a server has been connected, or `-`."""
    seconds = seconds_since(server["since"]) if server["status"] == "connected" else None
    return "-" if seconds is None else format_duration(seconds)


def _last_error(server: ServerStatus, *, utc: bool) -> str:
    """Return the last failure in one phrase, dim if the server has recovered.

    For a temporarily disabled server, until when; for calls that wait for somebody's answer, for whose.
    """
    if impaired := impairment(server):
        return paint(impaired, "yellow")
    if off_until := server.get("off_until"):
        return paint(in_local_time(server.get("reason", ""), utc=utc) + time_left(off_until), "dim")
    failure, status, reason = server.get("last_error"), server["status"], server.get("reason", "")
    waiting = status in ("failed", "pending", "needs-auth")
    if not failure:
        return reason if waiting and reason else "-"
    message = failure_summary(failure)
    if not waiting:
        return paint(f"{message} ({ago(failure['at'])})", "dim")
    if retry_at := server.get("retry_at"):
        return f"{message} (next try {until(retry_at)})"
    in_progress = reason if status == "pending" and reason not in ("connecting", "queued") else ""
    return f"{in_progress} (before: {message})" if in_progress else message


def config_problem_lines(config: ConfigStatus, servers: Sequence[ServerStatus]) -> list[Line]:
    """The errors in the configuration file, what they affect, and the next step."""
    problems = config.get("problems")
    if not problems:
        return []
    from ctl.next_steps import config_step  # here, because the table does not need it

    return [
        [],
        [
            paint("The configuration file has errors", "red"),
            f"; {effect_of_problems(config, servers)}: {config['path']}",
        ],
        *problem_lines(problems),
        [paint("next: ", "dim"), config_step(problems, config["path"])],
    ]


def server_without_definition(problem: Problem, servers: Sequence[ServerStatus]) -> str:
    """Return the server that cannot start because of a problem; empty if an earlier definition is used."""
    for server in servers:
        failure = server.get("last_error")
        if failure and failure["kind"] == "config" and f"@ {problem['path']}" in failure["message"]:
            return server["name"]
    return ""


def effect_of_problems(config: ConfigStatus, servers: Sequence[ServerStatus]) -> str:
    """Return what mcpd uses instead of the entries with errors."""
    owners = [server_without_definition(problem, servers) for problem in config["problems"]]
    missing = ", ".join(dict.fromkeys(name for name in owners if name))
    effects = [f"cannot start {missing}"] if missing else []
    if config.get("rejected", not all(owners)):
        is_copy = config["source"] not in (config["path"], "api", "none") and not config["source"].startswith(
            "$"
        )
        used = "last valid configuration, saved" if is_copy else "configuration loaded"
        effects.append(f"using the {used} {ago(config['loaded_at'])}")
    elif earlier := config.get("earlier_definitions", ()):
        effects.append(f"using the last valid definition of {', '.join(str(name) for name in earlier)}")
    elif any(".policies" in problem["path"] for problem in config["problems"]):
        effects.append("using the last valid rules, or denying everything if there are none")
    return "; ".join(effects) or "entries with errors are not used"


def config_warning_lines(config: ConfigStatus) -> list[Line]:
    """The first warning, and where to find the others. At most two lines."""
    first, *rest = config.get("warnings") or [""]
    if not first or first.startswith("no configuration yet"):  # which the text for the first run says
        return []
    more = f" ({len(rest)} more: mcpctl config validate)" if rest else ""
    return [[], [paint("warning: ", "yellow"), f"{first}{more}"]]


def daemon_warning_lines(daemon: DaemonInfo) -> list[Line]:
    """What mcpd could not save or read, and what to do about it."""
    return [
        line
        for warning in daemon.get("warnings", ())
        for line in ([], [paint("warning: ", "yellow"), warning])
    ]


def problem_lines(problems: Sequence[Problem]) -> list[Line]:
    """One line per problem of a document: where, what, and how to fix it."""
    return [
        [f"  {problem['path']}: {problem['message']}{f' ({fix})' if (fix := problem.get('fix')) else ''}"]
        for problem in problems
    ]


def server_block(detail: ServerDetail, log_lines: int = 10, *, utc: bool = False) -> list[Line]:
    """`mcpctl status SERVER`: its state with the evidence, and what to type next."""
    server = detail["server"]
    info = server.get("server_info") or {}
    title = f"{info.get('title') or info.get('name') or ''} {info.get('version', '')}".strip()
    lines: list[Line] = [[paint(server["name"], "bold"), f" - {title}" if title else ""]]
    lines += labelled_lines(_rows(detail, server, utc=utc))
    lines += _failure_block(server)
    lines += ([paint("   warning: ", "yellow"), warning] for warning in server.get("warnings", ()))
    if log_lines and (log := detail.get("log", [])[-log_lines:]):
        lines += [[], *([paint(log_line(line, utc=utc), "dim")] for line in log)]
    from ctl.next_steps import next_step  # here, because the table does not need it

    return [*lines, [], [paint("next: ", "dim"), next_step(detail)]]


def _rows(detail: ServerDetail, server: ServerStatus, *, utc: bool) -> list[tuple[str, str | Line]]:
    rows: list[tuple[str, str | Line]] = [
        ("state", [painted_state(server), f" since {format_time(server['since'], utc=utc)}"])
    ]
    if degraded := server.get("degraded"):
        rows.append(("but", [paint(degraded, "yellow")]))
    if reason := server.get("reason"):
        rows.append(("reason", in_local_time(reason, utc=utc) + time_left(server.get("off_until"))))
    if retry_at := server.get("retry_at"):
        rows.append(
            ("next try", [f"{until(retry_at)} ({clock_time(retry_at, utc=utc)}{' UTC' if utc else ''})"])
        )
    if url := detail.get("url"):
        rows.append(("url", url))
    elif command := detail.get("command") or _configured_command(detail.get("definition", {})):
        rows.append(("command", shell_join(command)))
    if pid := server.get("pid"):
        rows.append(("pid", str(pid)))
    if server.get("protocol_version"):
        rows.append(("protocol", _protocol(server)))
    if second := second_connection(detail):
        rows.append((_SECOND_CONNECTION, second))
    provided = (
        count(server.get("tools", 0), "tool"),
        count(server.get("resources", 0), "resource"),
        count(server.get("prompts", 0), "prompt"),
    )
    rows.append(("provides", [f"{', '.join(provided)}; lists fetched {ago(server.get('updated'))}"]))
    failed = ""
    if server["status"] not in READY:
        failed = f"; consecutive failed attempts: {server.get('attempts', 0)}"
    rows.append(("restarts", f"{server.get('restarts', 0)}{failed}"))
    if last_ok := server.get("last_ok"):
        rows.append(("last answer", ago(last_ok)))
    if in_flight := server.get("in_flight"):
        rows.append(("in flight", count(in_flight, "request")))
    return rows + waiting_rows(server, utc=utc)


def waiting_summary(server: ServerStatus) -> str:
    """Return for whose answer how many calls wait: `2 calls wait: cursor was asked 3m ago`. Empty if no call
    waits, or if calls wait only for other calls."""
    questions, number = server.get("questions"), server.get("waiting_calls", 0)
    if not questions or not number:
        return ""
    verb = "waits" if number == 1 else "wait"
    return f"{count(number, 'call')} {verb}: {questions[0]['client']} was asked {ago(questions[0]['since'])}"


def impairment(server: ServerStatus) -> str:
    """Return what is wrong with a server although it is connected; empty if nothing is known."""
    return waiting_summary(server) or server.get("degraded", "")


def waiting_rows(server: ServerStatus, *, utc: bool) -> list[tuple[str, str]]:
    """Who was asked what since when, and which calls wait."""
    rows = []
    for question in server.get("questions", ()):
        gone = "" if question.get("client_is_connected", True) else ", disconnected"
        text = f": {text}" if (text := question["text"]) else ""
        asked = f"{question['client']}{gone} at {format_time(question['since'], utc=utc)}"
        rows.append(("asked", f"{asked}, by {question['call']}{text}"))
    waiting = server.get("waiting", [])
    for call in waiting:
        rows.append(
            ("waiting", f"{call['call']} of {call['client']}, since {format_time(call['since'], utc=utc)}")
        )
    if (more := server.get("waiting_calls", 0) - len(waiting)) > 0:
        rows.append(("waiting", f"and {count(more, 'call')} more"))
    return rows


def second_connection(detail: ServerDetail) -> str:
    """Describe the second connection of a server that speaks both eras, or say why there can be none; empty
    if none has been needed.
    """
    for second in detail["server"].get("connections", ())[1:]:
        is_up = second["status"] == "connected"
        parts = [second.get("revision") or "", "" if is_up else second["status"]]
        parts.append(f"pid {pid}" if (pid := second.get("pid")) else "")
        failure = second.get("last_error")
        parts.append(failure_summary(failure) if failure and not is_up else "")
        shown = " · ".join(part for part in parts if part)
        return f"{shown}; for clients of older revisions that the server may ask something"
    for step in detail.get("negotiation", ()):
        if step["step"] == _SECOND_CONNECTION:
            return f"{step['outcome']}; all clients use the first"
    return ""


def _protocol(server: ServerStatus) -> str:
    """Transport, revision, era, and whether there is an HTTP session. Never the session's id."""
    parts = [server["transport"], str(server.get("protocol_version"))]
    if era := server.get("era"):
        parts.append(era)
    if (session := server.get("session")) is not None:
        parts.append("session" if session else "no session")
    return " · ".join(parts)


def _failure_block(server: ServerStatus) -> list[Line]:
    failure = server.get("last_error")
    if not failure:
        return []
    message = failure["message"]
    text: Line = [
        f"[{', '.join([failure['kind'], *exit_details(failure)])}] ",
        message if server["status"] in READY else paint(message, "red"),
        f" ({ago(failure['at'])})",
    ]
    noise = failure.get("noise")
    output = [*([noise] if noise else []), *failure.get("stderr", ())]
    return [*labelled_lines([("last error", text)]), *([f"              | {line}"] for line in output)]


def exit_details(failure: Failure | HistoryEntry) -> list[str]:
    """How a process or connection ended: `exit code 3`, `SIGKILL`, `HTTP status 503`."""
    details = [signal] if (signal := failure.get("signal")) else []
    details += [f"exit code {code}"] if (code := failure.get("exit_code")) is not None else []
    details += [f"HTTP status {status}"] if (status := failure.get("http_status")) is not None else []
    return details + (["crash loop"] if failure.get("crash_loop") else [])


def failure_summary(failure: Failure) -> str:
    """Return a failure in one phrase; `status SERVER` shows the rest."""
    return failure.get("summary") or failure["message"].partition("\n")[0].partition("; ")[0]


def short_message(message: str) -> str:
    """Return a failure's message without the searched PATH, which `why` shows separately."""
    return message.partition("; looked in PATH=")[0]


def labelled_lines(rows: Sequence[tuple[str, str | Sequence[str]]]) -> list[Line]:
    """Labels right-aligned before a colon, as systemctl shows a unit."""
    return [
        [paint(f"{label:>12}: ", "dim"), *([value] if isinstance(value, str) else value)]
        for label, value in rows
    ]


def not_ready_exit(server: ServerStatus) -> int:
    """Return the exit code for a server: 0 if it is ready, 4 if it needs a login, otherwise 6."""
    if server["status"] in READY:
        return 0
    return 4 if server["status"] == "needs-auth" else 6


def shell_join(command: Sequence[str]) -> str:
    """Return a command line that can be pasted into a shell."""
    import shlex  # here, because the table does not need it

    return shlex.join(command)


def _configured_command(definition: Mapping[str, object]) -> list[str]:
    from mcpd.config.definition_view import command  # here, because the table does not need it

    return command(definition)
