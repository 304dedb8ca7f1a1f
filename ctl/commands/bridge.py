"""`mcpctl bridge` for the full command line. `ctl.main` starts it directly in its usual form."""

from __future__ import annotations

import os

import click

from ctl.cli.completion import server_names
from ctl.cli.invocation import CliContext


@click.command(epilog="Examples:\n\n\b\n  mcpctl bridge --client zed\n  mcpctl bridge --server github")
@click.option("--server", metavar="NAME", help="Only this server, unprefixed.", shell_complete=server_names)
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.option("--client", metavar="NAME", default="", help="Name of the editor in status and logs.")
@click.pass_obj
def bridge(cli: CliContext, server: str | None, profile: str | None, client: str) -> int:
    """Serve all servers over stdin and stdout, for editors.

    Add this command to your editor's configuration as an MCP server of type stdio. It supports every MCP
    revision, keeps running when the daemon restarts, and ends when the editor closes stdin.
    """
    from ctl.bridge.daemon_link import AttachTarget
    from ctl.bridge.loop import run

    return run(AttachTarget(server, profile, client), os.environ, cli.socket_option, cli.may_start)
