"""`mcpctl status` for the full command line. `ctl.status_view` does the work."""

from __future__ import annotations

import click

from ctl.completion_candidates import server_names
from ctl.errors import UsageError
from ctl.invocation import CliContext
from ctl.status_view import show_several, show_status
from ctl.time_options import utc_option


@click.command(epilog="Examples:\n\n\b\n  mcpctl status\n  mcpctl status github --json")
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option("-w", "--watch", is_flag=True, help="Keep updating the display; quit with q or Ctrl-C.")
@utc_option
@click.pass_obj
def status(cli: CliContext, servers: tuple[str, ...], watch: bool, utc: bool) -> int:
    """Show the status of all servers, or details for one.

    With SERVER, the exit code is 0 if it is connected or idle, 4 if it needs a login, otherwise 6. With
    several, it is the highest of theirs.
    """
    server = servers[0] if servers else None
    if len(set(servers)) > 1:
        if watch:
            raise UsageError("--watch shows one server, or all", hint=f"mcpctl status {server} --watch")
        return show_several(cli, list(dict.fromkeys(servers)), utc=utc)
    if watch:
        from ctl.watch import watch_status

        return watch_status(cli, server, utc=utc)
    return show_status(cli, server, utc=utc)
