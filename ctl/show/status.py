"""`mcpctl status`: the table of all servers, the state of one, and errors of the configuration.

The fast path and the full command line share this module, so both print the same. It must not import click,
rich or attrs: `mcpctl status` runs in shell prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.cli.text import ago, count, in_local_time, until

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import (
        ConfigStatus,
        DaemonInfo,
        DaemonStatus,
        Failure,
        HistoryEntry,
        Problem,
        ServerStats,
        ServerStatus,
    )

STATUS_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory, so it is stuck if it needs longer."""

_FIRST_RUN = (
    "No servers yet. Three ways to begin:",
    "  mcpctl add time -- uvx mcp-server-time     add a server and connect it",
    "  mcpctl import                              import the servers from your editors",
)


def show_table(cli: CliContext) -> int:
    reply = cli.call("mcpd/status", timeout=STATUS_TIMEOUT)
    if cli.out.json:
        cli.out.json_document(_with_member(reply.text, "next", _table_step(reply.value) or None))
    else:
        cli.out.lines(status_table(reply.value, cli.out.columns))
        _note_version_mismatch(cli, reply.value["daemon"]["version"])
    return 0


def _with_member(document: str, name: str, value: object) -> str:
    """Return a JSON object with one more member, and otherwise byte for byte."""
    import json

    head = document.rstrip().removesuffix("}")
    return f"{head}{'' if head.rstrip().endswith('{') else ', '}{json.dumps(name)}: {json.dumps(value)}}}"


def _table_step(result: DaemonStatus) -> str:
    """Return the next step of the whole table: the file comes first. Empty if nothing needs attention."""
    servers, config = result.get("servers", []), result.get("config")
    if config and (problems := config.get("problems")):
        from ctl.explain.next_steps import config_step  # here, because the table does not need it

        return config_step(problems)
    broken = next((server["name"] for server in servers if server["status"] in BROKEN), None)
    impaired = next((server["name"] for server in servers if impairment(server)), None)
    return f"mcpctl why {broken or impaired}" if broken or impaired else ""


def _note_version_mismatch(cli: CliContext, running: str) -> None:
    from mcpd import __version__

    if running != __version__:
        cli.out.message(
            f"note: the running mcpd is version {running}, mcpctl is {__version__}; mcpctl daemon restart"
        )


def status_table(result: DaemonStatus, columns: int | None) -> list[Line]:
    """Return one row per server, then problems of the configuration, and what else needs attention."""
    servers, config = result["servers"], result["config"]
    if not servers:
        path = config["path"]
        return [
            *([line] for line in _FIRST_RUN),
            [f"  mcpctl edit                                write {path} yourself"],
            *config_problem_lines(config, servers),
            *config_warning_lines(config),
            *_daemon_warning_lines(result["daemon"]),
        ]
    header = ("SERVER", "STATUS", "PID", "TOOLS", "RESTARTS", "UPDATED", "LAST ERROR")
    rows: list[Line] = [
        [
            server["name"],
            painted_state(server),
            str(server.get("pid") or "-"),
            str(server.get("tools", 0)),
            str(server.get("restarts", 0)),
            ago(server["since"]),
            _last_error(server),
        ]
        for server in servers
    ]
    http = result["daemon"].get("http")
    lines = [
        *table(header, rows, right=(2, 3, 4), fit=columns, drop=(2, 4, 5, 3)),
        *config_problem_lines(config, servers),
        *config_warning_lines(config),
        *_daemon_warning_lines(result["daemon"]),
    ]
    if config["source"] == "api":
        text = f"The servers come from a command, and {config['path']} is not in effect"
        lines += [[], [text, paint("; to use it: ", "dim"), "mcpctl config reload"]]
    if not config.get("problems") and (step := _table_step(result)):  # otherwise it is shown above
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


def _last_error(server: ServerStatus) -> str:
    """Return the last failure in one phrase, dim if the server has recovered.

    For a temporarily disabled server, until when; for calls that wait for somebody's answer, for whose.
    """
    if impaired := impairment(server):
        return paint(impaired, "yellow")
    if server.get("off_until"):
        return paint(in_local_time(server.get("reason", "")), "dim")
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


def _daemon_warning_lines(daemon: DaemonInfo) -> list[Line]:
    """Return what mcpd could not save or read, and what to do about it."""
    return [
        line
        for warning in daemon.get("warnings", ())
        for line in ([], [paint("warning: ", "yellow"), warning])
    ]


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


def painted_state(status: ServerStatus | ServerStats) -> str:
    return paint(status["status"], COLORS.get(status["status"], "bold"))


def not_ready_exit(server: ServerStatus) -> int:
    """Return the exit code for a server: 0 if it is ready, 4 if it needs a login, otherwise 6."""
    if server["status"] in READY:
        return 0
    return 4 if server["status"] == "needs-auth" else 6


def impairment(server: ServerStatus) -> str:
    """Return what is wrong with a server although it is connected; empty if nothing is known."""
    return waiting_summary(server) or server.get("degraded", "") or _second_failure(server)


def _second_failure(server: ServerStatus) -> str:
    """Return why the second connection of a server that speaks both eras fails; empty if it does not."""
    for second in server.get("connections", ())[1:]:
        if second["status"] in ("failed", "pending") and (failure := second.get("last_error")):
            return f"its second connection fails: {failure_summary(failure)}"
    return ""


def waiting_summary(server: ServerStatus) -> str:
    """Return for whom calls wait: `2 calls wait: cursor was asked 3m ago`. Empty if no call waits."""
    questions, number = server.get("questions"), server.get("waiting_calls", 0)
    if not number:
        return ""
    verb = "waits" if number == 1 else "wait"
    if not questions and (waiting := server.get("waiting")):
        what_for, since = waiting[0].get("waits_for") or "a turn", ago(waiting[0]["since"])
        return f"{count(number, 'call')} {verb} for {what_for}, the first came {since}"
    if not questions:
        return ""
    return f"{count(number, 'call')} {verb}: {questions[0]['client']} was asked {ago(questions[0]['since'])}"


def failure_summary(failure: Failure) -> str:
    """Return a failure in one phrase; `status SERVER` shows the rest."""
    return failure.get("summary") or failure["message"].partition("\n")[0].partition("; ")[0]


def short_message(message: str) -> str:
    """Return a failure's message without the searched PATH, which `why` shows separately."""
    return message.partition("; looked in PATH=")[0]


def exit_details(failure: Failure | HistoryEntry) -> list[str]:
    """Return how a process or connection ended: `exit code 3`, `SIGKILL`, `HTTP status 503`."""
    details = [signal] if (signal := failure.get("signal")) else []
    details += [f"exit code {code}"] if (code := failure.get("exit_code")) is not None else []
    details += [f"HTTP status {status}"] if (status := failure.get("http_status")) is not None else []
    return details + (["crash loop"] if failure.get("crash_loop") else [])


def config_problem_lines(config: ConfigStatus, servers: Sequence[ServerStatus]) -> list[Line]:
    """Return the errors in the configuration file, what they affect, and the next step; nothing if there are
    none."""
    problems = config.get("problems")
    if not problems:
        return []
    from ctl.explain.next_steps import config_step  # here, because the table does not need it

    return [
        [],
        [
            paint("The configuration file has errors", "red"),
            f"; {effect_of_problems(config, servers)}: {config['path']}",
        ],
        *problem_lines(problems),
        [paint("next: ", "dim"), config_step(problems)],
    ]


def problem_lines(problems: Sequence[Problem]) -> list[Line]:
    return [
        [f"  {problem['path']}: {problem['message']}{f' ({fix})' if (fix := problem.get('fix')) else ''}"]
        for problem in problems
    ]


def effect_of_problems(config: ConfigStatus, servers: Sequence[ServerStatus]) -> str:
    """Return what mcpd uses instead of the entries with errors."""
    owners = [_server_without_definition(problem, servers) for problem in config["problems"]]
    missing = ", ".join(dict.fromkeys(name for name in owners if name))
    effects = [f"cannot start {missing}"] if missing else []
    if config.get("rejected", not all(owners)):
        is_copy = config["source"] not in (config["path"], "api", "none") and not config["source"].startswith(
            "$"
        )
        used = "last valid configuration, saved" if is_copy else "configuration loaded"
        effects.append(f"using the {used} {ago(config['loaded_at'])}")
    elif any(".policies" in problem["path"] for problem in config["problems"]):
        effects.append("every use is denied until the rules have no errors")
    return "; ".join(effects) or "entries with errors are not used"


def _server_without_definition(problem: Problem, servers: Sequence[ServerStatus]) -> str:
    """Return the server that cannot start because of a problem; empty if there is none."""
    for server in servers:
        failure = server.get("last_error")
        if failure and failure["kind"] == "config" and f"@ {problem['path']}" in failure["message"]:
            return server["name"]
    return ""


def config_warning_lines(config: ConfigStatus) -> list[Line]:
    """Return the first warning, and where to find the others: at most two lines."""
    first, *rest = config.get("warnings") or [""]
    if not first or first.startswith("no configuration yet"):  # which the text for the first run says
        return []
    more = f" ({len(rest)} more: mcpctl config validate)" if rest else ""
    return [[], [paint("warning: ", "yellow"), f"{first}{more}"]]
