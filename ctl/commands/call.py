"""`mcpctl call` and `try`: call a tool, of a server that mcpd has or of one that runs for this call only."""

from __future__ import annotations

import base64
import json
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ctl.cli.arguments import (
    SecondsType,
    is_argument,
    needs_schema,
    parse_arguments,
    parse_json_object,
    seconds_option,
    split_target,
)
from ctl.cli.completion import tool_targets
from ctl.cli.errors import (
    AuthNeeded,
    CtlError,
    DaemonError,
    NotFound,
    ServerNotReady,
    TimedOut,
    ToolError,
    UsageError,
    WriteFailed,
)
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping
from ctl.commands.add_remove_apply import directory_elsewhere, is_url
from ctl.commands.tools_resources_prompts import print_tools
from ctl.daemon.client import Json
from ctl.show.progress import change_each, state_phrase, status_summary
from mcpd.model.advice import temporary_name, without_name

if TYPE_CHECKING:
    from ctl.api_types import CallParams, CallResult, Reply, ToolsResult

_LIST_TIMEOUT = 60.0
"""Seconds for the list of tools; a shorter `--timeout` limits it, too."""


class _CallCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = "mcpctl call --help   (an argument of the tool is written KEY=VALUE)"
            near = {"suggestions": [*error.possibilities]} if error.possibilities else {}
            raise UsageError(error.format_message(), hint=hint, **near) from None


@click.command(
    cls=_CallCommand,
    epilog="Examples:\n\n\b\n"
    "  mcpctl call get_current_time@time timezone=Europe/Paris\n"
    "  mcpctl call everything get-sum a=1 b=2\n"
    """  mcpctl call get-sum@everything '{"a": 1, "b": 2}'\n"""
    '  echo \'{"path": "/tmp"}\' | mcpctl call files/list_directory --args -',
)
@click.argument(
    "words",
    metavar="TOOL@SERVER [KEY=VALUE | KEY:=JSON | JSON]...",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=tool_targets,
)
@click.option("--args", "args", metavar="JSON|@FILE|-", help="Arguments as a JSON object; - reads stdin.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=SecondsType(min=0, min_open=True),
    help="Give up this long after the call was sent, or after its last progress.",
)
@click.option("--raw", is_flag=True, help="Print the MCP result unchanged.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the output to this file, an image or sound as its bytes.",
)
@click.pass_obj
def call(
    cli: CliContext,
    words: tuple[str, ...],
    args: str | None,
    timeout: float | None,
    raw: bool,
    output: Path | None,
) -> int:
    """Call a tool.

    @SERVER may be omitted if only one server has TOOL. You can also write SERVER.TOOL, SERVER/TOOL,
    SERVER::TOOL, SERVER__TOOL, mcp__SERVER__TOOL, mcp_SERVER_TOOL or SERVER TOOL.
    The tool's schema decides whether a VALUE is a number, true, a list or text. Prints the tool's output;
    exits with 1 if the tool reports an error. Ctrl-C cancels the call on the server.
    """
    if raw and output is not None:
        raise UsageError("--raw and --output exclude each other", hint="write --raw > FILE")
    try:
        server, tool, rest = _resolve_target(cli, words)
        began = time.monotonic()
        schema = _schema(cli, server, tool, timeout) if needs_schema(rest) else {}
        if timeout is not None:
            timeout = max(timeout - round(time.monotonic() - began, 1), 0.1)
        return call_tool(cli, server, tool, rest, schema, args, timeout, raw, output)
    except CtlError as error:
        if not isinstance(error, DaemonError):  # the daemon says it itself
            error.details.setdefault("may_have_run", False)
        raise


def call_tool(
    cli: CliContext,
    server: str,
    tool: str,
    rest: list[str],
    schema: Json,
    args: str | None,
    timeout: float | None,
    raw: bool,
    output: Path | None = None,
) -> int:
    """Call a tool, print its result, and return the exit code.

    `rest` are its arguments on the command line, which may need the tool's `schema`. The others are the
    options of `mcpctl call`.
    """
    base = parse_json_object(args) if args is not None else {}
    arguments = parse_arguments(rest, schema, base)
    params: CallParams = {"server": server, "tool": tool, "arguments": arguments, "raw": raw or bool(output)}
    if timeout is not None:
        params["timeout"] = timeout
    if trace := cli.trace_context():
        params["_meta"] = trace
    try:
        reply = cli.call(
            "mcpd/call", params, timeout=None, on_note=lambda method, note: _show_progress(cli, method, note)
        )
    except DaemonError as error:
        _add_hint(error)
        raise
    finally:
        cli.out.end_progress()
    cli.has_called = True
    if output is not None:
        return _write_output(cli, reply.value, output)
    return _show_raw(cli, reply) if raw else _show_result(cli, reply)


def _resolve_target(cli: CliContext, words: tuple[str, ...]) -> tuple[str, str, list[str]]:
    """Like `split_target`, but also resolve qualified names, for which the list of tools is needed."""
    name, *rest = words
    if any(mark in name for mark in "@/:") or (rest and not is_argument(rest[0])):
        return split_target(words, "tool")
    listed = cli.call("mcpd/tools").value["tools"]
    found = _find_tools(cli, name, [(str(tool["server"]), str(tool["name"])) for tool in listed])
    if len(found) == 1:
        return (*found[0], rest)
    targets = [f"{tool}@{server}" for server, tool in found]
    if not targets and any(tool["server"] == name for tool in listed):
        raise UsageError(f"which tool of {name}?", hint=f"mcpctl list-tools {name}")
    if not targets:
        unknown = NotFound(f"no server has a tool '{name}'")
        unknown.suggest(name, {str(tool["name"]) for tool in listed}, "")
        if not unknown.hint:
            return split_target(words, "tool")
        unknown.code = "unknown_tool"  # as the daemon calls it
        raise unknown
    message = f"'{name}' does not name one tool of one server"
    raise UsageError(message, hint=f"use {' or '.join(targets[:5])}")


def _find_tools(cli: CliContext, name: str, listed: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the tools that a qualified name may mean, also those of servers that have not started yet."""
    from mcpd.model.tool_names import tools_named

    found = tools_named(name, listed) or [pair for pair in listed if pair[1] == name]
    if found or not ("__" in name or "." in name or name.startswith("mcp_")):
        return found
    servers = cli.call("mcpd/status").value["servers"]
    return tools_named(name, listed, [str(server["name"]) for server in servers])


def _schema(cli: CliContext, server: str, tool: str, timeout: float | None) -> Json:
    """Return the input schema of a tool; empty if it is not known. Then the call itself reports why.

    Raises TimedOut if the server does not list its tools within `timeout` seconds.
    """
    limit = _LIST_TIMEOUT if timeout is None else min(timeout, _LIST_TIMEOUT)
    try:
        listed = cli.call("mcpd/tools", {"server": server}, timeout=limit).value["tools"]
    except TimedOut:
        if limit == _LIST_TIMEOUT:
            return {}
        message = (
            f"{server} did not list its tools, which tell the types of the arguments, within {limit:g} s"
        )
        raise TimedOut(message, hint=f"mcpctl why {server}", server=server) from None
    except CtlError:
        return {}
    return next((mapping(each.get("inputSchema")) for each in listed if each.get("name") == tool), {})


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


def _show_raw(cli: CliContext, reply: Reply[Json]) -> int:
    cli.out.json_document(reply.text)
    return 1 if reply.value.get("isError") is True else 0


def _write_output(cli: CliContext, result: Json, path: Path) -> int:
    """Write the text of an MCP result, or the bytes of its only block if that is not text."""
    content = result.get("content")
    blocks = [mapping(each) for each in content] if isinstance(content, list) else []
    text = "\n".join(str(each.get("text")) for each in blocks if each.get("type") == "text")
    if result.get("isError") is True:
        cli.out.message_block(text or "the tool failed without an error message")
        return ToolError.exit
    data = (text or json.dumps(result.get("structuredContent", content))).encode()
    try:
        if not text and len(blocks) == 1 and isinstance(encoded := blocks[0].get("data"), str):
            data = base64.b64decode(encoded)
        path.write_bytes(data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"the tool's data is invalid ({error})"
        message = f"cannot write {path}: {reason}; the tool has run"
        raise WriteFailed(message, hint="call it again only if that does no harm") from None
    cli.out.answer({"file": str(path), "bytes": len(data)}, f"wrote {len(data)} bytes to {path}")
    return 0


def _show_result(cli: CliContext, reply: Reply[CallResult]) -> int:
    """Print the result of a tool. Returns the exit code."""
    result, out = reply.value, cli.out
    success = result["success"]
    if cli.show_json(reply):
        return 0 if success else 1
    for warning in result.get("warnings", ()):
        out.warning(warning)
    if not success:
        out.message_block(result.get("error") or "the tool failed without an error message")
        return ToolError.exit
    if output := result.get("output"):
        out.block(output)
    elif (data := result.get("data")) is not None:
        out.block(json.dumps(data, indent=2, ensure_ascii=False))
    return 0


def _add_hint(error: DaemonError) -> None:
    """Add the next step to errors that the caller can fix."""
    if error.hint:
        return
    server = error.details.get("server", "SERVER")
    if error.code == "invalid_arguments":
        error.hint = f"mcpctl list-tools {server} --schema shows the arguments; KEY:=JSON passes any value"
    elif _waited_for_approval(error):
        error.hint = "call it again, and answer with mcpctl approvals while it waits"
    elif error.code == "timeout":
        after = error.details.get("after")
        limit = f" (was {after:g} s)" if isinstance(after, (int, float)) else ""
        error.hint = f"raise the limit with --timeout SECONDS{limit}"


def _waited_for_approval(error: DaemonError) -> bool:
    """Return whether a call failed because nobody answered in time, which has no code of its own."""
    return error.code == "denied" and "was not approved within" in error.message


class _TryCommand(click.Command):
    """Splits the command line at `--`: options, then the server's command, then a tool with its arguments.

    The address of a remote server stands before the first `--`, and the tool follows. The tool and the rest
    are parsed as in `mcpctl call`: the parameter `tool` has the parameters of that command, or nothing.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        words, command = tuple(args[end + 1 :]), ctx.params.get("command", ())
        if not is_url(command):
            middle = words.index("--") if "--" in words else len(words)
            command, words = (*command, *words[:middle]), words[middle + 1 :]
        ctx.params["command"], ctx.params["tool"] = command, _parse_tool(ctx, words)
        return rest


def _parse_tool(ctx: click.Context, words: tuple[str, ...]) -> dict[str, Any]:
    if not words or ctx.resilient_parsing:
        return {}
    root: click.Command = ctx.find_root().command
    command = root.get_command(ctx, "call") if isinstance(root, click.Group) else call  # with common options
    assert command is not None
    with command.make_context("call", list(words), parent=ctx) as parsed:
        return parsed.params


@click.command(
    "try",
    cls=_TryCommand,
    epilog="Examples:\n\n\b\n  mcpctl try -- uvx mcp-server-time\n"
    "  mcpctl try -- uvx mcp-server-time -- get_current_time timezone=Europe/Paris\n"
    "  mcpctl try https://example.com/mcp -- search query=mcp",
)
@click.argument("command", metavar="{URL | -- COMMAND [ARG]...} [-- TOOL [ARGUMENT]...]", nargs=-1)
@seconds_option("--wait", 120.0, "How long to wait for the connection.")
@click.pass_obj
def try_(cli: CliContext, command: tuple[str, ...], wait: float, tool: dict[str, Any]) -> int:
    """Run a server without adding it.

    Lists its tools, or calls TOOL with arguments and options as in mcpctl call. The server is stopped at the
    end and is not saved in the configuration file.
    """
    if not command:
        raise UsageError("which server?", hint="mcpctl try -- COMMAND [ARG]..., or mcpctl try URL")
    definition: dict[str, object] = {"url": command[0]}
    if not is_url(command):
        definition = {"command": command[0], "args": [*command[1:]]}
        definition |= directory_elsewhere(command, None, cli.host) if cli.host else {"cwd": os.getcwd()}
    name, label = temporary_name(os.getpid()), shlex.join(command)
    try:
        return _run(cli, name, definition, tool, wait)
    except CtlError as error:
        if not isinstance(error, DaemonError):  # the daemon says it itself
            error.details.setdefault("may_have_run", False)
        # Nobody knows this name, and no other command can use it.
        error.message = without_name(error.message, name)
        error.hint = "" if name in error.hint else error.hint
        if error.details.get("server") == name:
            error.details["server"] = label
        raise


def _run(cli: CliContext, name: str, definition: Json, asked_tool: dict[str, Any], wait: float) -> int:
    """Add the server, use it, and remove it."""
    tool, *rest = asked_tool.pop("words", ("",))
    try:
        try:
            listed = _start(cli, name, definition, wait)
            if not tool:
                return _show_tools(cli, listed)
            schema = _schema_of(listed["tools"], name, tool)
        except CtlError as error:
            error.details["may_have_run"] = False
            raise
        return call_tool(cli, name, tool, rest, schema, **asked_tool)
    finally:
        with suppress(CtlError):  # the daemon may have stopped, and the server with it
            cli.call("mcpd/remove", {"server": name, "save": False}, timeout=30.0)


def _start(cli: CliContext, name: str, definition: Json, wait: float) -> ToolsResult:
    """Add the server, connect it, and return its tools."""
    reply = cli.call("mcpd/add", {"server": name, "definition": definition, "save": False, "replace": False})
    if problems := reply.value.get("errors"):
        raise UsageError(problems[0]["message"], hint=problems[0].get("fix", ""))
    _connect(cli, name, definition, wait)
    return cli.call("mcpd/tools", {"server": name}).value


def _show_tools(cli: CliContext, listed: ToolsResult) -> int:
    if cli.out.json:
        cli.out.json_value(listed)
    else:
        print_tools(cli, listed["tools"], with_server=False)
    return 0


def _schema_of(tools: Sequence[Json], server: str, name: str) -> Json:
    """Return the schema of a tool's arguments. Raises NotFound."""
    for each in tools:
        if each.get("name") == name:
            return mapping(each.get("inputSchema"))
    names = [str(each.get("name")) for each in tools]
    error = NotFound(f"the server has no tool '{name}'", server=server)
    error.code = "unknown_tool"  # as the daemon calls it
    raise error.suggest(name, names, ", ".join(names))


def _connect(cli: CliContext, name: str, definition: Json, wait: float) -> None:
    """Wait until the server is connected. Raises ServerNotReady, whose exit code is 4 if it needs a login."""
    asked = [{"server": name, "wait": wait}]
    (status,), *_ = change_each(cli, "mcpd/connect", asked, timeout=wait + 30.0, show=False)
    state = status["status"]
    if state == "connected":
        return
    if not cli.out.json:
        failure = status.get("last_error")
        for line in failure.get("stderr", []) if failure else []:
            cli.out.message(line)
    message = f"the server {state_phrase(status)}{status_summary({**status, 'retry_at': None})}"
    error = ServerNotReady(message, server=name, state=state)
    if state == "needs-auth":  # as for `mcpctl call`
        error.exit = AuthNeeded.exit
        added = f"mcpctl add NAME {shlex.quote(str(definition['url']))}"
        header = "--header 'Authorization=Bearer TOKEN'"
        error.hint = f"{added} && mcpctl login NAME   (or with a token: {added} {header})"
    elif state == "pending":
        error.hint = f"wait longer with --wait SECONDS (was {wait:g} s)"
    raise error
