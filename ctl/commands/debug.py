"""`mcpctl debug`: everything known about one server."""

from __future__ import annotations

import json

import click

from ctl.completion_candidates import server_names
from ctl.context import Session
from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import facts, mapping, not_ready_exit, number, objects, quoted, server_block, strings
from ctl.table import table


@click.command(epilog="Examples:\n\n\b\n  mcpctl debug github\n  mcpctl debug github --json")
@click.argument("server", shell_complete=server_names)
@click.pass_obj
def debug(session: Session, server: str) -> int:
    """Everything known about one server.

    What is started and how, which variables it is given, each step of reaching it, the junk on its
    stdout, the end of its log. Secrets are masked. The exit code is that of status SERVER.
    """
    reply = session.call("mcpd/server", {"server": server})
    if not session.show(reply):
        session.out.lines(_everything(reply.value))
    return not_ready_exit(mapping(reply.value.get("server")))


def _everything(detail: Json) -> list[Line]:
    lines = [*server_block(detail, log_lines=0)]
    lines += _section("How it is started", _start(detail))
    steps = objects(detail.get("negotiation"))
    rows: list[Line] = [
        [
            str(s.get("at", "")),
            f"{number(s.get('ms')):.0f} ms",
            str(s.get("step", "?")),
            str(s.get("outcome", "")),
        ]
        for s in steps
    ]
    lines += _section(
        "How it was reached", table(("AT", "TOOK", "STEP", "OUTCOME"), rows, right=(1,)) if rows else []
    )
    status = mapping(detail.get("server"))
    said = facts(
        [
            ("says it can", ", ".join(strings(status.get("capabilities"))) or "-"),
            ("junk lines", str(detail.get("junk_lines", 0))),
            *([("for example", str(detail["junk_sample"]))] if detail.get("junk_sample") else []),
            ("late replies", str(detail.get("late_replies", 0))),
        ]
    )
    lines += _section("What it said", said)
    instructions = str(mapping(status.get("server_info")).get("instructions") or "")
    lines += _section("Its instructions", [[f"  {line}"] for line in instructions.splitlines()])
    definition = json.dumps(detail.get("definition") or {}, indent=2, ensure_ascii=False)
    lines += _section("Its definition", [[f"  {line}"] for line in definition.splitlines()])
    return lines + _section(
        f"Its log ({detail.get('log_file') or '-'})", [[line] for line in strings(detail.get("log"))]
    )


def _start(detail: Json) -> list[Line]:
    command = strings(detail.get("command"))
    if not command:
        return []
    return facts(
        [
            ("command", quoted(command)),
            ("executable", str(detail.get("executable") or "not found")),
            ("PATH", str(detail.get("path") or "-")),
            ("directory", str(detail.get("cwd") or "-")),
            ("environment", " ".join(strings(detail.get("env"))) or "-"),
        ]
    )


def _section(title: str, lines: list[Line]) -> list[Line]:
    return [[], [paint(title, "bold")], *lines] if lines else []
