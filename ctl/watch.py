"""`mcpctl status --watch` and `top --watch`: a live table, or one line per change when piped."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable
from typing import TYPE_CHECKING

from ctl.commands.logs_events_tap import print_events
from ctl.daemon_client import DaemonClient
from ctl.invocation import CliContext
from ctl.output import Line, paint
from ctl.server_view import server_block
from ctl.status_view import status_table

if TYPE_CHECKING:
    from rich.text import Text

    from ctl.api_types import Stats

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
        """Wait up to `seconds` for one of the keys."""
        if self._input is None:
            time.sleep(seconds)
            return False
        until = time.monotonic() + seconds
        while select.select([self._input], [], [], max(0.0, until - time.monotonic()))[0]:
            if all(key in _QUIT_KEYS for key in os.read(self._input, 64)):  # also if the terminal is gone
                return True
        return False


def watch_status(cli: CliContext, server: str | None, *, utc: bool) -> int:
    """Show the status until q or Ctrl-C. Piped or with `--json`, print states and then every change."""
    servers = [server] if server else []

    def ask() -> Callable[[], list[Line]]:
        """Return what renders the current answer: its relative times change without a new one."""
        if server:
            detail = cli.call("mcpd/server", {"server": server}).value
            return lambda: server_block(detail, utc=utc)
        status = cli.call("mcpd/status").value
        return lambda: status_table(status, cli.out.columns, utc=utc)

    render = ask()  # also reports an unknown name
    if cli.out.json or not cli.out.tty:
        print_events(cli, servers, utc=utc)
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
