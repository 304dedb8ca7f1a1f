"""`mcpctl status --watch` and `top --watch`: the table on the screen, or one line a change when piped."""

from __future__ import annotations

import time

from ctl.commands.logs import print_events
from ctl.context import Session
from ctl.daemon_client import Json
from ctl.keys import Keys
from ctl.output import Line, paint
from ctl.status_view import server_block, status_table
from ctl.usage_view import top_table

TICK = 1.0
"""Seconds after which relative times are drawn afresh."""


def watch_status(session: Session, server: str | None) -> int:
    """Until q or Ctrl-C. Piped, or under `--json`: one line for each change, after one for each server."""
    servers = [server] if server else []
    if server:
        session.call("mcpd/server", {"server": server})  # an unknown name is an error, not an empty screen
    if session.out.json or not session.out.tty:
        print_events(session, servers)
        return 0
    return _live(session, server, servers)


def watch_top(session: Session, sort: str, interval: float) -> int:
    """Until q or Ctrl-C, a look every `interval` seconds. Piped, or under `--json`: one after the other."""
    asked = {"processes": True}
    before = None
    if session.out.json or not session.out.tty:
        while True:
            answer = session.call("mcpd/stats", asked).value
            if session.out.json:
                session.out.stream_value(answer)
            elif before is not None:  # the first has no rates yet
                session.out.lines([*top_table(before, answer, sort, None), []])
            session.out.flush()
            before = answer
            time.sleep(interval)
    from rich.live import Live
    from rich.text import Text

    with Keys() as keys, Live(auto_refresh=False, screen=True) as live:
        while True:
            answer = session.call("mcpd/stats", asked).value
            lines = fitted(top_table(before, answer, sort, session.out.columns), session.out.rows)
            live.update(Text.from_ansi("\n".join(map(session.out.styled, lines))), refresh=True)
            before = answer
            if keys.end_within(interval):
                return 0


def fitted(lines: list[Line], rows: int) -> list[Line]:
    """What of them a screen of so many rows shows, and that there are more."""
    if len(lines) < rows:
        return lines
    shown = max(1, rows - 2)
    return [*lines[:shown], [paint(f"… {len(lines) - shown} more lines", "dim")]]


def _live(session: Session, server: str | None, servers: list[str]) -> int:
    from rich.live import Live
    from rich.text import Text

    from ctl.daemon_client import LocalClient

    method, asked = ("mcpd/server", {"server": server}) if server else ("mcpd/status", {})

    def draw(answer: Json) -> Text:
        lines = server_block(answer) if server else status_table(answer, session.out.columns)
        return Text.from_ansi("\n".join(map(session.out.styled, fitted(lines, session.out.rows))))

    answer = session.call(method, asked).value
    with (
        LocalClient(session.socket) as changes,
        Keys() as keys,
        Live(draw(answer), auto_refresh=False) as live,
    ):
        for item in changes.stream("mcpd/events", {"servers": servers}, tick=TICK):
            if item is not None:
                answer = session.call(method, asked).value
            live.update(draw(answer), refresh=True)
            if keys.end_within(0):
                break
    return 0
