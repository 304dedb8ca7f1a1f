"""`mcpctl status --watch` and `top --watch`: a live table; and `history --follow`: one line per change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ctl.cli.errors import UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint
from ctl.cli.text import clock_time, in_local_time
from ctl.explain.server import server_block
from ctl.show.progress import status_summary
from ctl.show.status import painted_state, status_table

if TYPE_CHECKING:
    from rich.text import Text

    from ctl.api_types import Event, Stats

TICK = 1.0
"""Seconds between updates of relative times."""


def watch_status(cli: CliContext, server: str | None) -> int:
    """Show the status until Ctrl-C."""
    servers = [server] if server else []

    def ask() -> Callable[[], list[Line]]:
        """Return what renders the current answer: its relative times change without a new one."""
        if server:
            detail = cli.call("mcpd/server", {"server": server}).value
            return lambda: server_block(detail)
        status = cli.call("mcpd/status").value
        return lambda: status_table(status, cli.out.columns)

    require_terminal(cli)
    render = ask()  # also reports an unknown name
    from rich.live import Live

    with (
        cli.connect() as changes,
        Live(_screen(cli, render()), auto_refresh=False) as live,
    ):
        for item in changes.stream("mcpd/events", {"servers": servers}, tick=TICK):
            if item is not None:
                render = ask()
            live.update(_screen(cli, render()), refresh=True)
    return 0


def require_terminal(cli: CliContext) -> None:
    """Raise UsageError if there is no terminal for a live display."""
    if cli.out.json or not cli.out.tty:
        raise UsageError("--watch is for a terminal", hint="mcpctl history --follow prints every change")


def print_events(cli: CliContext, servers: Sequence[str]) -> None:
    """Print one line per event of `servers`, or of all servers if empty, until Ctrl-C."""
    width = 16 if cli.out.json else _name_width(cli)
    for item in cli.stream("mcpd/events", {"servers": list(servers)}):
        if item is not None and "event" in item.value:
            event = item.value["event"]
            cli.out.stream_item(event, *_event_line(event, width))


def _name_width(cli: CliContext) -> int:
    names = [server["name"] for server in cli.call("mcpd/status").value["servers"]]
    return max((len(name) for name in names), default=1)


def _event_line(event: Event, width: int) -> Line:
    kind, status, message = event["kind"], event.get("status"), event.get("message", "")
    parts = [
        paint(clock_time(event["at"])[11:], "dim"),
        f"  {event.get('server') or '-'!s:<{width}}  ",
    ]
    if status and kind in ("snapshot", "status"):
        summary = status_summary(status)
        known = message in summary or message == status.get("reason")
        return [
            *parts,
            painted_state(status),
            in_local_time(summary),
            "" if known else f"  {message}",
        ]
    return [*parts, kind, f": {message}" if message else ""]


def watch_top(
    cli: CliContext,
    ask: Callable[[], Stats],
    render: Callable[[Stats | None, Stats], list[Line]],
    interval: float,
) -> int:
    """Show resource usage until Ctrl-C.

    `render` makes the table of the previous and the latest answer of `ask`.
    """
    require_terminal(cli)
    from rich.live import Live

    before = None
    with Live(auto_refresh=False, screen=True) as live:
        while True:
            answer = ask()
            live.update(_screen(cli, render(before, answer)), refresh=True)
            before = answer
            time.sleep(interval)


def _screen(cli: CliContext, lines: list[Line]) -> Text:
    from rich.text import Text

    return Text.from_ansi("\n".join(map(cli.out.styled, fit_rows(lines, cli.out.rows))))


def fit_rows(lines: list[Line], rows: int) -> list[Line]:
    """Cut `lines` to a screen of `rows`, with the number of omitted lines at the end."""
    if len(lines) < rows:
        return lines
    shown = max(1, rows - 2)
    return [*lines[:shown], [paint(f"… {len(lines) - shown} more lines", "dim")]]
