"""`mcpctl status --watch` and `top --watch`: a live table, or one line per change when piped."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint
from ctl.cli.text import clock_time, in_local_time
from ctl.daemon.client import DaemonClient
from ctl.explain.server import server_block
from ctl.show.progress import status_summary
from ctl.show.status import painted_state, status_table

if TYPE_CHECKING:
    from rich.text import Text

    from ctl.api_types import Event, Stats

TICK = 1.0
"""Seconds between updates of relative times."""
_QUIT_KEYS = b"qQ\x04\x1b"
"""q, Ctrl-D and Escape. Keys that send an escape sequence are ignored."""


class QuitKeys:
    """Reads keys one by one and without echo while the block is open. Does nothing without a terminal."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._before: list[int | list[bytes | int]] = []

    def __enter__(self) -> QuitKeys:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        return self

    def __exit__(self, *_: object) -> None:
        if self._input is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def quit_pressed(self, seconds: float) -> bool:
        if self._input is None:
            time.sleep(seconds)
            return False
        until = time.monotonic() + seconds
        while select.select([self._input], [], [], max(0.0, until - time.monotonic()))[0]:
            if all(key in _QUIT_KEYS for key in os.read(self._input, 64)):  # also if the terminal is gone
                return True
        return False


def watch_status(cli: CliContext, server: str | None) -> int:
    """Show the status until q or Ctrl-C. Piped or with `--json`, print states and then every change."""
    servers = [server] if server else []

    def ask() -> Callable[[], list[Line]]:
        """Return what renders the current answer: its relative times change without a new one."""
        if server:
            detail = cli.call("mcpd/server", {"server": server}).value
            return lambda: server_block(detail)
        status = cli.call("mcpd/status").value
        return lambda: status_table(status, cli.out.columns)

    render = ask()  # also reports an unknown name
    if cli.out.json or not cli.out.tty:
        print_events(cli, servers)
        return 0
    from rich.live import Live

    with (
        DaemonClient(cli.socket) as changes,
        QuitKeys() as keys,
        Live(_screen(cli, render()), auto_refresh=False) as live,
    ):
        for item in changes.stream("mcpd/events", {"servers": servers}, tick=TICK):
            if item is not None:
                render = ask()
            live.update(_screen(cli, render()), refresh=True)
            if keys.quit_pressed(0):
                break
    return 0


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
    """Show resource usage until q or Ctrl-C. Piped or with `--json`, print one table or object per update.

    `render` makes the table of the previous and the latest answer of `ask`.
    """
    before = None
    if cli.out.json or not cli.out.tty:
        while True:
            answer = ask()
            if cli.out.json:
                cli.out.json_line(answer)
            elif before is not None:  # the first one has no rates yet
                cli.out.lines([*render(before, answer), []])
            cli.out.flush()
            before = answer
            time.sleep(interval)
    from rich.live import Live

    with QuitKeys() as keys, Live(auto_refresh=False, screen=True) as live:
        while True:
            answer = ask()
            live.update(_screen(cli, render(before, answer)), refresh=True)
            before = answer
            if keys.quit_pressed(interval):
                return 0


def _screen(cli: CliContext, lines: list[Line]) -> Text:
    from rich.text import Text

    return Text.from_ansi("\n".join(map(cli.out.styled, fit_rows(lines, cli.out.rows))))


def fit_rows(lines: list[Line], rows: int) -> list[Line]:
    """Cut `lines` to a screen of `rows`, with the number of omitted lines at the end."""
    if len(lines) < rows:
        return lines
    shown = max(1, rows - 2)
    return [*lines[:shown], [paint(f"… {len(lines) - shown} more lines", "dim")]]
