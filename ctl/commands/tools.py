"""`mcpctl list-tools`: what servers can do, and with which arguments."""

from __future__ import annotations

import json

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
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
def list_tools(cli: CliContext, server: str | None, schema: bool) -> int:
    """The tools of every server, or of one.

    ARGUMENTS: those in brackets may be left out. Call a tool with: mcpctl call TOOL@SERVER key=value
    """
    reply = cli.call("mcpd/tools", {"server": server} if server else {})
    if cli.show_json(reply):
        return 0
    tools = objects(reply.value.get("tools"))
    if not tools:
        cli.out.message(
            f"no tools{f' on {server}' if server else ''}; mcpctl status shows how the servers are"
        )
    elif schema:
        for tool in tools:
            cli.out.lines(_tool_details(tool))
            for member in ("inputSchema", "outputSchema"):
                if member in tool:
                    cli.out.line(paint(f"  {member}:", "dim"))
                    cli.out.block(_indented(tool[member]))
            cli.out.line()
    else:
        rows: list[Line] = [[_public_name(tool), argument_list(tool), _description(tool)] for tool in tools]
        cli.out.lines(table(("TOOL", "ARGUMENTS", "DESCRIPTION"), rows, fit=cli.out.columns, squeeze=(1,)))
    if isinstance(dropped := reply.value.get("dropped"), int) and dropped:
        cli.out.message(f"{count(dropped, 'tool')} left out, because the server describes them wrongly")
    return 0


def _public_name(tool: Json) -> str:
    return f"{tool.get('name', '?')}@{tool.get('server', '?')}"


def _description(tool: Json) -> str:
    return str(tool.get("description") or tool.get("title") or "-")


def argument_list(tool: Json) -> str:
    """The names of its arguments: required ones first, the others in brackets."""
    schema = mapping(tool.get("inputSchema"))
    required = strings(schema.get("required"))
    names = list(mapping(schema.get("properties")))
    shown = [name for name in names if name in required] + [f"[{n}]" for n in names if n not in required]
    return " ".join(shown) or "-"


def _tool_details(tool: Json) -> list[Line]:
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
