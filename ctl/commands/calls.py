"""`mcpctl calls`: who called what, when, for how long, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from ctl.cli.arguments import parse_duration, rfc3339, utc_option
from ctl.cli.completion import server_names
from ctl.cli.errors import UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, Painted, paint, table
from ctl.cli.text import clock_time, count

if TYPE_CHECKING:
    from ctl.api_types import CallRecord, CallsParams

_COLORS = {
    "ok": "green",
    "tool-error": "yellow",
    "error": "red",
    "failed": "red",
    "cancelled": "dim",
    "input-required": "cyan",
}


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl calls --since 1h\n  mcpctl calls github --failed\n  mcpctl calls -f"
)
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--since", metavar="TIME", type=parse_duration, help="Show the last 30m, 2h or 1d12h.")
@click.option("--client", metavar="TEXT", default="", help="Show only clients whose name contains this.")
@click.option(
    "--server", "named", default="", shell_complete=server_names, help="Show only calls of this server."
)
@click.option("--tool", default="", help="Show only this tool, prompt or resource.")
@click.option("--failed", is_flag=True, help="Show only calls that did not succeed.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new calls until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10_000), default=50, show_default=True, help="Calls to show."
)
@utc_option
@click.pass_obj
def calls(
    cli: CliContext,
    server: str | None,
    since: timedelta | None,
    client: str,
    named: str,
    tool: str,
    failed: bool,
    follow: bool,
    lines: int,
    utc: bool,
) -> int:
    """Show which client called which tool, and how it ended.

    With SERVER, shows only its calls. The call log survives restarts of the daemon. It contains no arguments
    or results unless `callLog` in the settings is "contents". With --follow --json, prints one object per
    line.
    """
    if server and named not in ("", server):
        raise UsageError(
            f"two servers: {server} and --server {named}", hint="name one, or none for all calls"
        )
    server = server or named
    params: CallsParams = {
        "limit": lines,
        "since": "" if since is None else rfc3339(datetime.now(UTC) - since),
        "client": client,
        "server": server,
        "name": tool,
        "failed": failed,
        "follow": follow,
    }
    if not follow:
        reply = cli.call("mcpd/calls", params)
        if cli.show_json(reply):
            return 0
        if found := reply.value["calls"]:
            cli.out.lines(calls_table(found, fit=cli.out.columns, utc=utc))
        else:
            is_filtered = bool(params["since"] or client or server or tool or failed)
            cli.out.message("no calls match" if is_filtered else "no calls yet")
        if dropped := reply.value.get("dropped"):
            cli.out.message(
                f"note: {count(dropped, 'call')} could not be written to disk; see mcpctl daemon logs"
            )
        return 0
    for item in cli.stream("mcpd/calls", params):
        assert item is not None
        value = item.value
        for record in value["calls"] if "calls" in value else [value["call"]]:
            cli.out.stream_item(record, *_call_line(record, utc=utc))
    return 0


def calls_table(records: Sequence[CallRecord], *, fit: int | None, utc: bool) -> list[Line]:
    """The calls, oldest first."""
    header = [
        "WHEN (UTC)" if utc else "WHEN",
        "CLIENT",
        "SERVER",
        "CALL",
        "OUTCOME",
        "TIME",
        "BYTES",
        "MESSAGE",
    ]
    rows: list[Line] = [
        [
            clock_time(record["at"], utc=utc)[5:],
            _client(record),
            record.get("server") or "-",
            _called(record),
            _outcome(record),
            _duration(record),
            str(record.get("response_bytes", 0)),
            _message(record),
        ]
        for record in records
    ]
    return table(header, rows, fit=fit, right=(5, 6), squeeze=(1, 3))


def _call_line(record: CallRecord, *, utc: bool) -> Line:
    """One call, while following."""
    return [
        paint(clock_time(record["at"], utc=utc)[11:], "dim"),
        f"  {_client(record):<20}  {record.get('server') or '-':<16}  {_called(record):<24}  ",
        _outcome(record),
        f"  {_duration(record)}  {_message(record)}".rstrip(),
    ]


def _client(record: CallRecord) -> str:
    name, pid = record.get("client") or "-", record.get("pid")
    return f"{name} ({pid})" if pid else name


def _called(record: CallRecord) -> str:
    name, method = record.get("name") or "", record.get("method") or "-"
    return name if name and method == "tools/call" else f"{method} {name}".strip()


def _outcome(record: CallRecord) -> Painted:
    outcome = record["outcome"]
    text = f"{outcome} (cached)" if record.get("cached") else outcome
    return paint(text, _COLORS.get(outcome, "bold"))


def _duration(record: CallRecord) -> str:
    return f"{record.get('duration_ms', 0):.0f} ms"


def _message(record: CallRecord) -> str:
    if record["outcome"] == "omitted":
        return f"{count(record.get('count', 1), 'more call')} in one second"
    return record.get("message") or ""
