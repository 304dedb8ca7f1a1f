"""`mcpctl version`, `help`, `exit-codes`, `completion` and `shutdown`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ctl.cli.completion import SHELLS, command_names
from ctl.cli.errors import EXIT_CODES, DaemonUnreachable
from ctl.cli.invocation import CliContext

if TYPE_CHECKING:
    from ctl.api_types import VersionInfo


@click.command(epilog="Examples:\n\n\b\n  mcpctl version\n  mcpctl version --json")
@click.pass_obj
def version(cli: CliContext) -> int:
    """Show the versions of mcpctl and the running daemon.

    Never starts the daemon.
    """
    from mcpd import __version__

    cli.may_start = False
    daemon: VersionInfo | None = None
    with suppress(DaemonUnreachable):
        daemon = cli.call("mcpd/version", timeout=10.0).value
    if cli.out.json:
        cli.out.json_value({"mcpctl": __version__, "daemon": daemon})
        return 0
    cli.out.line(f"mcpctl {__version__}")
    if daemon is None:
        cli.out.line("mcpd   not running")
        return 0
    about = f"pid {daemon['pid']}, API {daemon['api']}, Python {daemon['python']}"
    cli.out.line(f"mcpd   {daemon['version']} ({about})")
    cli.out.line(f"MCP    {', '.join(daemon['protocol_versions'])}")
    if daemon["version"] != __version__:
        cli.out.message("note: the daemon has another version; update it with: mcpctl daemon restart")
    return 0


@click.command("help", epilog="Examples:\n\n\b\n  mcpctl help call\n  mcpctl help exit-codes")
@click.argument("words", metavar="[COMMAND | exit-codes]", nargs=-1, shell_complete=command_names)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Show help for a command, or the exit codes."""
    cli: CliContext = ctx.obj
    if words == ("exit-codes",):
        ctx.invoke(exit_codes)
        return 0
    from ctl.cli.app import app

    parent = app.make_context("mcpctl", [], obj=cli, resilient_parsing=True)
    command: click.Command = app  # always the command of `parent`
    for word in words:
        if not isinstance(command, click.Group):
            break
        name, found, _ = command.resolve_command(parent, [word])
        if found is None:
            break
        command, parent = found, found.make_context(name, [], parent, resilient_parsing=True)
    cli.out.block(parent.get_help())
    return 0


@click.command("exit-codes")
@click.pass_obj
def exit_codes(cli: CliContext) -> int:
    """List the exit codes."""
    if cli.out.json:
        cli.out.json_value({"exit_codes": [{"code": code, "meaning": text} for code, text in EXIT_CODES]})
    else:
        cli.out.lines([f"{code:>4}  {meaning}"] for code, meaning in EXIT_CODES)
    return 0


@click.command()
@click.pass_obj
def shutdown(cli: CliContext) -> int:
    """Stop the daemon and all servers."""
    cli.may_start = False
    reply = cli.call("mcpd/shutdown")
    if not cli.show_json(reply):
        cli.out.line("mcpd is stopping")
    return 0


@click.command(
    epilog='Examples:\n\n\b\n  eval "$(mcpctl completion bash)"\n'
    "  mcpctl completion fish > ~/.config/fish/completions/mcpctl.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(cli: CliContext, shell: str) -> int:
    """Print the completion script for a shell.

    Names of servers and tools come from the running daemon; completion never starts it. The script is printed
    as JSON only with --json, not because of MCPCTL_OUTPUT.
    """
    app = click.get_current_context().find_root().command
    script = SHELLS[shell](app, {}, "mcpctl", "_MCPCTL_COMPLETE").source()
    if cli.out.json and not cli.out.format_is_default:
        cli.out.json_value({"shell": shell, "script": script})
    else:
        cli.out.block(script)
    return 0
