"""`mcpctl bridge`, for its help and for command lines that the fast path of `ctl.main` leaves to click."""

from __future__ import annotations

import os

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext


@click.command(epilog="Examples:\n\n\b\n  mcpctl bridge --client zed\n  mcpctl bridge --server github")
@click.option("--server", metavar="NAME", help="Only this one, unrenamed.", shell_complete=server_names)
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.option("--client", metavar="NAME", default="", help="What the editor is called in status and logs.")
@click.pass_obj
def bridge(cli: CliContext, server: str | None, profile: str | None, client: str) -> int:
    """What an editor starts: all servers, over stdin and stdout.

    Put this command into the editor's configuration as an MCP server (type stdio). It speaks MCP in every
    revision, stays when the daemon restarts, and ends when the editor closes its stdin.
    """
    from ctl.bridge.loop import BridgeOptions, run

    options = BridgeOptions(cli.socket_option, cli.may_start, server, profile, client)
    return run(options, os.environ)
