"""`mcpctl history` and `calls`: what happened to servers, and who called what, when and at whose request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from ctl.cli.arguments import parse_duration, rfc3339
from ctl.cli.completion import server_names
from ctl.cli.invocation import CliContext
from ctl.cli.text import count
from ctl.show.history import call_line, calls_table, history_table
from ctl.show.watch import print_events

if TYPE_CHECKING:
    from ctl.api_types import CallsParams


@click.command(epilog="Examples:\n\n\b\n  mcpctl history github -n 20 --json\n  mcpctl history -f")
@click.argument("server", required=False, shell_complete=server_names)
@click.option("-f", "--follow", is_flag=True, help="Print the states, then every change until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Entries to show."
)
@click.pass_obj
def history(cli: CliContext, server: str | None, follow: bool, lines: int) -> int:
    """Show past events for one server or all servers.

    Lists state changes with their causes, changes of tool lists and of the configuration, and who requested
    them. The history survives restarts of the daemon and includes servers that were removed. With --follow
    --json, prints one object per line.
    """
    if follow:
        print_events(cli, [server] if server else [])
    reply = cli.call("mcpd/history", {"server": server, "limit": lines})
    if cli.show_json(reply):
        return 0
    if entries := reply.value["entries"]:
        cli.out.lines(history_table(entries, servers=server is None, fit=cli.out.columns))
    else:
        cli.out.message("no events yet")
    if dropped := reply.value.get("dropped"):
        entries_lost = "1 entry" if dropped == 1 else f"{dropped} entries"
        cli.out.message(f"note: {entries_lost} could not be written to disk; see mcpctl daemon logs")
    return 0


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl calls --since 1h\n  mcpctl calls github --failed\n  mcpctl calls -f"
)
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--since", metavar="TIME", type=parse_duration, help="Show the last 30m, 2h or 1d12h.")
@click.option("--client", metavar="TEXT", default="", help="Show only clients whose name contains this.")
@click.option("--tool", default="", help="Show only this tool, prompt or resource.")
@click.option("--failed", is_flag=True, help="Show only calls that did not succeed.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new calls until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10_000), default=50, show_default=True, help="Calls to show."
)
@click.pass_obj
def calls(
    cli: CliContext,
    server: str | None,
    since: timedelta | None,
    client: str,
    tool: str,
    failed: bool,
    follow: bool,
    lines: int,
) -> int:
    """Show which client called which tool, and how it ended.

    With SERVER, shows only its calls. The call log survives restarts of the daemon. It contains no arguments
    or results unless `callLog` in the settings is "contents". With --follow --json, prints one object per
    line.
    """
    params: CallsParams = {
        "limit": lines,
        "since": "" if since is None else rfc3339(datetime.now(UTC) - since),
        "client": client,
        "server": server or "",
        "name": tool,
        "failed": failed,
        "follow": follow,
    }
    if follow:
        for item in cli.stream("mcpd/calls", params):
            assert item is not None
            for record in item.value["calls"] if "calls" in item.value else [item.value["call"]]:
                cli.out.stream_item(record, *call_line(record))
    reply = cli.call("mcpd/calls", params)
    if cli.show_json(reply):
        return 0
    if found := reply.value["calls"]:
        cli.out.lines(calls_table(found, fit=cli.out.columns))
    else:
        is_filtered = any((since, client, server, tool, failed))
        cli.out.message("no calls match" if is_filtered else "no calls yet")
    if problem := reply.value.get("problem"):
        cli.out.message(f"note: calls of other replicas are missing: {problem}")
    if dropped := reply.value.get("dropped"):
        cli.out.message(
            f"note: {count(dropped, 'call')} could not be written to disk; see mcpctl daemon logs"
        )
    return 0
