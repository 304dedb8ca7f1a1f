"""`mcpctl try`: run a server without adding it, to list its tools or call one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from ctl.cli.arguments import seconds_option
from ctl.cli.errors import AuthNeeded, CtlError, DaemonError, NotFound, ServerNotReady, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping
from ctl.commands.add_remove_apply import URL_SCHEMES
from ctl.commands.call import call, call_tool
from ctl.commands.tools_resources_prompts import print_tools
from ctl.daemon.client import Json
from ctl.show.progress import change_each, state_phrase, status_summary
from mcpd.model.advice import temporary_name, without_name


class _TryCommand(click.Command):
    """Splits the command line at `--`: options, then the server's command, then a tool with its arguments.

    The address of a remote server stands before the first `--`, and the tool follows. The tool and the rest
    are parsed as in `mcpctl call`: the parameter `tool` has the parameters of that command, or nothing.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        words, command = tuple(args[end + 1 :]), ctx.params.get("command", ())
        if not ctx.params["url"] and len(command) == 1 and command[0].startswith(URL_SCHEMES):
            ctx.params["url"], command = command[0], ()
        if not ctx.params["url"]:
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
@click.option("--url", metavar="URL", help="The same as URL.")
@seconds_option("--wait", 120.0, "How long to wait for the connection.")
@click.pass_obj
def try_(
    cli: CliContext, command: tuple[str, ...], url: str | None, wait: float, tool: dict[str, Any]
) -> int:
    """Run a server without adding it.

    Lists its tools, or calls TOOL with arguments and options as in mcpctl call. The server is stopped at the
    end and is not saved in the configuration file.
    """
    if bool(command) == (url is not None):
        raise UsageError("which server?", hint="mcpctl try -- COMMAND [ARG]..., or mcpctl try URL")
    definition: dict[str, object] = {"url": url} if url else {"command": command[0], "args": [*command[1:]]}
    if not url:
        definition["cwd"] = os.getcwd()
    name, label = temporary_name(os.getpid()), url or shlex.join(command)
    try:
        return _run(cli, name, definition, tool, wait)
    except CtlError as error:
        # Nobody knows this name, and no other command can use it.
        error.message = without_name(error.message, name)
        error.hint = "" if name in error.hint else error.hint
        if error.details.get("server") == name:
            error.details["server"] = label
        raise


def _run(cli: CliContext, name: str, definition: Json, asked_tool: dict[str, Any], wait: float) -> int:
    """Add the server, use it, and remove it."""
    with _before_call():
        reply = cli.call(
            "mcpd/add", {"server": name, "definition": definition, "save": False, "replace": False}
        )
        if problems := reply.value.get("errors"):
            raise UsageError(problems[0]["message"], hint=problems[0].get("fix", ""))
    try:
        with _before_call():
            _connect(cli, name, definition, wait)
            listed = cli.call("mcpd/tools", {"server": name}).value
            if not asked_tool:
                if cli.out.json:
                    cli.out.json_value(listed)
                else:
                    print_tools(cli, listed["tools"], with_server=False)
                return 0
            tool, *rest = asked_tool.pop("words")
            found = [each for each in listed["tools"] if each.get("name") == tool]
            if not found:
                names = [str(each.get("name")) for each in listed["tools"]]
                error = NotFound(f"the server has no tool '{tool}'", server=name)
                error.code = "unknown_tool"  # as the daemon calls it
                raise error.suggest(tool, names, ", ".join(names))
        return call_tool(cli, name, tool, rest, mapping(found[0].get("inputSchema")), **asked_tool)
    except CtlError as error:
        if not isinstance(error, DaemonError):  # the daemon says it itself
            error.details.setdefault("may_have_run", False)
        raise
    finally:
        with suppress(CtlError):  # the daemon may have stopped, and the server with it
            cli.call("mcpd/remove", {"server": name, "save": False}, timeout=30.0)


@contextmanager
def _before_call() -> Iterator[None]:
    """Add to errors that no tool has run."""
    try:
        yield
    except CtlError as error:
        error.details["may_have_run"] = False
        raise


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
