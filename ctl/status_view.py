"""`mcpctl status`: the table of all servers. `ctl.server_view` shows one server in detail.

The fast path and the full command line share this module, so both print the same. It must not import click,
rich or attrs: `mcpctl status` runs in shell prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctl.config_problems import config_problem_lines, config_warning_lines
from ctl.invocation import CliContext
from ctl.output import Line, paint
from ctl.server_state import BROKEN, failure_summary, impairment, not_ready_exit, painted_state
from ctl.table import table
from ctl.terminal_text import ago, count, format_duration, in_local_time, seconds_since, time_left, until

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import DaemonInfo, DaemonStatus, Reply, ServerDetail, ServerStatus

_STATUS_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory, so it is stuck if it needs longer."""

_ERROR_WIDTH = 36
"""Characters of the last error that take precedence over other columns: the name of a missing variable."""

_FIRST_RUN = (
    "No servers yet. Three ways to begin:",
    "  mcpctl add time -- uvx mcp-server-time     add a server and connect it",
    "  mcpctl import                              import the servers from your editors",
)


def show_status(cli: CliContext, server: str | None, *, utc: bool = False) -> int:
    """Print the table, or one server in detail. Returns the exit code."""
    if server is None:
        reply = cli.call("mcpd/status", timeout=_STATUS_TIMEOUT)
        if cli.out.json:
            cli.out.json_document(_with_member(reply.text, "next", _table_step(reply.value) or None))
        else:
            cli.out.lines(status_table(reply.value, cli.out.columns, utc=utc))
            _note_version_mismatch(cli, reply.value["daemon"]["version"])
        return 0
    detail = cli.call("mcpd/server", {"server": server}, timeout=_STATUS_TIMEOUT)
    if cli.out.json:
        cli.out.json_document(_with_next_step(detail))
    else:
        from ctl.server_view import server_block  # here, because the table does not need it

        cli.out.lines(server_block(detail.value, utc=utc))
    return not_ready_exit(detail.value["server"])


def show_several(cli: CliContext, servers: Sequence[str], *, utc: bool) -> int:
    """Print several servers in detail. Returns the highest of their exit codes."""
    from ctl.server_view import server_block  # here, because the table does not need it

    replies = [cli.call("mcpd/server", {"server": name}, timeout=_STATUS_TIMEOUT) for name in servers]
    if cli.out.json:
        cli.out.json_document(f'{{"servers":[{",".join(map(_with_next_step, replies))}]}}')
    for number, reply in enumerate(replies if not cli.out.json else ()):
        cli.out.lines([*([[]] if number else []), *server_block(reply.value, utc=utc)])
    return max(not_ready_exit(reply.value["server"]) for reply in replies)


def _with_member(document: str, name: str, value: object) -> str:
    """Return a JSON object with one more member, and otherwise byte for byte."""
    import json

    head = document.rstrip().removesuffix("}")
    return f"{head}{'' if head.rstrip().endswith('{') else ', '}{json.dumps(name)}: {json.dumps(value)}}}"


def _with_next_step(reply: Reply[ServerDetail]) -> str:
    """Return the daemon's document, byte for byte unless the text form shows another step."""
    from ctl.next_steps import next_step  # here, because the table does not need it

    step = next_step(reply.value)
    if reply.value.get("next") in (None, step):  # None: an older daemon
        return reply.text
    import json

    return json.dumps({**reply.value, "next": step})


def _table_step(result: DaemonStatus) -> str:
    """Return the next step of the whole table: the file comes first. Empty if nothing needs attention."""
    servers, config = result.get("servers", []), result.get("config")
    if config and (problems := config.get("problems")):
        from ctl.next_steps import config_step  # here, because the table does not need it

        return config_step(problems, config["path"])
    broken = next((server["name"] for server in servers if server["status"] in BROKEN), None)
    impaired = next((server["name"] for server in servers if impairment(server)), None)
    return f"mcpctl why {broken or impaired}" if broken or impaired else ""


def _note_version_mismatch(cli: CliContext, running: str) -> None:
    from mcpd import __version__

    if running != __version__:
        cli.out.message(
            f"note: the running mcpd is version {running}, mcpctl is {__version__}; mcpctl daemon restart"
        )


def status_table(result: DaemonStatus, columns: int | None, *, utc: bool = False) -> list[Line]:
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
        *_daemon_warning_lines(result["daemon"]),
    ]
    if config["source"] == "api":
        text = f"The servers come from a command, and {config['path']} is not in effect"
        lines += [[], [text, paint("; to use it: ", "dim"), "mcpctl reload"]]
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


def _daemon_warning_lines(daemon: DaemonInfo) -> list[Line]:
    """Return what mcpd could not save or read, and what to do about it."""
    return [
        line
        for warning in daemon.get("warnings", ())
        for line in ([], [paint("warning: ", "yellow"), warning])
    ]
