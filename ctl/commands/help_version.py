"""`mcpctl version`, `help`, `exit-codes`, `completion`, `shutdown`, `ui` and `bridge`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ctl.cli.arguments import surface_option
from ctl.cli.completion import SHELLS, command_names, server_names
from ctl.cli.errors import EXIT_CODES, DaemonUnreachable, UsageError
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
    if daemon["version"] != __version__ and not cli.elsewhere:
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

    Names of servers and tools come from the running daemon; completion never starts it.
    """
    app = click.get_current_context().find_root().command
    script = SHELLS[shell](app, {}, "mcpctl", "_MCPCTL_COMPLETE").source()
    if cli.json_option:
        cli.out.json_value({"shell": shell, "script": script})
    else:
        cli.out.block(script)
    return 0


@click.command(epilog="Examples:\n\n\b\n  mcpctl ui\n  mcpctl ui --print")
@click.option("--print", "only_print", is_flag=True, help="Print the address without opening a browser.")
@click.pass_obj
def ui(cli: CliContext, only_print: bool) -> int:
    """Open the dashboard in your browser.

    The address works once, within a minute. The browser then stays logged in until you log out or mcpd stops.
    If mcpd does not listen for HTTP, it opens a port on this machine that serves only the dashboard. Prints
    the address if there is no browser.
    """
    reply = cli.call("mcpd/page")
    if cli.show_json(reply):
        return 0
    url = reply.value["url"]
    if cli.host:
        port = urlsplit(url).port
        cli.out.message(f"forward the port first: ssh -L {port}:127.0.0.1:{port} {cli.host}")
    elif not only_print and has_browser(os.environ):
        import webbrowser

        if webbrowser.open(url):
            cli.out.message("opened in your browser; if it did not open, run: mcpctl ui --print")
            return 0
    cli.out.line(url)
    cli.out.message("this address works once, within a minute")
    return 0


def has_browser(environ: Mapping[str, str]) -> bool:
    """Return whether a browser window can be opened. Without one, Python would start a text browser."""
    wanted = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(environ.get(name) for name in wanted)


@click.command(epilog="Examples:\n\n\b\n  mcpctl bridge --client zed\n  mcpctl bridge --server github")
@click.option("--server", metavar="NAME", help="Only this server, unprefixed.", shell_complete=server_names)
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.option("--client", metavar="NAME", default="", help="Name of the editor in status and logs.")
@surface_option
@click.pass_obj
def bridge(cli: CliContext, server: str | None, profile: str | None, client: str, surface: str | None) -> int:
    """Serve all servers over stdin and stdout, for editors.

    Add this command to your editor's configuration as an MCP server of type stdio. It supports every MCP
    revision, keeps running when the daemon restarts, and ends when the editor closes stdin. With --host, the
    servers are those of another machine.
    """
    from ctl.bridge.daemon_link import AttachTarget
    from ctl.bridge.loop import run

    if cli.out.url:
        raise UsageError("mcpctl bridge takes no --url", hint=f"add {cli.out.url}/mcp to your editor instead")
    target = AttachTarget(server, profile, client, surface=surface)
    return run(target, os.environ, cli.socket_option, cli.may_start, cli.host)
