"""`mcpctl logs` and `mcpctl events`: what was said, what happens."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ctl.commands.lifecycle import status_summary
from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import mapping, painted_state, strings


@click.command(epilog="Examples:\n\n\b\n  mcpctl logs github -n 20\n  mcpctl logs github -f")
@click.argument("server", shell_complete=server_names)
@click.option("-f", "--follow", is_flag=True, help="Keep printing as it comes; Ctrl-C ends.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="The last N lines."
)
@click.pass_obj
def logs(cli: CliContext, server: str, follow: bool, lines: int) -> int:
    """What a server wrote to its stderr.

    The log survives restarts of the server and of the daemon. With --follow --json, one object a line.
    """
    params = {"server": server, "lines": lines, "follow": follow}
    if not follow:
        reply = cli.call("mcpd/logs", params)
        if not cli.show_json(reply):
            for line in strings(reply.value.get("lines")):
                cli.out.line(line)
        return 0
    for item in cli.stream("mcpd/logs", params):
        assert item is not None
        if missed := item.value.get("missed"):
            if cli.out.json:
                cli.out.json_line({"missed": missed})
            else:
                cli.out.message(
                    f"note: {missed} lines came too fast and are left out; they are in its log file"
                )
            continue
        first = strings(item.value.get("lines"))  # the answer; after it come notifications
        for line in [str(item.value["line"])] if "line" in item.value else first:
            if cli.out.json:
                cli.out.json_line({"line": line})
            else:
                cli.out.line(line)
        cli.out.flush()
    return 0


@click.command(epilog="Examples:\n\n\b\n  mcpctl events\n  mcpctl events github --json")
@click.argument("servers", metavar="[SERVER]...", nargs=-1, shell_complete=server_names)
@click.pass_obj
def events(cli: CliContext, servers: tuple[str, ...]) -> int:
    """What happens to servers, as it happens.

    Begins with how each server is now, and goes on until Ctrl-C. With --json, one object a line.
    """
    print_events(cli, servers)
    return 0


def print_events(cli: CliContext, servers: Sequence[str]) -> None:
    """A line for each event of these servers, or of all; until Ctrl-C."""
    for item in cli.stream("mcpd/events", {"servers": list(servers)}):
        if item is not None and (event := mapping(item.value.get("event"))):
            if cli.out.json:
                cli.out.json_line(event)
            else:
                cli.out.line(*_event_line(event))
            cli.out.flush()


def _event_line(event: Json) -> Line:
    """One event for a person: when, which server, what."""
    kind, status = str(event.get("kind", "?")), mapping(event.get("status"))
    clock = str(event.get("at", ""))[11:19]
    parts = [paint(clock, "dim"), f"  {event.get('server') or '-'!s:<16}  "]
    message = str(event.get("message") or "")
    if status and kind in ("snapshot", "status"):
        text = status_summary(status)
        told = message in text or message == status.get("reason")
        return [*parts, painted_state(status), text, "" if told or not message else f"  {message}"]
    return [*parts, kind, f": {message}" if message else ""]
