"""`mcpctl status --watch` and `top --watch`: the table on the screen, or one line a change when piped."""

from __future__ import annotations

import time

from ctl.commands.logs import print_events
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.keys import QuitKeys
from ctl.output import Line, paint
from ctl.status_view import server_block, status_table
from ctl.usage_view import top_table

TICK = 1.0
"""Seconds after which relative times are drawn afresh."""


def watch_status(cli: CliContext, server: str | None) -> int:
    """Until q or Ctrl-C. Piped, or under `--json`: one line for each change, after one for each server."""
    servers = [server] if server else []
    if server:
        cli.call("mcpd/server", {"server": server})  # an unknown name is an error, not an empty screen
    if cli.out.json or not cli.out.tty:
        print_events(cli, servers)
        return 0
    return _watch_on_terminal(cli, server, servers)


def watch_top(cli: CliContext, sort: str, interval: float) -> int:
    """Until q or Ctrl-C, a look every `interval` seconds. Piped, or under `--json`: one after the other."""
    asked = {"processes": True}
    before = None
    if cli.out.json or not cli.out.tty:
        while True:
            answer = cli.call("mcpd/stats", asked).value
            if cli.out.json:
                cli.out.json_line(answer)
            elif before is not None:  # the first has no rates yet
                cli.out.lines([*top_table(before, answer, sort, None), []])
            cli.out.flush()
            before = answer
            time.sleep(interval)
    from rich.live import Live
    from rich.text import Text

    with QuitKeys() as keys, Live(auto_refresh=False, screen=True) as live:
        while True:
            answer = cli.call("mcpd/stats", asked).value
            lines = fit_rows(top_table(before, answer, sort, cli.out.columns), cli.out.rows)
            live.update(Text.from_ansi("\n".join(map(cli.out.styled, lines))), refresh=True)
            before = answer
            if keys.quit_pressed(interval):
                return 0


def fit_rows(lines: list[Line], rows: int) -> list[Line]:
    """What of them a screen of so many rows shows, and that there are more."""
    if len(lines) < rows:
        return lines
    shown = max(1, rows - 2)
    return [*lines[:shown], [paint(f"… {len(lines) - shown} more lines", "dim")]]


def _watch_on_terminal(cli: CliContext, server: str | None, servers: list[str]) -> int:
    from rich.live import Live
    from rich.text import Text

    from ctl.daemon_client import DaemonClient

    method, asked = ("mcpd/server", {"server": server}) if server else ("mcpd/status", {})

    def draw(answer: Json) -> Text:
        lines = server_block(answer) if server else status_table(answer, cli.out.columns)
        return Text.from_ansi("\n".join(map(cli.out.styled, fit_rows(lines, cli.out.rows))))

    answer = cli.call(method, asked).value
    with (
        DaemonClient(cli.socket) as changes,
        QuitKeys() as keys,
        Live(draw(answer), auto_refresh=False) as live,
    ):
        for item in changes.stream("mcpd/events", {"servers": servers}, tick=TICK):
            if item is not None:
                answer = cli.call(method, asked).value
            live.update(draw(answer), refresh=True)
            if keys.quit_pressed(0):
                break
    return 0
