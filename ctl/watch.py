"""`mcpctl status --watch`: the table on the screen, or one line a change when piped."""

from __future__ import annotations

from ctl.client import Json
from ctl.commands.logs import event_line
from ctl.session import Session
from ctl.views import mapping, server_block, status_table

TICK = 1.0
"""Seconds after which relative times are drawn afresh."""


def watch_status(session: Session, server: str | None) -> int:
    """Until Ctrl-C. Piped, or under `--json`: one line for each change, after one for each server."""
    params: dict[str, object] = {"servers": [server] if server else []}
    if server:
        session.call("mcpd/server", {"server": server})  # an unknown name is an error, not an empty screen
    if session.out.json or not session.out.tty:
        for item in session.stream("mcpd/events", params):
            if item is not None and (event := mapping(item.value.get("event"))):
                if session.out.json:
                    session.out.stream_value(event)
                else:
                    session.out.line(*event_line(event))
                session.out.flush()
        return 0
    return _live(session, server, params)


def _live(session: Session, server: str | None, params: dict[str, object]) -> int:
    from rich.live import Live
    from rich.text import Text

    from ctl.client import LocalClient

    method, asked = ("mcpd/server", {"server": server}) if server else ("mcpd/status", {})

    def draw(answer: Json) -> Text:
        lines = server_block(answer) if server else status_table(answer, session.out.columns)
        return Text.from_ansi("\n".join(session.out.styled(line) for line in lines))

    answer = session.call(method, asked).value
    with LocalClient(session.socket) as changes, Live(draw(answer), auto_refresh=False) as live:
        for item in changes.stream("mcpd/events", params, tick=TICK):
            if item is not None:
                answer = session.call(method, asked).value
            live.update(draw(answer), refresh=True)
    return 0
