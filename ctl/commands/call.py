"""`mcpctl call`: a tool, its progress, its result."""

from __future__ import annotations

import json

import click

from ctl.call_arguments import parse_json_object, parse_pairs, split_target
from ctl.completion_candidates import tool_targets
from ctl.context import CliContext
from ctl.daemon_client import DaemonReply, Json
from ctl.errors import CtlError, DaemonError, ToolError, UsageError
from ctl.status_view import objects, strings
from ctl.terminal_text import format_duration


@click.command(
    epilog="Examples:\n\n\b\n"
    "  mcpctl call get_current_time@time timezone=Europe/Paris\n"
    "  mcpctl call everything get-sum a:=1 b:=2\n"
    '  echo \'{"path": "/tmp"}\' | mcpctl call files/list_directory --args -'
)
@click.argument(
    "words",
    metavar="TOOL@SERVER [KEY=TEXT | KEY:=JSON]...",
    nargs=-1,
    required=True,
    shell_complete=tool_targets,
)
@click.option(
    "--args", "args", metavar="JSON|@FILE|-", help="The arguments as one JSON object; - reads stdin."
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="Silence allowed before the call is given up; progress starts it afresh.",
)
@click.option("--raw", is_flag=True, help="Print MCP's own result, unchanged.")
@click.pass_obj
def call(cli: CliContext, words: tuple[str, ...], args: str | None, timeout: float | None, raw: bool) -> int:
    """Call a tool.

    Also written SERVER/TOOL, SERVER::TOOL, SERVER__TOOL, mcp_SERVER_TOOL or SERVER TOOL. Prints what the tool
    answered; a tool that says it failed is exit 1. Ctrl-C cancels the call on the server.
    """
    server, tool, rest = _resolve_target(cli, words)
    arguments = parse_pairs(rest, parse_json_object(args) if args is not None else {})
    params: dict[str, object] = {"server": server, "tool": tool, "arguments": arguments, "raw": raw}
    if timeout is not None:
        params["timeout"] = timeout
    if trace := cli.trace_context():
        params["_meta"] = trace
    try:
        reply = cli.call("mcpd/call", params, timeout=None, on_note=lambda m, p: _show_progress(cli, m, p))
    except DaemonError as error:
        _add_hint(error, rest)
        raise
    finally:
        cli.out.end_progress()
    return _show_raw(cli, reply) if raw else _show(cli, reply)


def _resolve_target(cli: CliContext, words: tuple[str, ...]) -> tuple[str, str, list[str]]:
    """As `split_target`, and the names that clients see, which only the list of tools can take apart."""
    name, *rest = words or ("",)
    if not name or any(mark in name for mark in "@/:") or (rest and "=" not in rest[0]):
        return split_target(words, "tool")
    try:
        listed = cli.call("mcpd/tools", {}).value["tools"]
    except CtlError:  # what is wrong with the command line does not depend on the daemon
        return split_target(words, "tool")
    tools = [(str(tool["server"]), str(tool["name"])) for tool in objects(listed)]
    for server, tool in tools:
        if name in (f"{server}__{tool}", f"mcp_{server}_{tool}"):
            return server, tool, rest
    having = [f"{tool}@{server}" for server, tool in tools if tool == name]
    if having:
        raise UsageError(f"{name} names no server", hint=f"write {' or '.join(having[:5])}")
    return split_target(words, "tool")


def _show_progress(cli: CliContext, method: str, note: Json) -> None:
    if method != "notifications/progress":
        return
    done, total = note.get("progress"), note.get("total")
    shown = str(note.get("message") or "")
    if isinstance(done, (int, float)) and isinstance(total, (int, float)) and total > 0:
        filled = max(0, min(20, int(20 * done / total)))
        bar = "#" * filled + "-" * (20 - filled)
        shown = f"[{bar}] {done:g}/{total:g} {shown}"
    elif isinstance(done, (int, float)):
        shown = f"{done:g} {shown}"
    cli.out.progress(shown.strip())


def _show_raw(cli: CliContext, reply: DaemonReply) -> int:
    cli.out.json_document(reply.text)
    return 1 if reply.value.get("isError") is True else 0


def _show(cli: CliContext, reply: DaemonReply) -> int:
    result, out = reply.value, cli.out
    success = result.get("success") is True
    if cli.show_json(reply):
        return 0 if success else 1
    for warning in strings(result.get("warnings")):
        out.message(f"warning: {warning}")
    if not success:
        out.message_block(str(result.get("error") or "the tool failed without saying why"))
        return ToolError.exit
    output, data = str(result.get("output") or ""), result.get("data")
    if output:
        out.block(output)
    elif data is not None:
        out.block(json.dumps(data, indent=2, ensure_ascii=False))
    return 0


def _add_hint(error: CtlError, words: list[str]) -> None:
    """What to do next, for the errors that a caller can mend."""
    if error.hint:
        return
    server = error.facts.get("server", "SERVER")
    if error.code == "invalid_arguments":
        as_text = any("=" in word and not word.partition("=")[0].endswith(":") for word in words)
        problems = error.problems if isinstance(error, DaemonError) else []
        as_text = as_text and any(" is not of type " in str(each.get("message")) for each in problems)
        error.hint = (
            "KEY=VALUE is always text; numbers, true, false, lists and objects are written KEY:=JSON"
            if as_text
            else f"mcpctl list-tools {server} --schema shows what it takes"
        )
    elif error.code == "not_ready":
        error.hint = f"mcpctl why {server}"
    elif error.code == "timeout":
        after = error.facts.get("after")
        longer = f" (it was {format_duration(after)})" if isinstance(after, (int, float)) else ""
        error.hint = f"give it longer with --timeout SECONDS{longer}"
