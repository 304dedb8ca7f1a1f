"""`mcpctl run`: run a script in a sandbox in which tools are functions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ctl.cli.errors import CtlError, DaemonError, NotFound, ToolError, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping

if TYPE_CHECKING:
    from ctl.api_types import CallParams
    from mcpd.process.code_sandbox import FunctionCall


class ScriptFailed(CtlError):
    code, exit = "script_failed", 1  # the script is invalid, raised an exception, or exceeded a limit


@click.command(
    epilog="Example:\n\n\b\n"
    """  echo 'time__get_current_time(timezone="UTC")' | mcpctl run -"""
)
@click.argument("script", metavar="SCRIPT|-", type=click.Path(dir_okay=False, allow_dash=True))
@click.pass_obj
def run(cli: CliContext, script: str) -> int:
    """Run a Python script that calls tools, in a sandbox.

    The sandbox has no files and no network. Each tool is a function SERVER__TOOL with keyword arguments. It
    returns structured content, parsed JSON or text, and raises RuntimeError if the tool fails. Prints what
    the script prints, and the value of its last expression. Requires the extra `code`.
    """
    from mcpd.process.code_sandbox import CodeFailed, CodeSandbox, function_name, is_installed

    if not is_installed():
        raise UsageError(
            "mcpctl is installed without the extra `code`",
            hint="pipx inject mcp-connection-daemon pydantic-monty   (or pip install it next to mcpctl)",
        )
    try:
        code = sys.stdin.read() if script == "-" else Path(script).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read {script}: {error}") from None
    listed = cli.call("mcpd/tools").value["tools"]
    named = {f"{each['server']}__{each['name']}": each for each in listed}
    tools = {function_name(name): each for name, each in named.items()} | named
    schemas = {name: mapping(each.get("inputSchema")) for name, each in tools.items()}
    try:
        with closing(CodeSandbox()) as sandbox:
            step = sandbox.start(code, schemas)
            while not isinstance(step, str):
                step = sandbox.resume({call.id: _answer(cli, tools, call) for call in step})
    except CodeFailed as error:
        raise ScriptFailed(f"the script failed: {error}") from None
    finally:
        cli.out.end_progress()
    if cli.out.json:
        cli.out.json_value({"output": step})
    elif step:
        cli.out.block(step.removesuffix("\n"))
    return 0


def _answer(cli: CliContext, tools: Mapping[str, Mapping[str, object]], call: FunctionCall) -> object:
    """Return the value of a call, or the exception that it raises in the script."""
    from mcpd.process.code_sandbox import value_in_code

    tool = tools.get(call.function)
    if tool is None:
        return NotFound(f"no tool is called {call.function!r}")
    cli.out.progress(f"{tool['name']}@{tool['server']}")
    params: CallParams = {
        "server": str(tool["server"]),
        "tool": str(tool["name"]),
        "arguments": dict(call.arguments),
    }
    try:
        result = cli.call("mcpd/call", params, timeout=None).value
    except DaemonError as error:
        return error
    if not result["success"]:
        return ToolError(result.get("error") or "the tool failed without an error message")
    return value_in_code(result.get("output") or "", result.get("data"))
