"""`mcpctl wait`: wait until servers are connected, or at least settled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ctl.commands.lifecycle import print_statuses, status_summary
from ctl.completion_candidates import server_names
from ctl.errors import AuthNeeded, CtlError, ServerNotReady, TimedOut
from ctl.invocation import CliContext
from ctl.next_steps import next_command

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus


@click.command(epilog="Examples:\n\n\b\n  mcpctl wait github --timeout 10\n  mcpctl wait --for settled")
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option(
    "--for",
    "goal",
    type=click.Choice(["connected", "settled"]),
    default="connected",
    show_default=True,
    help="What to wait for. Settled: no connection attempt is in progress.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Give up after this time and exit with 7.",
)
@click.pass_obj
def wait(cli: CliContext, servers: tuple[str, ...], goal: str, timeout: float) -> int:
    """Wait until servers are connected.

    Without SERVER, waits for all enabled servers. Exits immediately if a server needs your attention: with 4
    if it needs a login, otherwise with 6.
    """
    deadline = time.monotonic() + timeout
    if servers:
        found = [cli.call("mcpd/server", {"server": name}).value["server"] for name in servers]
    else:
        listed = cli.call("mcpd/status").value["servers"]
        found = [status for status in listed if status["status"] not in ("disabled", "idle")]
    current = {status["name"]: status for status in found}
    try:
        if not _all_reached(current, goal):
            for note in cli.stream("mcpd/events", {"servers": list(current)}, until=deadline):
                if note is None or "event" not in note.value:
                    continue
                event = note.value["event"]
                name, status = event.get("server"), event.get("status")
                if name not in current:
                    continue
                if event["kind"] == "removed":
                    raise ServerNotReady(f"{name} was removed in the meantime", server=name)
                if status:
                    current[name] = status
                if _all_reached(current, goal):
                    break
    except TimedOut:
        behind = [status for status in current.values() if not _has_reached(status, goal)]
        names = ", ".join(f"{status['name']} is {status['status']}" for status in behind)
        raise TimedOut(
            f"timed out after {timeout:g} s: {names}",
            hint=next_command(behind[0]),
            servers=list(current.values()),
        ) from None
    print_statuses(cli, list(current.values()))
    return 0


def _all_reached(current: Mapping[str, ServerStatus], goal: str) -> bool:
    """Return whether all servers have reached the goal. Raises for one that needs a person's attention."""
    if goal == "connected":
        for status in current.values():
            if (error := _blocking_error(status)) is not None:
                raise error
    return all(_has_reached(status, goal) for status in current.values())


def _has_reached(status: ServerStatus, goal: str) -> bool:
    return status["status"] == "connected" or (goal == "settled" and status["status"] != "pending")


def _blocking_error(status: ServerStatus) -> CtlError | None:
    name, state = status["name"], status["status"]
    if state == "needs-auth":
        return AuthNeeded(f"{name} needs a login", server=name, hint=next_command(status))
    if state in ("disabled", "idle") or (state == "failed" and not status.get("retry_at")):
        message = f"{name} is {state}{status_summary(status)}"
        return ServerNotReady(message, server=name, state=state, hint=next_command(status))
    return None
