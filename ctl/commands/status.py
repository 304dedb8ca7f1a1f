"""`mcpctl status` for the full command line. `ctl.main` starts it directly in its usual form."""

from __future__ import annotations

import click

from ctl.cli.arguments import utc_option
from ctl.cli.completion import server_names
from ctl.cli.errors import UsageError
from ctl.cli.invocation import CliContext
from ctl.explain.server import show_servers
from ctl.show.status import show_table


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
    names = list(dict.fromkeys(servers))
    if watch:
        if len(names) > 1:
            raise UsageError("--watch shows one server, or all", hint=f"mcpctl status {names[0]} --watch")
        from ctl.show.watch import watch_status

        return watch_status(cli, names[0] if names else None, utc=utc)
    return show_servers(cli, names, utc=utc) if names else show_table(cli, utc=utc)
