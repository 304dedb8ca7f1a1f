"""`mcpctl why` and `debug`: the cause of a server's state, and everything known about it.

`why` combines what the daemon knows about the server with how the environment of the user's terminal differs.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ctl.cli.arguments import utc_option
from ctl.cli.completion import server_names
from ctl.cli.errors import DaemonError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint, table
from ctl.cli.text import (
    ago,
    clock_time,
    format_time,
    in_local_time,
    log_line,
    seconds_since,
    time_left,
    until,
)
from ctl.commands.history import history_table
from ctl.explain.environment import (
    different_variables,
    login_environment,
    missing_directories,
    missing_variables,
)
from ctl.explain.next_steps import next_step
from ctl.explain.server import second_connection, server_block, waiting_rows
from ctl.show.status import (
    COLORS,
    READY,
    exit_details,
    impairment,
    not_ready_exit,
    short_message,
    waiting_summary,
)
from mcpd.config import definition_view
from mcpd.config.next_step import port_in_use
from mcpd.model.failure_summary import lines_with_cause
from mcpd.support.find_programs import find_elsewhere, find_program

if TYPE_CHECKING:
    from ctl.api_types import Failure, HistoryEntry, ServerDetail, ServerStatus

Explanation = dict[str, Any]

_EVIDENCE = ("kind", "at", "exit_code", "signal", "http_status", "crash_loop", "stderr", "noise")
_HISTORY_LIMIT = 200
"""History entries in which the start of the trouble is looked for: all that the daemon keeps."""
_WHO_KILLS = "sent by a user, a program, or the kernel if memory was short: journalctl -k -g 'out of memory'"
_PING_TIMEOUT = 2.0
"""Seconds that a connected server has to answer."""
_HEALTHY_AFTER = 60.0
"""Seconds for which a server must be connected after a failure to be called healthy."""
_STDERR_LINES = 10
"""npm needs eight lines to report a package that does not exist, the most useful first."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl why github\n  mcpctl why github --json")
@click.argument("server", shell_complete=server_names)
@click.option(
    "--shell/--no-shell",
    default=None,
    help="Compare the environment with that of your terminal. [default: if failed]",
)
@utc_option
@click.pass_obj
def why(cli: CliContext, server: str, shell: bool | None, utc: bool) -> int:
    """Explain the state of a server and suggest what to do.

    Shows the cause, the evidence and who requested the state. A service does not see the environment of your
    terminal, so for failed servers it also shows how the two differ. The exit code is that of
    `mcpctl status SERVER`.
    """
    with suppress(DaemonError):  # not connected, or no answer, which is in its status then
        cli.call("mcpd/ping", {"server": server, "timeout": _PING_TIMEOUT})
    detail = cli.call("mcpd/server", {"server": server}).value
    status = detail["server"]
    compare = status["status"] in ("failed", "pending") if shell is None else shell
    past = cli.call("mcpd/history", {"server": server, "limit": _HISTORY_LIMIT}).value["entries"]
    login = login_environment(os.environ) if compare and detail.get("command") else None
    explanation = explain(detail, past, login)
    if cli.out.json:
        cli.out.json_value(explanation)
    else:
        cli.out.lines(render(explanation, status, cli.out.columns, utc=utc))
    return not_ready_exit(status)


_OVERLAP = {
    "auto": "those of different clients may wait for each other, 1 s because they may change something, and "
    "2 s because the server may ask the user something",
    "writes": "those that may change something run one at a time",
    "serial": "they run one at a time",
}
"""What a value of `concurrency` means for calls, if they cannot simply overlap."""
_SHARE = {
    "client": "each one has a process of its own",
    "root": "there is a process for each of their directories",
    "declared-root": "there is a process for each directory that they declare",
}
"""What a value of `share` means for clients, if not all of them share the process."""


def explain(
    detail: ServerDetail, past: Sequence[HistoryEntry], login: Mapping[str, str] | None
) -> Explanation:
    """Return the `--json` form. `past` is the whole history, `login` the environment of the login shell."""
    server = detail["server"]
    failure, history = server.get("last_error"), detail.get("history", [])
    binary = _binary(detail, login)
    requested = [entry for entry in history if entry.get("by")]
    cause = _cause(server, failure, requested)
    return {
        "server": server["name"],
        "state": server["status"],
        "status": server["status"],  # the former name of `state`, kept for one version
        "since": server["since"],
        "down_since": _down_since(server, past),
        "retry_at": server.get("retry_at"),
        "cause": cause,
        "because": cause,  # the former name of `cause`, kept for one version
        "evidence": {name: failure.get(name) for name in _EVIDENCE} if failure else None,
        "connections": server.get("connections", []),
        "second_connection": second_connection(detail) or None,
        "concurrency": detail.get("concurrency") or None,
        "share": detail.get("share") or None,
        "url": detail.get("url") or None,
        "binary": binary,
        "environment": _environment(detail, login),
        "asked_by": requested[-1] if requested else None,
        "questions": server.get("questions", []),
        "waiting": server.get("waiting", []),
        "waiting_calls": server.get("waiting_calls", 0),
        "history": history,
        "warnings": server.get("warnings", []),
        "next": next_step(detail, login),
    }


def _cause(server: ServerStatus, failure: Failure | None, requested: Sequence[HistoryEntry]) -> str:
    status, reason = server["status"], server.get("reason", "")
    if status in ("failed", "needs-auth"):
        return (failure["message"] if failure else "") or reason or "unknown cause"
    if status == "disabled":
        last = requested[-1] if requested else None
        by = f", by {last.get('by')} {ago(last['at'])}" if last and last.get("state") == "disabled" else ""
        return (reason or "disabled") + by
    if status == "idle":
        return "not started yet (lazy: starts on first use)"
    if blocked := waiting_summary(server):
        return blocked
    if status == "pending":
        reason = reason or "connecting"
        return f"{reason}; the previous attempt failed: {failure['message']}" if failure else reason
    before = f"; last failure {ago(failure['at'])}: {failure['message']}" if failure else ""
    if degraded := server.get("degraded"):
        return f"connected, but {degraded}{before}"
    connected_for = seconds_since(server["since"])
    if failure and connected_for is not None and connected_for < _HEALTHY_AFTER:
        return f"connected again {ago(server['since'])}{before}"
    return f"healthy{before}"


def _down_since(server: ServerStatus, history: Sequence[HistoryEntry]) -> str | None:
    """Return when a server that is down was last connected, or first failed, according to the history.

    `since` is no answer, because it changes with each attempt.
    """
    if server["status"] not in ("failed", "pending", "needs-auth"):
        return None
    down: str | None = None
    for entry in reversed(history):
        if entry.get("state") in (*READY, "disabled"):
            break
        if entry.get("state"):
            down = entry["at"]
    return down


def _binary(detail: ServerDetail, login: Mapping[str, str] | None) -> Explanation | None:
    """Return the program that is run, and the one a shell would run.

    None for a remote server, and for a definition with errors, which names no program that could be run.
    """
    failure = detail["server"].get("last_error")
    if failure and failure["kind"] == "config" and not detail.get("executable"):
        return None
    command = detail.get("command") or definition_view.command(detail.get("definition", {}))
    if not command:
        return None
    path, program = detail.get("path", ""), command[0]
    found = detail.get("executable") or find_program(program, path)
    in_shell = None if login is None else find_program(program, login.get("PATH", ""))
    others = [] if found else [each for each in find_elsewhere(program) if each != in_shell]
    return {
        "command": program,
        "found": found,
        "searched": path.split(":") if path else [],
        "in_login_shell": in_shell,
        "elsewhere": others,
    }


def _environment(detail: ServerDetail, login: Mapping[str, str] | None) -> Explanation | None:
    path = detail.get("path")
    if login is None or not path:
        return None
    failure = detail["server"].get("last_error")
    stderr = "\n".join(failure.get("stderr", ())) if failure else ""
    names, inherited = detail.get("env", ()), detail.get("inherited_env", {})
    return {
        "path_only_in_login_shell": missing_directories(login.get("PATH", ""), path),
        "variables_only_in_login_shell": missing_variables(login, {}, names, stderr),
        "missing": missing_variables(login, os.environ, names, stderr),
        "different": different_variables(login, os.environ, inherited, stderr),
    }


def _uses_path(binary: Explanation) -> bool:
    return "/" not in binary["command"]


def render(explanation: Explanation, server: ServerStatus, fit: int | None, *, utc: bool) -> list[Line]:
    """The text form: the cause first, the next step last."""
    status = server["status"]
    because = in_local_time(short_message(explanation["cause"]), utc=utc)
    is_bad = status not in READY or impairment(server)
    state = paint(status, COLORS.get(status, "bold"))
    lines: list[Line] = [
        [paint(f"{server['name']}: ", "bold"), state, f" since {format_time(server['since'], utc=utc)}"],
        ["cause: ", paint(because, "yellow") if is_bad else because],
    ]
    if retry_at := server.get("retry_at"):
        lines.append([f"next try {until(retry_at)}"])
    if left := time_left(server.get("off_until")):
        lines.append([f"ends{left.removeprefix(',')}"])
    rows = [
        *waiting_rows(server, utc=utc),
        *_evidence_rows(server.get("last_error")),
        *_binary_rows(explanation["binary"]),
    ]
    if url := explanation["url"]:
        rows.append(("url", url))
    if second := explanation["second_connection"]:
        rows.append(("connection 2", second))
    if (overlap := _OVERLAP.get(explanation["concurrency"])) and status in READY:
        rows.append(("calls", f"{overlap} (concurrency: {explanation['concurrency']})"))
    if processes := _SHARE.get(explanation["share"]):
        rows.append(("clients", f"{processes} (share: {explanation['share']})"))
    down_since = explanation["down_since"]
    if down_since and down_since[:19] < server["since"][:19]:
        rows.insert(0, ("down since", format_time(down_since, utc=utc)))
    failure = server.get("last_error")
    is_down = status in ("failed", "pending")
    if (is_down and failure) or status in READY:
        rows += _environment_rows(explanation["environment"], failure if is_down else None)
    if rows:
        lines += [[], *labelled_lines(rows)]
    lines += ([paint("   warning: ", "yellow"), warning] for warning in explanation["warnings"])
    if entries := explanation["history"]:
        lines += [[], *history_table(entries, servers=False, fit=fit, utc=utc)]
    return [*lines, [], [paint("next: ", "dim"), explanation["next"]]]


def _evidence_rows(failure: Failure | None) -> list[tuple[str, str]]:
    if not failure:
        return []
    details = exit_details(failure)
    kind = f"{failure['kind']} ({', '.join(details)})" if details else failure["kind"]
    rows = [("evidence", f"{kind}, {ago(failure['at'])}")]
    if noise := failure.get("noise"):
        rows.append(("stdout", noise))
    if failure.get("signal") == "SIGKILL":
        rows.append(("SIGKILL", _WHO_KILLS))
    stderr = [line for line in failure.get("stderr", ()) if line.strip()]
    return rows + [("stderr", line) for line in lines_with_cause(stderr, _STDERR_LINES)]


def _binary_rows(binary: Explanation | None) -> list[tuple[str, str]]:
    if not binary:
        return []
    command, found, in_shell = binary["command"], binary["found"], binary["in_login_shell"]
    missing = f"not found ({command})" if _uses_path(binary) else f"{command} cannot be run"
    rows = [("executable", found or missing)]
    if not found and _uses_path(binary):
        rows.append(("searched", ":".join(binary["searched"])))
    if in_shell and in_shell != found:
        rows.append(("your shell", f"runs {in_shell}"))
    return rows + [("also at", path) for path in binary["elsewhere"][:3]]


def _environment_rows(environment: Explanation | None, failure: Failure | None) -> list[tuple[str, str]]:
    """How the server's environment differs from a terminal's, as far as that can be the cause of `failure`.

    Without a failure, all differences.
    """
    rows: list[tuple[str, str]] = []
    if not environment or (failure and not _depends_on_environment(failure)):
        return rows
    if directories := environment["path_only_in_login_shell"]:
        rows.append(("PATH lacks", ":".join(directories)))
    if failure and failure["kind"] == "spawn":  # no variable but PATH makes a program appear
        return rows
    if names := environment["missing"]:
        remark = "set in your shell; pass them with `env` in the definition"
        rows.append(("not passed", f"{_first(names)} ({remark})"))
    if names := environment["different"]:
        rows.append(("differs", f"{_first(names)} (your shell has another value; set it with `env`)"))
    return rows


def _depends_on_environment(failure: Failure) -> bool:
    may_depend = ("spawn", "exited", "closed", "timeout")
    return failure["kind"] in may_depend and not port_in_use(failure.get("stderr", []))


def _first(names: Sequence[str]) -> str:
    return " ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


@click.command(epilog="Examples:\n\n\b\n  mcpctl debug github\n  mcpctl debug github --json")
@click.argument("server", shell_complete=server_names)
@utc_option
@click.pass_obj
def debug(cli: CliContext, server: str, utc: bool) -> int:
    """Show everything known about one server.

    Includes its command, environment variables, connection steps, unparsable output and the end of its log.
    Secrets are masked. The exit code is that of `mcpctl status SERVER`.
    """
    reply = cli.call("mcpd/server", {"server": server})
    if not cli.show_json(reply):
        cli.out.lines(_detail_lines(reply.value, utc=utc))
    return not_ready_exit(reply.value["server"])


def _detail_lines(detail: ServerDetail, *, utc: bool) -> list[Line]:
    status = detail["server"]
    lines = [*server_block(detail, log_lines=0, utc=utc)]
    if command := detail.get("command"):
        started = [
            ("command", shlex.join(command)),
            ("executable", detail.get("executable") or "not found"),
            ("PATH", detail.get("path") or "-"),
            ("directory", detail.get("cwd") or "-"),
            ("environment", " ".join(detail.get("env", ())) or "-"),
        ]
        lines += _section("Process", labelled_lines(started))
    steps: list[Line] = [
        [clock_time(step["at"], utc=utc), f"{step['ms']:.0f} ms", step["step"], step["outcome"]]
        for step in detail.get("negotiation", ())
    ]
    if steps:
        lines += _section("Connection steps", table(("AT", "TOOK", "STEP", "OUTCOME"), steps, right=(1,)))
    behaviour = [
        ("capabilities", ", ".join(status.get("capabilities", ())) or "-"),
        ("unparsable", f"{detail.get('junk_lines', 0)} output lines"),
        *([("for example", sample)] if (sample := detail.get("junk_sample")) else []),
        ("late replies", str(detail.get("late_replies", 0))),
    ]
    lines += _section("Protocol", labelled_lines(behaviour))
    instructions = (status.get("server_info") or {}).get("instructions", "")
    lines += _section("Instructions", [[f"  {line}"] for line in instructions.splitlines()])
    definition = json.dumps(detail.get("definition", {}), indent=2, ensure_ascii=False)
    lines += _section("Definition", [[f"  {line}"] for line in definition.splitlines()])
    return lines + _section(
        f"Log ({detail.get('log_file') or '-'})",
        [[log_line(line, utc=utc)] for line in detail.get("log", ())],
    )


def _section(title: str, lines: list[Line]) -> list[Line]:
    return [[], [paint(title, "bold")], *lines] if lines else []
