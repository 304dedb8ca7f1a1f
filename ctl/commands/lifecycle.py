"""`mcpctl connect`, `disconnect`, `reconnect`, `enable`, `disable` and `wait`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click
from click.decorators import FC

from ctl.completion_candidates import server_names
from ctl.daemon_client import Json
from ctl.errors import AuthNeeded, CtlError, DaemonError, ServerNotReady, TimedOut, UsageError
from ctl.invocation import CliContext
from ctl.next_steps import next_command
from ctl.status_view import failure_summary, not_ready_exit, painted_state
from ctl.terminal_text import count, in_local_time, until
from ctl.time_options import parse_duration, parse_time, rfc3339

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus

servers_argument = click.argument(
    "servers", metavar="SERVER...", nargs=-1, required=True, shell_complete=server_names
)


def seconds_option(name: str, default: float, help: str) -> Callable[[FC], FC]:
    """Return an option for a number of seconds."""
    return click.option(
        name, metavar="SECONDS", type=click.FloatRange(min=0), default=default, show_default=True, help=help
    )


wait_option = seconds_option(
    "--wait", 30.0, "How long to wait for the change to complete; 0 returns immediately."
)


@click.command(epilog="Examples:\n\n\b\n  mcpctl connect github\n  mcpctl connect github time --wait 5")
@servers_argument
@wait_option
@click.pass_obj
def connect(cli: CliContext, servers: tuple[str, ...], wait: float) -> int:
    """Connect servers."""
    return change_servers(cli, "mcpd/connect", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl disconnect github\n  mcpctl disconnect github time")
@servers_argument
@wait_option
@click.pass_obj
def disconnect(cli: CliContext, servers: tuple[str, ...], wait: float) -> int:
    """Disconnect servers until they are connected again."""
    return change_servers(cli, "mcpd/disconnect", servers, wait, ready=False)


@click.command(epilog="Examples:\n\n\b\n  mcpctl reconnect github\n  mcpctl reconnect --failed")
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option("--failed", is_flag=True, help="All servers that failed or need a login.")
@click.option("--all", "every", is_flag=True, help="All enabled servers.")
@wait_option
@click.pass_obj
def reconnect(cli: CliContext, servers: tuple[str, ...], failed: bool, every: bool, wait: float) -> int:
    """Restart the connection to servers."""
    if bool(servers) + failed + every != 1:
        raise UsageError("which servers?", hint="name servers, or use either --failed or --all")
    if not servers:
        servers = tuple(
            server["name"]
            for server in cli.call("mcpd/status").value["servers"]
            if (server["status"] in ("failed", "needs-auth") if failed else server["status"] != "disabled")
        )
        if not servers:
            cli.out.answer({"servers": []}, "no failed servers" if failed else "no enabled servers")
            return 0
    return change_servers(cli, "mcpd/reconnect", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl enable github\n  mcpctl enable github --wait 0")
@servers_argument
@wait_option
@click.pass_obj
def enable(cli: CliContext, servers: tuple[str, ...], wait: float) -> int:
    """Enable servers (persists across restarts)."""
    return change_servers(cli, "mcpd/enable", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl disable github time\n  mcpctl disable github --for 2h")
@servers_argument
@click.option("--for", "length", metavar="TIME", type=parse_duration, help="Disable for 30m, 2h or 1d12h.")
@click.option("--until", "end", metavar="TIME", type=parse_time, help="Disable until 18:00, or an ISO time.")
@wait_option
@click.pass_obj
def disable(
    cli: CliContext, servers: tuple[str, ...], length: timedelta | None, end: datetime | None, wait: float
) -> int:
    """Disable servers (persists across restarts).

    With --for or --until, the servers return to their previous setting at that time, even if the daemon
    restarts or the computer sleeps. `mcpctl enable` enables them earlier.
    """
    if length and end:
        raise UsageError("--for and --until cannot be combined", hint="use one of them")
    until = datetime.now(UTC) + length if length else end
    params: Json = {"until": rfc3339(until)} if until else {}
    return change_servers(cli, "mcpd/disable", servers, wait, ready=False, params=params)


def change_servers(
    cli: CliContext,
    method: str,
    servers: Sequence[str],
    wait: float,
    *,
    ready: bool,
    params: Json | None = None,
) -> int:
    """Call `method` for all servers concurrently and print the resulting state of each.

    With `ready`, the exit code says whether all are connected, unless `wait` is 0.
    """
    names = dict.fromkeys(servers)
    asked: list[Json] = [{"server": name, "wait": wait, **(params or {})} for name in names]
    outcomes = cli.call_all(method, asked, timeout=wait + 30.0)
    errors = [outcome for outcome in outcomes if isinstance(outcome, DaemonError)]
    statuses: list[ServerStatus] = [
        outcome.value["server"] for outcome in outcomes if not isinstance(outcome, DaemonError)
    ]
    print_statuses(cli, statuses)
    for error in errors:
        cli.out.error(error)
    if errors:
        return errors[0].exit
    return max((not_ready_exit(status) for status in statuses), default=0) if ready and wait > 0 else 0


def print_statuses(cli: CliContext, statuses: Sequence[ServerStatus]) -> None:
    """Print one line per server, or one JSON document."""
    if cli.out.json:
        cli.out.json_document(json.dumps({"servers": statuses}))
        return
    for status in statuses:
        cli.out.line(f"{status['name']}: ", painted_state(status), in_local_time(status_summary(status)))


def status_summary(status: ServerStatus) -> str:
    """Return what follows the state in one line about a server."""
    reason = status.get("reason", "")
    if status["status"] == "connected":
        pid = f", pid {pid}" if (pid := status.get("pid")) else ""
        return f" ({count(status.get('tools', 0), 'tool')}{pid})"
    if status["status"] in ("failed", "needs-auth"):
        failure, retry_at = status.get("last_error"), status.get("retry_at")
        retry = f"; next try {until(retry_at)}" if retry_at else ""
        return f": {failure_summary(failure) if failure else reason}{retry}"
    return f" ({reason})" if reason else ""


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
@seconds_option("--timeout", 60.0, "Give up after this time and exit with 7.")
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
