"""`mcpctl emit-types`: writes the tools of servers as typed functions of a programming language."""

from __future__ import annotations

import click

from ctl.cli.completion import server_names
from ctl.cli.errors import UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import objects
from ctl.commands.tools_resources_prompts import report_missing
from ctl.emit.python import Python
from ctl.emit.types import Language
from ctl.emit.typescript import TypeScript
from mcpd.model.tool_names import ClientStyle, public_names


@click.command(
    "emit-types",
    epilog="Examples:\n\n\b\n  mcpctl emit-types --python > tools.py\n"
    "  mcpctl emit-types --typescript git time > tools.ts",
)
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option("--python", "language", flag_value="python", help="For mcpd.client.")
@click.option("--typescript", "language", flag_value="typescript", help="For the official TypeScript SDK.")
@click.option("--sync", is_flag=True, help="With --python: for mcpd.client.sync, without await.")
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.pass_obj
def emit_types(
    cli: CliContext, servers: tuple[str, ...], language: str | None, sync: bool, profile: str | None
) -> int:
    """Write typed functions for tools to stdout.

    Without SERVER, for the tools of all servers. The functions are sorted, so that the file changes only when
    a tool does.
    """
    if language is None or (sync and language != "python"):
        raise UsageError("emit-types needs --python [--sync] or --typescript")
    if profile is not None:
        cli.call("mcpd/identify", {"profile": profile})
    replies = [cli.call("mcpd/tools", {"server": each}) for each in dict.fromkeys(servers)]
    replies = replies or [cli.call("mcpd/tools")]
    tools = {(str(t["server"]), str(t["name"])): t for reply in replies for t in reply.value["tools"]}
    writer: Language = TypeScript() if language == "typescript" else Python(is_sync=sync)
    for name, pair in public_names(ClientStyle.UNDERSCORES, sorted(tools)).items():
        writer.add_tool(tools[pair], name)
    if cli.json_option:
        cli.out.json_value({"language": language, "text": writer.file()})
    else:
        cli.out.block(writer.file().rstrip("\n"))
    for reply in replies:
        report_missing(cli, objects(reply.value.get("missing")))
    return 0
