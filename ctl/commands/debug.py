"""`mcpctl debug`: everything known about one server."""

from __future__ import annotations

import json

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import (
    labelled_lines,
    mapping,
    not_ready_exit,
    number,
    objects,
    server_block,
    shell_join,
    strings,
)
from ctl.table import table


@click.command(epilog="Examples:\n\n\b\n  mcpctl debug github\n  mcpctl debug github --json")
@click.argument("server", shell_complete=server_names)
@click.pass_obj
def debug(cli: CliContext, server: str) -> int:
    """Everything known about one server.

    What is started and how, which variables it is given, each step of reaching it, the junk on its
    stdout, the end of its log. Secrets are masked. The exit code is that of status SERVER.
    """
    reply = cli.call("mcpd/server", {"server": server})
    if not cli.show_json(reply):
        cli.out.lines(_detail_lines(reply.value))
    return not_ready_exit(mapping(reply.value.get("server")))


def _detail_lines(detail: Json) -> list[Line]:
    lines = [*server_block(detail, log_lines=0)]
    lines += _section("How it is started", _start_lines(detail))
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
    said = labelled_lines(
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


def _start_lines(detail: Json) -> list[Line]:
    command = strings(detail.get("command"))
    if not command:
        return []
    return labelled_lines(
        [
            ("command", shell_join(command)),
            ("executable", str(detail.get("executable") or "not found")),
            ("PATH", str(detail.get("path") or "-")),
            ("directory", str(detail.get("cwd") or "-")),
            ("environment", " ".join(strings(detail.get("env"))) or "-"),
        ]
    )


def _section(title: str, lines: list[Line]) -> list[Line]:
    return [[], [paint(title, "bold")], *lines] if lines else []
