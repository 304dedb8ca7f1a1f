"""`mcpctl status`: how all servers are, or some."""

from __future__ import annotations

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.status import show_status


@click.command(epilog="Examples:\n\n\b\n  mcpctl status\n  mcpctl status github --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.option("-w", "--watch", is_flag=True, help="Keep it on the screen and up to date; q or Ctrl-C ends.")
@click.pass_obj
def status(cli: CliContext, server: str | None, watch: bool) -> int:
    """How every server is, or one with its evidence.

    With SERVER the exit code is 0 when it is connected or idle, 4 when it needs a login, 6 otherwise.
    """
    if watch:
        from ctl.watch import watch_status

        return watch_status(cli, server)
    return show_status(cli, server)
