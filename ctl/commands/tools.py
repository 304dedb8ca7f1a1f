"""`mcpctl list-tools`: what servers can do, and with which arguments."""

from __future__ import annotations

import json

import click

from ctl.completion_candidates import server_names
from ctl.context import Session
from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import mapping, objects, strings
from ctl.table import table
from ctl.terminal_text import count


@click.command(
    "list-tools", epilog="Examples:\n\n\b\n  mcpctl list-tools\n  mcpctl list-tools github --schema"
)
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--schema", is_flag=True, help="Each tool in full: its description and its JSON Schemas.")
@click.pass_obj
def list_tools(session: Session, server: str | None, schema: bool) -> int:
    """The tools of every server, or of one.

    ARGUMENTS: those in brackets may be left out. Call a tool with: mcpctl call TOOL@SERVER key=value
    """
    reply = session.call("mcpd/tools", {"server": server} if server else {})
    if session.show(reply):
        return 0
    tools = objects(reply.value.get("tools"))
    if not tools:
        session.out.talk(
            f"no tools{f' on {server}' if server else ''}; mcpctl status shows how the servers are"
        )
    elif schema:
        for tool in tools:
            session.out.lines(_in_full(tool))
            for member in ("inputSchema", "outputSchema"):
                if member in tool:
                    session.out.line(paint(f"  {member}:", "dim"))
                    session.out.block(_indented(tool[member]))
            session.out.line()
    else:
        rows: list[Line] = [[_public_name(tool), arguments(tool), _description(tool)] for tool in tools]
        session.out.lines(
            table(("TOOL", "ARGUMENTS", "DESCRIPTION"), rows, fit=session.out.columns, squeeze=(1,))
        )
    if isinstance(dropped := reply.value.get("dropped"), int) and dropped:
        session.out.talk(f"{count(dropped, 'tool')} left out, because the server describes them wrongly")
    return 0


def _public_name(tool: Json) -> str:
    return f"{tool.get('name', '?')}@{tool.get('server', '?')}"


def _description(tool: Json) -> str:
    return str(tool.get("description") or tool.get("title") or "-")


def arguments(tool: Json) -> str:
    """The names of its arguments: required ones first, the others in brackets."""
    schema = mapping(tool.get("inputSchema"))
    required = strings(schema.get("required"))
    names = list(mapping(schema.get("properties")))
    shown = [name for name in names if name in required] + [f"[{n}]" for n in names if n not in required]
    return " ".join(shown) or "-"


def _in_full(tool: Json) -> list[Line]:
    lines: list[Line] = [
        [paint(_public_name(tool), "bold"), f"  {tool['title']}" if tool.get("title") else ""]
    ]
    lines += [[f"  {line}"] for line in str(tool.get("description") or "").splitlines()]
    marks = [f"{key}={value}" for key, value in mapping(tool.get("annotations")).items() if key != "title"]
    if marks:
        lines.append([paint("  annotations: ", "dim"), ", ".join(marks)])
    return lines


def _indented(value: object) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "\n".join(f"  {line}" for line in text.splitlines())
