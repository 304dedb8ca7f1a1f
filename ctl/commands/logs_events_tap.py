"""`mcpctl logs`, `events` and `tap`: stderr, state changes and messages of servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ctl.cli.completion import server_names
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint
from ctl.cli.text import clean, clock_time, cut, log_line
from ctl.show.watch import print_events

if TYPE_CHECKING:
    from ctl.api_types import TapFrame

_TAP_LIMIT = 65_536
"""Bytes of a message that are shown."""
_ARROWS = {"to-server": ("→", "cyan"), "from-server": ("←", "green"), "note": ("·", "dim")}


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl logs github -n 20\n  mcpctl logs github -f\n"
    "  mcpctl logs github --messages 'tools/*'"
)
@click.argument("server", shell_complete=server_names)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="Lines to show."
)
@click.option(
    "-m",
    "--messages",
    multiple=True,
    metavar="PATTERN",
    help="Instead show messages of these methods live, such as 'tools/*', or all with '*'. May be repeated.",
)
@click.pass_obj
def logs(cli: CliContext, server: str, follow: bool, lines: int, messages: tuple[str, ...]) -> int:
    """Show what a server wrote to stderr, or its messages.

    The log survives restarts of the server and of the daemon. With --follow, continues after those of the
    server, and with --follow --json, prints one object per line. With --messages, shows the messages on all
    connections to the server until Ctrl-C, with secrets masked.
    """
    if messages:
        return _tap(cli, server, () if "*" in messages else messages)
    if follow:
        _follow_log(cli, server, lines)
        return 0
    reply = cli.call("mcpd/logs", {"server": server, "lines": lines, "follow": False})
    if not cli.show_json(reply):
        for line in reply.value["lines"]:
            cli.out.line(log_line(line))
        if not reply.value["lines"] and lines:
            cli.out.message(f"{server} has not written anything to stderr yet (a remote server never does)")
            cli.out.next_step(f"mcpctl why {server}")
    return 0


def _follow_log(cli: CliContext, server: str, lines: int) -> None:
    """Print the last lines and all later ones until Ctrl-C."""
    for item in cli.stream("mcpd/logs", {"server": server, "lines": lines, "follow": True}):
        assert item is not None
        note = item.value
        for line in note["lines"] if "lines" in note else [note["line"]] if "line" in note else ():
            cli.out.stream_item({"line": line}, log_line(line))
        if missed := note.get("missed"):
            text = f"note: output too fast, {missed} lines skipped; see the log file"
            cli.out.stream_item({"missed": missed}, text)


@click.command(epilog="Examples:\n\n\b\n  mcpctl events\n  mcpctl events github --json")
@click.argument("servers", metavar="[SERVER]...", nargs=-1, shell_complete=server_names)
@click.pass_obj
def events(cli: CliContext, servers: tuple[str, ...]) -> int:
    """Follow server events as they happen.

    Prints the current state of each server first, then every event until Ctrl-C. With --json, prints one
    object per line.
    """
    print_events(cli, servers)
    return 0


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl tap github\n  mcpctl tap github --method 'tools/*' --json | jq .message"
)
@click.argument("server", shell_complete=server_names)
@click.option(
    "-m",
    "--method",
    "methods",
    multiple=True,
    metavar="PATTERN",
    help="Show only these methods and their responses; * and ? are wildcards. May be repeated.",
)
@click.pass_obj
def tap(cli: CliContext, server: str, methods: tuple[str, ...]) -> int:
    """Show a server's messages live, with secrets masked.

    Covers all connections to the server, until Ctrl-C. → marks messages to the server, ← messages from it.
    Calls are not slowed down: if messages arrive faster than they can be shown, some are skipped and counted.
    With --json, prints one object per line.
    """
    return _tap(cli, server, methods)


def _tap(cli: CliContext, server: str, methods: tuple[str, ...]) -> int:
    """Print the messages of a server until Ctrl-C."""
    if cli.out.tty:
        cli.out.message(paint(f"watching {server}; press Ctrl-C to stop", "dim"))
    for item in cli.stream("mcpd/tap", {"server": server, "methods": list(methods), "limit": _TAP_LIMIT}):
        assert item is not None
        if "frame" not in item.value:
            continue
        frame = item.value["frame"]
        if not cli.out.json and (dropped := frame.get("dropped")):
            cli.out.line(paint(f"… {dropped} messages skipped (too fast to show)", "yellow"))
        cli.out.stream_item(frame, *frame_line(frame, cli.out.columns))
    return 0


def frame_line(frame: TapFrame, columns: int | None) -> Line:
    """One message: time, direction, method, and as much of its text as fits."""
    arrow, style = _ARROWS.get(frame["direction"], ("?", "bold"))
    message, start = frame.get("message"), f"{clock_time(frame['at'])[11:]}{frame['at'][19:23]} "
    text = frame.get("text", "") if message is None else json.dumps(message, ensure_ascii=False)
    label = " "
    if frame["direction"] != "note":
        number = f" #{frame['id']}" if frame.get("id") else ""
        label = f" {frame.get('method') or ('-' if message is not None else '')}{number} "
    rest = clean(text) + (f" … ({frame.get('bytes', 0)} bytes)" if frame.get("cut") else "")
    if columns is not None:
        rest = cut(rest, max(0, columns - len(start) - len(label) - 1))
    return [paint(start, "dim"), paint(arrow, style), label, rest]
