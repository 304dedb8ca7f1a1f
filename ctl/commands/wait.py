"""`mcpctl wait`: until servers are connected, or have at least settled."""

from __future__ import annotations

import json
import time

import click

from ctl.commands.lifecycle import outcome_text
from ctl.completion_candidates import server_names
from ctl.context import Session
from ctl.daemon_client import Json
from ctl.errors import AuthNeeded, CtlError, NotReady, TimedOut
from ctl.next_steps import next_command
from ctl.status_view import mapping, objects, state


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
def wait(session: Session, servers: tuple[str, ...], goal: str, timeout: float) -> int:
    """Wait until servers are connected.

    Without SERVER, waits for every one that is switched on. A server that cannot become connected
    without a person ends the waiting at once: exit 6, or 4 when it needs a login.
    """
    deadline = time.monotonic() + timeout
    known = [session.call("mcpd/server", {"server": s}).value.get("server") for s in servers] or objects(
        session.call("mcpd/status").value.get("servers")
    )
    current = {str(status["name"]): status for status in map(mapping, known)}
    if not servers:
        current = {name: s for name, s in current.items() if s.get("status") not in ("disabled", "idle")}
    try:
        if not _reached(current, goal):
            for reply in session.stream("mcpd/events", {"servers": list(current)}, until=deadline):
                event = mapping(reply.value.get("event")) if reply is not None else {}
                name = str(event.get("server"))
                if name in current:
                    _take(current, name, event)
                    if _reached(current, goal):
                        break
    except TimedOut:
        behind = [s for s in current.values() if not _fine(s, goal)]
        names = ", ".join(f"{s.get('name')} is {s.get('status')}" for s in behind)
        raise TimedOut(
            f"after {timeout:g} s {names}", hint=next_command(behind[0]), servers=list(current.values())
        ) from None
    if session.out.json:
        session.out.document(json.dumps({"servers": list(current.values())}))
    else:
        for status in current.values():
            session.out.line(f"{status.get('name')}: ", state(status), outcome_text(status))
    return 0


def _take(current: dict[str, Json], name: str, event: Json) -> None:
    if event.get("kind") == "removed":
        raise NotReady(f"{name} was removed from the set while we waited", server=name)
    if isinstance(event.get("status"), dict):
        current[name] = mapping(event["status"])


def _reached(current: dict[str, Json], goal: str) -> bool:
    """Whether all are there. Raises for one that will not get there without a person."""
    if goal == "connected":
        for status in current.values():
            if (error := _hopeless(status)) is not None:
                raise error
    return all(_fine(status, goal) for status in current.values())


def _fine(status: Json, goal: str) -> bool:
    return status.get("status") == "connected" or (goal == "settled" and status.get("status") != "pending")


def _hopeless(status: Json) -> CtlError | None:
    name, word = status.get("name"), status.get("status")
    if word == "needs-auth":
        return AuthNeeded(f"{name} needs a login", server=name, hint=next_command(status))
    if word in ("disabled", "idle") or (word == "failed" and not status.get("retry_at")):
        return NotReady(
            f"{name} is {word}{outcome_text(status)}", server=name, state=word, hint=next_command(status)
        )
    return None
