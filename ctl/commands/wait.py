"""`mcpctl wait`: until servers are connected, or have at least settled."""

from __future__ import annotations

import json
import time

import click

from ctl.commands.lifecycle import status_summary
from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.errors import AuthNeeded, CtlError, ServerNotReady, TimedOut
from ctl.next_steps import next_command
from ctl.status_view import mapping, objects, painted_state


@click.command(epilog="Examples:\n\n\b\n  mcpctl wait github --timeout 10\n  mcpctl wait --for settled")
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option(
    "--for",
    "goal",
    type=click.Choice(["connected", "settled"]),
    default="connected",
    show_default=True,
    help="Settled: no attempt is running, however it ended.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Then exit 7.",
)
@click.pass_obj
def wait(cli: CliContext, servers: tuple[str, ...], goal: str, timeout: float) -> int:
    """Wait until servers are connected.

    Without SERVER, waits for every one that is switched on. A server that cannot become connected
    without a person ends the waiting at once: exit 6, or 4 when it needs a login.
    """
    deadline = time.monotonic() + timeout
    known = [cli.call("mcpd/server", {"server": s}).value.get("server") for s in servers] or objects(
        cli.call("mcpd/status").value.get("servers")
    )
    current = {str(status["name"]): status for status in map(mapping, known)}
    if not servers:
        current = {name: s for name, s in current.items() if s.get("status") not in ("disabled", "idle")}
    try:
        if not _all_reached(current, goal):
            for reply in cli.stream("mcpd/events", {"servers": list(current)}, until=deadline):
                event = mapping(reply.value.get("event")) if reply is not None else {}
                name = str(event.get("server"))
                if name in current:
                    _update(current, name, event)
                    if _all_reached(current, goal):
                        break
    except TimedOut:
        behind = [s for s in current.values() if not _has_reached(s, goal)]
        names = ", ".join(f"{s.get('name')} is {s.get('status')}" for s in behind)
        raise TimedOut(
            f"after {timeout:g} s {names}", hint=next_command(behind[0]), servers=list(current.values())
        ) from None
    if cli.out.json:
        cli.out.json_document(json.dumps({"servers": list(current.values())}))
    else:
        for status in current.values():
            cli.out.line(f"{status.get('name')}: ", painted_state(status), status_summary(status))
    return 0


def _update(current: dict[str, Json], name: str, event: Json) -> None:
    if event.get("kind") == "removed":
        raise ServerNotReady(f"{name} was removed from the set while we waited", server=name)
    if isinstance(event.get("status"), dict):
        current[name] = mapping(event["status"])


def _all_reached(current: dict[str, Json], goal: str) -> bool:
    """Whether all are there. Raises for one that will not get there without a person."""
    if goal == "connected":
        for status in current.values():
            if (error := _blocking_error(status)) is not None:
                raise error
    return all(_has_reached(status, goal) for status in current.values())


def _has_reached(status: Json, goal: str) -> bool:
    return status.get("status") == "connected" or (goal == "settled" and status.get("status") != "pending")


def _blocking_error(status: Json) -> CtlError | None:
    name, word = status.get("name"), status.get("status")
    if word == "needs-auth":
        return AuthNeeded(f"{name} needs a login", server=name, hint=next_command(status))
    if word in ("disabled", "idle") or (word == "failed" and not status.get("retry_at")):
        return ServerNotReady(
            f"{name} is {word}{status_summary(status)}", server=name, state=word, hint=next_command(status)
        )
    return None
