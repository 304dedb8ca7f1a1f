"""`mcpctl status --watch` and `top --watch`: the table on the screen, or one line a change when piped."""

from __future__ import annotations

import time

from ctl.client import Json
from ctl.commands.logs import print_events
from ctl.session import Session
from ctl.usage import top_table
from ctl.views import server_block, status_table

TICK = 1.0
"""Seconds after which relative times are drawn afresh."""


def watch_status(session: Session, server: str | None) -> int:
    """Until Ctrl-C. Piped, or under `--json`: one line for each change, after one for each server."""
    servers = [server] if server else []
    if server:
        session.call("mcpd/server", {"server": server})  # an unknown name is an error, not an empty screen
    if session.out.json or not session.out.tty:
        print_events(session, servers)
        return 0
    return _live(session, server, servers)


def watch_top(session: Session, sort: str, interval: float) -> int:
    """Until Ctrl-C, a look every `interval` seconds. Piped, or under `--json`: one after the other."""
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

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            answer = session.call("mcpd/stats", asked).value
            lines = top_table(before, answer, sort, session.out.columns)
            live.update(Text.from_ansi("\n".join(map(session.out.styled, lines))), refresh=True)
            before = answer
            time.sleep(interval)


def _live(session: Session, server: str | None, servers: list[str]) -> int:
    from rich.live import Live
    from rich.text import Text

    from ctl.client import LocalClient

    method, asked = ("mcpd/server", {"server": server}) if server else ("mcpd/status", {})

    def draw(answer: Json) -> Text:
        lines = server_block(answer) if server else status_table(answer, session.out.columns)
        return Text.from_ansi("\n".join(session.out.styled(line) for line in lines))

    answer = session.call(method, asked).value
    with LocalClient(session.socket) as changes, Live(draw(answer), auto_refresh=False) as live:
        for item in changes.stream("mcpd/events", {"servers": servers}, tick=TICK):
            if item is not None:
                answer = session.call(method, asked).value
            live.update(draw(answer), refresh=True)
    return 0
