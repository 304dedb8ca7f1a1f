"""`mcpctl history`: what happened, when, why, and who asked for it."""

from __future__ import annotations

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.history_view import history_table
from ctl.status_view import objects


@click.command(epilog="Examples:\n\n\b\n  mcpctl history\n  mcpctl history github -n 20 --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="The last N entries."
)
@click.pass_obj
def history(cli: CliContext, server: str | None, lines: int) -> int:
    """What happened to a server, or to all, and why.

    Changes of state with their causes, of tool lists and of the configuration, and who asked for them. Kept
    over restarts of the daemon, and for servers that are no longer in the set.
    """
    reply = cli.call("mcpd/history", {"server": server, "limit": lines})
    if cli.show_json(reply):
        return 0
    entries = objects(reply.value.get("entries"))
    if entries:
        cli.out.lines(history_table(entries, servers=server is None, fit=cli.out.columns))
    else:
        cli.out.message("nothing has happened yet")
    if dropped := reply.value.get("dropped"):
        cli.out.message(f"note: {dropped} entries could not be written to disk; see mcpctl daemon logs")
    return 0
