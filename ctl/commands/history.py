"""`mcpctl history`: what happened to servers, when, why and at whose request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ctl.cli.arguments import utc_option
from ctl.cli.completion import server_names
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.cli.text import clock_time, count, in_local_time
from ctl.show.status import COLORS, exit_details, short_message

if TYPE_CHECKING:
    from ctl.api_types import HistoryEntry

_WIDE = 110
"""Columns from which on the year is shown."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl history\n  mcpctl history github -n 20 --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Entries to show."
)
@utc_option
@click.pass_obj
def history(cli: CliContext, server: str | None, lines: int, utc: bool) -> int:
    """Show past events for one server or all servers.

    Lists state changes with their causes, changes of tool lists and of the configuration, and who requested
    them. The history survives restarts of the daemon and includes servers that were removed.
    """
    reply = cli.call("mcpd/history", {"server": server, "limit": lines})
    if cli.show_json(reply):
        return 0
    if entries := reply.value["entries"]:
        cli.out.lines(history_table(entries, servers=server is None, fit=cli.out.columns, utc=utc))
    else:
        cli.out.message("no events yet")
    if dropped := reply.value.get("dropped"):
        entries_lost = "1 entry" if dropped == 1 else f"{dropped} entries"
        cli.out.message(f"note: {entries_lost} could not be written to disk; see mcpctl daemon logs")
    return 0


def history_table(
    entries: Sequence[HistoryEntry], *, servers: bool, fit: int | None, utc: bool
) -> list[Line]:
    """The events, oldest first. `servers`: add a column with the server's name.

    On a terminal, the column BY is there only if an entry has one; a narrow terminal omits the year.
    """
    by = fit is None or any(entry.get("by") for entry in entries)
    year = 5 if fit is not None and fit < _WIDE else 0
    header = [
        "WHEN (UTC)" if utc else "WHEN",
        *(["SERVER"] if servers else []),
        "WHAT",
        *(["BY"] if by else []),
        "CAUSE",
    ]
    rows: list[Line] = [
        [
            clock_time(entry["at"], utc=utc)[year:],
            *([entry.get("server") or "-"] if servers else []),
            paint(state, COLORS.get(state, "bold")) if (state := entry.get("state")) else entry["what"],
            *([entry.get("by") or "-"] if by else []),
            cause(entry, utc=utc),
        ]
        for entry in entries
    ]
    return table(header, rows, fit=fit, squeeze=(len(header) - 2,) if by else ())


def cause(entry: HistoryEntry, *, utc: bool) -> str:
    """Return the cause with its evidence, and how often it occurred."""
    failure = entry.get("kind")
    kind = f"[{', '.join([failure, *exit_details(entry)])}] " if failure else ""
    times = entry.get("times", 1)
    repeated = f" ({count(times, 'time')} so far)" if times > 1 else ""
    return f"{kind}{in_local_time(short_message(entry.get('message') or '-'), utc=utc)}{repeated}"
