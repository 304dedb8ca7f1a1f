"""`mcpctl stats`: calls, errors, how long they took, who uses it."""

from __future__ import annotations

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.usage_view import server_stats, stats_table


@click.command(epilog="Examples:\n\n\b\n  mcpctl stats\n  mcpctl stats github --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def stats(cli: CliContext, server: str | None) -> int:
    """What servers are used for: calls, errors, times, clients.

    Since the daemon started, over all connections. With SERVER also by tool, and what its processes cost.
    """
    reply = cli.call("mcpd/stats", {"server": server, "processes": server is not None})
    if not cli.show_json(reply):
        show = server_stats if server is not None else stats_table
        cli.out.lines(show(reply.value, cli.out.columns))
    return 0
