"""`mcpctl status SERVER`: one server in detail, with the evidence and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint
from ctl.cli.text import ago, clock_time, count, format_time, in_local_time, log_line, time_left, until
from ctl.explain.next_steps import next_step
from ctl.show.status import (
    READY,
    STATUS_TIMEOUT,
    exit_details,
    failure_summary,
    not_ready_exit,
    painted_state,
)
from mcpd.config import definition_view

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import Reply, ServerDetail, ServerStatus

_SECOND_CONNECTION = "connection 2"
"""How the daemon names the step, and the label of the row."""


def show_servers(cli: CliContext, servers: Sequence[str], *, utc: bool = False) -> int:
    """Print one server or several in detail. Returns the highest of their exit codes."""
    replies = [cli.call("mcpd/server", {"server": name}, timeout=STATUS_TIMEOUT) for name in servers]
    documents = [_with_next_step(reply) for reply in replies] if cli.out.json else []
    if len(documents) == 1:
        cli.out.json_document(documents[0])
    elif documents:
        cli.out.json_document(f'{{"servers":[{",".join(documents)}]}}')
    for number, reply in enumerate(replies if not cli.out.json else ()):
        cli.out.lines([*([[]] if number else []), *server_block(reply.value, utc=utc)])
    return max(not_ready_exit(reply.value["server"]) for reply in replies)


def _with_next_step(reply: Reply[ServerDetail]) -> str:
    """Return the daemon's document, byte for byte unless the text form shows another step."""
    step = next_step(reply.value)
    if reply.value.get("next") in (None, step):  # None: an older daemon
        return reply.text
    import json

    return json.dumps({**reply.value, "next": step})


def server_block(detail: ServerDetail, log_lines: int = 10, *, utc: bool = False) -> list[Line]:
    """Return the state of a server with its evidence, the end of its log, and the next command."""
    server = detail["server"]
    info = server.get("server_info") or {}
    title = f"{info.get('title') or info.get('name') or ''} {info.get('version', '')}".strip()
    lines: list[Line] = [[paint(server["name"], "bold"), f" - {title}" if title else ""]]
    lines += labelled_lines(_rows(detail, server, utc=utc))
    lines += _failure_block(server)
    lines += ([paint("   warning: ", "yellow"), warning] for warning in server.get("warnings", ()))
    if log_lines and (log := detail.get("log", [])[-log_lines:]):
        lines += [[], *([paint(log_line(line, utc=utc), "dim")] for line in log)]
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
    elif command := detail.get("command") or definition_view.command(detail.get("definition", {})):
        rows.append(("command", shlex.join(command)))
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


def waiting_rows(server: ServerStatus, *, utc: bool) -> list[tuple[str, str]]:
    """Return rows that say who was asked what since when, and which calls wait."""
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
    """Return the transport, the revision, the era, and whether there is an HTTP session, but not its id."""
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
