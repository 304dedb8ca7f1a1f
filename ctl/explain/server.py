"""One server: what is known about it, the cause of its state, and the next step.

`mcpctl status SERVER`, `why` and `debug` show different parts of the same facts. The fast path of `mcpctl
status SERVER` imports this module, so it must not import click, rich or attrs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint, table
from ctl.cli.text import ago, clock_time, count, format_time, in_local_time, log_line, until
from ctl.explain.next_steps import next_step
from ctl.show.history import history_table
from ctl.show.status import (
    BROKEN,
    COLORS,
    READY,
    STATUS_TIMEOUT,
    exit_details,
    failure_summary,
    impairment,
    not_ready_exit,
    painted_state,
    short_message,
    waiting_summary,
)
from mcpd.config import definition_view

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from typing import Any

    from ctl.api_types import Failure, HistoryEntry, Reply, ServerDetail, ServerStatus

    Rows = list[tuple[str, str | Line]]
    Explanation = dict[str, Any]

_EVIDENCE = ("kind", "at", "exit_code", "signal", "http_status", "crash_loop", "stderr", "noise")
_WHO_KILLS = "sent by a user, a program, or the kernel if memory was short: journalctl -k -g 'out of memory'"
_STDERR_LINES = 10
"""npm needs eight lines to report a package that does not exist, the most useful first."""
_NAMED_VARIABLES = 12
"""Variables that are named; the others are counted."""
_ENVIRONMENT_MATTERS = ("spawn", "exited", "closed", "timeout")
"""Kinds of failure that the environment may cause."""

# ── status SERVER ───────────────────────────────────────────────────────────────────────────────


def show_servers(cli: CliContext, servers: Sequence[str]) -> int:
    """Print one server or several in detail. Returns the highest of their exit codes."""
    replies = [cli.call("mcpd/server", {"server": name}, timeout=STATUS_TIMEOUT) for name in servers]
    documents = [_with_next_step(reply) for reply in replies] if cli.out.json else []
    if len(documents) == 1:
        cli.out.json_document(documents[0])
    elif documents:
        cli.out.json_document(f'{{"servers":[{",".join(documents)}]}}')
    for number, reply in enumerate(replies if not cli.out.json else ()):
        cli.out.lines([*([[]] if number else []), *server_block(reply.value)])
    return max(not_ready_exit(reply.value["server"]) for reply in replies)


def _with_next_step(reply: Reply[ServerDetail]) -> str:
    """Return the daemon's document, byte for byte unless the text form shows another step."""
    step = next_step(reply.value)
    if reply.value.get("next") in (None, step):  # None: an older daemon
        return reply.text
    import json

    return json.dumps({**reply.value, "next": step})


def server_block(detail: ServerDetail, log_lines: int = 10) -> list[Line]:
    """Return the state of a server with its evidence, the end of its log, and the next command."""
    server = detail["server"]
    info = server.get("server_info") or {}
    title = f"{info.get('title') or info.get('name') or ''} {info.get('version', '')}".strip()
    failure = server.get("last_error")
    lines: list[Line] = [[paint(server["name"], "bold"), f" - {title}" if title else ""]]
    rows = [*_state_rows(server), *_connection_rows(detail), *_waiting_rows(server)]
    if failure:
        message = failure["message"]
        rows.append(("last error", [message if server["status"] in READY else paint(message, "red")]))
    lines += labelled_lines([*rows, *_evidence_rows(failure)])
    lines += _warning_lines(server)
    if log_lines and (log := detail.get("log", [])[-log_lines:]):
        lines += [[], *([paint(log_line(line), "dim")] for line in log)]
    return [*lines, [], [paint("next: ", "dim"), next_step(detail)]]


def _state_rows(server: ServerStatus) -> Rows:
    since = format_time(server["since"])
    rows: Rows = [("state", [painted_state(server), f" since {since}"])]
    if degraded := server.get("degraded"):
        rows.append(("but", [paint(degraded, "yellow")]))
    if reason := server.get("reason"):
        rows.append(("reason", in_local_time(reason)))
    if retry_at := server.get("retry_at"):
        at = f"{clock_time(retry_at)}"
        rows.append(("next try", f"{until(retry_at)} ({at})"))
    return rows


def _connection_rows(detail: ServerDetail) -> Rows:
    server = detail["server"]
    rows: Rows = []
    if url := detail.get("url"):
        rows.append(("url", url))
    elif command := detail.get("command") or definition_view.command(detail.get("definition", {})):
        rows.append(("command", shlex.join(command)))
    if pid := server.get("pid"):
        rows.append(("pid", str(pid)))
    if containers := server.get("containers"):
        rows.append(("container", ", ".join(containers)))
    if server.get("protocol_version"):
        rows.append(("protocol", _protocol(server)))
    if second := _second_connection(server):
        rows.append(("connection 2", second))
    provided = ", ".join(
        count(number, noun)
        for number, noun in (
            (server.get("tools", 0), "tool"),
            (server.get("resources", 0), "resource"),
            (server.get("prompts", 0), "prompt"),
        )
    )
    rows.append(("provides", f"{provided}; lists fetched {ago(server.get('updated'))}"))
    failed = ""
    if server["status"] not in READY:
        failed = f"; consecutive failed attempts: {server.get('attempts', 0)}"
    rows.append(("restarts", f"{server.get('restarts', 0)}{failed}"))
    if last_ok := server.get("last_ok"):
        rows.append(("last answer", ago(last_ok)))
    if in_flight := server.get("in_flight"):
        rows.append(("in flight", count(in_flight, "request")))
    return rows


def _protocol(server: ServerStatus) -> str:
    """Return the transport, the revision, the era, and whether there is an HTTP session, but not its id."""
    parts = [server["transport"], str(server.get("protocol_version")), server.get("era") or ""]
    if (session := server.get("session")) is not None:
        parts.append("session" if session else "no session")
    return " · ".join(filter(None, parts))


def _second_connection(server: ServerStatus) -> str:
    """Describe the second connection of a server that speaks both eras; empty if there is none."""
    for second in server.get("connections", ())[1:]:
        failure = second.get("last_error")
        parts = [second.get("revision"), second["status"], failure_summary(failure) if failure else ""]
        return " · ".join(filter(None, parts))
    return ""


def _waiting_rows(server: ServerStatus) -> Rows:
    """Return rows that say who was asked what since when, and which calls wait."""
    rows: Rows = []
    for question in server.get("questions", ()):
        gone = "" if question.get("client_is_connected", True) else ", disconnected"
        text = f": {text}" if (text := question["text"]) else ""
        asked = f"{question['client']}{gone} at {format_time(question['since'])}"
        rows.append(("asked", f"{asked}, by {question['call']}{text}"))
    waiting = server.get("waiting", [])
    for call in waiting:
        what_for = f" for {call['waits_for']}" if call.get("waits_for") else ""
        since = format_time(call["since"])
        rows.append(("waiting", f"{call['call']} of {call['client']}{what_for}, since {since}"))
    if (more := server.get("waiting_calls", 0) - len(waiting)) > 0:
        rows.append(("waiting", f"and {count(more, 'call')} more"))
    return rows


def _evidence_rows(failure: Failure | None) -> Rows:
    """Return how the last process or connection ended, and the lines of its output that explain it most."""
    if not failure:
        return []
    from mcpd.model.status import lines_with_cause  # here, because few servers have failed

    details = exit_details(failure)
    kind = f"{failure['kind']} ({', '.join(details)})" if details else failure["kind"]
    rows: Rows = [("evidence", f"{kind}, {ago(failure['at'])}")]
    if noise := failure.get("noise"):
        rows.append(("stdout", noise))
    if failure.get("signal") == "SIGKILL":
        rows.append(("SIGKILL", _WHO_KILLS))
    stderr = [line for line in failure.get("stderr", ()) if line.strip()]
    return rows + [("stderr", line) for line in lines_with_cause(stderr, _STDERR_LINES)]


def _warning_lines(server: ServerStatus) -> list[Line]:
    return [[paint("   warning: ", "yellow"), warning] for warning in server.get("warnings", ())]


# ── why ─────────────────────────────────────────────────────────────────────────────────────────


def explain(
    detail: ServerDetail, past: Sequence[HistoryEntry], login: Mapping[str, str] | None
) -> Explanation:
    """Return the `--json` form of `mcpctl why`.

    `past` is the whole history, `login` the environment of the login shell if that is to be compared.
    """
    server = detail["server"]
    failure, history = server.get("last_error"), detail.get("history", [])
    requested = [entry for entry in history if entry.get("by")]
    return {
        "name": server["name"],
        "status": server["status"],
        "since": server["since"],
        "down_since": _down_since(server, past),
        "retry_at": server.get("retry_at"),
        "cause": _cause(server),
        "evidence": {name: failure.get(name) for name in _EVIDENCE} if failure else None,
        "connections": server.get("connections", []),
        "url": detail.get("url") or None,
        "binary": _binary(detail, login),
        "environment": _environment(detail, login),
        "withheld": _withheld(detail, login),
        "asked_by": requested[-1] if requested else None,
        "questions": server.get("questions", []),
        "waiting": server.get("waiting", []),
        "waiting_calls": server.get("waiting_calls", 0),
        "history": history,
        "warnings": server.get("warnings", []),
        "next": next_step(detail, login),
    }


def _cause(server: ServerStatus) -> str:
    """Return why the server is in its state. The history says who asked for it."""
    status, reason, failure = server["status"], server.get("reason", ""), server.get("last_error")
    message = failure["message"] if failure else ""
    if status in BROKEN:
        return message or reason or "unknown cause"
    if status == "disabled":
        return reason or "disabled"
    if status == "idle":
        return "not started yet (lazy: starts on first use)"
    if blocked := waiting_summary(server):
        return blocked
    if status == "pending":
        return f"{reason or 'connecting'}{'; the previous attempt failed: ' if message else ''}{message}"
    health = f"connected, but {degraded}" if (degraded := impairment(server)) else "healthy"
    return f"{health}; last failure {ago(failure['at'])}: {message}" if failure else health


def _down_since(server: ServerStatus, history: Sequence[HistoryEntry]) -> str | None:
    """Return when a server that is down was last connected, or first failed, according to the history.

    `since` is no answer, because it changes with each attempt.
    """
    if server["status"] not in (*BROKEN, "pending"):
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
    from mcpd.files.programs import find_elsewhere, find_program

    failure = detail["server"].get("last_error")
    command = detail.get("command") or definition_view.command(detail.get("definition", {}))
    if not command or (failure and failure["kind"] == "config" and not detail.get("executable")):
        return None
    path, program = detail.get("path", ""), command[0]
    found = detail.get("executable") or find_program(program, path)
    in_shell = None if login is None else find_program(program, login.get("PATH", ""))
    return {
        "command": program,
        "found": found,
        "searched": path.split(":") if path else [],
        "in_login_shell": in_shell,
        "elsewhere": [] if found else [each for each in find_elsewhere(program) if each != in_shell],
    }


def _environment(detail: ServerDetail, login: Mapping[str, str] | None) -> Explanation | None:
    """Return how the server's environment differs from a terminal's. Values may be secret: names only."""
    path = detail.get("path")
    if login is None or not path:
        return None
    from ctl.explain import environment

    failure = detail["server"].get("last_error")
    stderr = "\n".join(failure.get("stderr", ())) if failure else ""
    names, inherited = detail.get("env", ()), detail.get("inherited_env", {})
    return {
        "path_only_in_login_shell": environment.missing_directories(login.get("PATH", ""), path),
        "missing": environment.missing_variables(login, names, stderr),
        "different": environment.different_variables(login, inherited, stderr),
    }


def _withheld(detail: ServerDetail, login: Mapping[str, str] | None) -> list[str]:
    """Return the variables of mcpd or a login shell that are not passed, because they hold a password."""
    if not detail.get("path"):
        return []
    from mcpd.config.inherited_environment import withheld_variables

    missing = set(withheld_variables(login or {})).difference(detail.get("env", ()))
    return sorted(missing.union(detail.get("withheld_env", ())))


def explanation_lines(explanation: Explanation, server: ServerStatus, fit: int | None) -> list[Line]:
    status, failure = server["status"], server.get("last_error")
    cause = in_local_time(short_message(explanation["cause"]))
    is_bad = status not in READY or impairment(server)
    state = paint(status, COLORS.get(status, "bold"))
    lines: list[Line] = [
        [paint(f"{server['name']}: ", "bold"), state, f" since {format_time(server['since'])}"],
        ["cause: ", paint(cause, "yellow") if is_bad else cause],
    ]
    if retry_at := server.get("retry_at"):
        lines.append([f"next try {until(retry_at)}"])
    rows: Rows = []
    down_since = explanation["down_since"]
    if down_since and down_since[:19] < server["since"][:19]:
        rows.append(("down since", format_time(down_since)))
    rows += _waiting_rows(server)
    rows += _evidence_rows(failure)
    rows += _binary_rows(explanation["binary"])
    if url := explanation["url"]:
        rows.append(("url", url))
    rows += _environment_rows(explanation["environment"], status, failure)
    if not failure or failure["kind"] != "spawn":
        rows += _withheld_rows(explanation["withheld"])
    if rows:
        lines += [[], *labelled_lines(rows)]
    lines += _warning_lines(server)
    if entries := explanation["history"]:
        lines += [[], *history_table(entries, servers=False, fit=fit)]
    return [*lines, [], [paint("next: ", "dim"), explanation["next"]]]


def _binary_rows(binary: Explanation | None) -> Rows:
    if not binary:
        return []
    command, found, in_shell = binary["command"], binary["found"], binary["in_login_shell"]
    uses_path = "/" not in command
    missing = f"not found ({command})" if uses_path else f"{command} cannot be run"
    rows: Rows = [("executable", found or missing)]
    if not found and uses_path:
        rows.append(("searched", ":".join(binary["searched"])))
    if in_shell and in_shell != found:
        rows.append(("your shell", f"runs {in_shell}"))
    return rows + [("also at", path) for path in binary["elsewhere"][:3]]


def _environment_rows(environment: Explanation | None, status: str, failure: Failure | None) -> Rows:
    """Return how the environment differs, as far as that can be the cause of a failure.

    All differences are shown for a server that is ready.
    """
    if not environment:
        return []
    is_down = status in ("failed", "pending")
    is_cause = failure["kind"] in _ENVIRONMENT_MATTERS if is_down and failure else status in READY
    if not is_cause:
        return []
    rows: Rows = []
    if directories := environment["path_only_in_login_shell"]:
        rows.append(("PATH lacks", ":".join(directories)))
    if is_down and failure and failure["kind"] == "spawn":  # no variable but PATH makes a program appear
        return rows
    if names := environment["missing"]:
        rows.append(
            ("not passed", f"{_first(names)} (set in your shell; pass them with `env` in the definition)")
        )
    if names := environment["different"]:
        rows.append(("differs", f"{_first(names)} (your shell has another value; set it with `env`)"))
    return rows


def _withheld_rows(names: Sequence[str]) -> Rows:
    if not names:
        return []
    from mcpd.config.inherited_environment import to_pass_step

    return [
        ("withheld", f"{name}, which holds a password; to pass it: {to_pass_step(name)}") for name in names
    ]


def _first(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_VARIABLES
    return " ".join(names[:_NAMED_VARIABLES]) + (f" and {more} more" if more > 0 else "")


# ── debug ───────────────────────────────────────────────────────────────────────────────────────


def debug_lines(detail: ServerDetail) -> list[Line]:
    import json

    status = detail["server"]
    lines = server_block(detail, log_lines=0)
    if detail.get("command"):
        started = [
            ("executable", detail.get("executable") or "not found"),
            ("PATH", detail.get("path") or "-"),
            ("directory", detail.get("cwd") or "-"),
            ("environment", " ".join(detail.get("env", ())) or "-"),
        ]
        lines += _section("Process", labelled_lines(started))
    steps: list[Line] = [
        [clock_time(step["at"]), f"{step['ms']:.0f} ms", step["step"], step["outcome"]]
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
    log: list[Line] = [[log_line(line)] for line in detail.get("log", ())]
    return lines + _section(f"Log ({detail.get('log_file') or '-'})", log)


def _section(title: str, lines: list[Line]) -> list[Line]:
    return [[], [paint(title, "bold")], *lines] if lines else []
