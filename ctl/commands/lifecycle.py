"""`mcpctl connect`, `disconnect`, `reconnect`, `enable`, `disable` and `wait`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import click

from ctl.cli.arguments import parse_duration, rfc3339, seconds_option
from ctl.cli.completion import server_names
from ctl.cli.errors import AuthNeeded, CtlError, ServerNotReady, TimedOut, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.text import count
from ctl.daemon.client import Json
from ctl.show.progress import (
    change_each,
    hint_for,
    print_json,
    show_errors,
    show_warnings,
    state_phrase,
    status_summary,
    wait_for_each,
)
from ctl.show.status import not_ready_exit
from mcpd.config.next_step import needs_person

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus

servers_argument = click.argument(
    "servers", metavar="SERVER...", nargs=-1, required=True, shell_complete=server_names
)


optional_servers = click.argument("servers", metavar="SERVER...", nargs=-1, shell_complete=server_names)
all_option = click.option("--all", "every", is_flag=True, help="All servers.")
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
@optional_servers
@all_option
@wait_option
@click.pass_obj
def enable(cli: CliContext, servers: tuple[str, ...], every: bool, wait: float) -> int:
    """Enable servers (persists across restarts)."""
    servers = chosen_servers(cli, servers, every=every)
    return change_servers(cli, "mcpd/enable", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl disable github time\n  mcpctl disable github --for 2h")
@optional_servers
@all_option
@click.option("--for", "length", metavar="TIME", type=parse_duration, help="Disable for 30m, 2h or 1d12h.")
@wait_option
@click.pass_obj
def disable(
    cli: CliContext,
    servers: tuple[str, ...],
    every: bool,
    length: timedelta | None,
    wait: float,
) -> int:
    """Disable servers (persists across restarts).

    With --for, the servers return to their previous setting at the end of that time, even if the daemon
    restarts or the computer sleeps. `mcpctl enable` enables them earlier.
    """
    params: Json = {"until": rfc3339(datetime.now(UTC) + length)} if length else {}
    servers = chosen_servers(cli, servers, every=every)
    return change_servers(cli, "mcpd/disable", servers, wait, ready=False, params=params)


def chosen_servers(cli: CliContext, names: Sequence[str], *, every: bool) -> tuple[str, ...]:
    """Return the named servers, or with `every` all of them. Raises UsageError unless one is given."""
    if bool(names) == every:
        raise UsageError("which servers?", hint="name servers, or use --all")
    if not every:
        return tuple(dict.fromkeys(names))
    return tuple(server["name"] for server in cli.call("mcpd/status").value["servers"])


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
    asked: list[Json] = [{"server": name, "wait": wait, **(params or {})} for name in dict.fromkeys(servers)]
    changed = change_each(cli, method, asked, timeout=wait + 30.0)
    statuses, errors, warnings = changed
    show_warnings(cli, warnings)
    show_errors(cli, errors, all_failed=not statuses)
    print_json(cli, statuses, changed)
    if errors:
        return errors[0].exit
    code = max((not_ready_exit(status) for status in statuses), default=0) if ready and wait > 0 else 0
    if code and not cli.out.json:
        broken = [status["name"] for status in statuses if not_ready_exit(status)]
        cli.out.next_step(hint_for(cli, broken[0]))
    return code


@click.command(epilog="Examples:\n\n\b\n  mcpctl wait github --timeout 10\n  mcpctl wait --any")
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
    "--any", "one_suffices", is_flag=True, help="Try each server once; one connected server is enough."
)
@seconds_option("--timeout", 60.0, "Give up after this time and exit with 7.")
@click.pass_obj
def wait(cli: CliContext, servers: tuple[str, ...], goal: str, one_suffices: bool, timeout: float) -> int:
    """Wait until servers are connected.

    Without SERVER, waits for all enabled servers. Shows each server as soon as its state is known. Exits when
    every server has either connected or needs your attention: with 4 if all that is missing is a login,
    otherwise with 6. A server that keeps crashing counts as soon as it is connected; a warning says so.

    With --any, waits until each server has connected or failed once, and ends with a summary; exits with 0 if
    one of them is connected.
    """
    if servers:
        found = [cli.call("mcpd/server", {"server": name}).value["server"] for name in dict.fromkeys(servers)]
    else:
        listed = cli.call("mcpd/status").value["servers"]
        found = [status for status in listed if status["status"] not in ("disabled", "idle")]

    if one_suffices:
        return _wait_for_any(cli, found, timeout)

    def is_settled(status: ServerStatus) -> bool:
        if goal == "settled":
            return status["status"] != "pending"
        return status["status"] == "connected" or _is_blocked(status)

    statuses = wait_for_each(cli, found, is_settled, timeout=timeout)
    if goal == "connected" and (blocked := [status for status in statuses if _is_blocked(status)]):
        raise _blocking_error(cli, blocked, statuses)
    print_json(cli, statuses)
    unreliable = {each["name"]: each.get("degraded") for each in statuses if each["status"] == "connected"}
    for name, degraded in unreliable.items() if not cli.out.json else ():
        if degraded:
            cli.out.warning(f"{name} is connected, but {degraded}")
            cli.out.next_step(f"mcpctl why {name}")
    return 0


def _wait_for_any(cli: CliContext, found: Sequence[ServerStatus], timeout: float) -> int:
    """Wait until each server has connected or failed, and name those that have not connected."""

    def has_ended(status: ServerStatus) -> bool:
        return status["status"] != "pending" or bool(status.get("attempts"))

    try:
        statuses = wait_for_each(cli, found, has_ended, timeout=timeout)
    except TimedOut as late:
        statuses = cast("list[ServerStatus]", late.details["servers"])
    others = [each for each in statuses if each["status"] != "connected"]
    if others and len(others) == len(statuses):
        raise _blocking_error(cli, others, statuses)
    print_json(cli, statuses)
    if not cli.out.json:
        connected = len(statuses) - len(others)
        cli.out.line(f"{connected} of {count(len(statuses), 'server')} connected")
        for each in others:
            cli.out.next_step(f"mcpctl why {each['name']}   (it {state_phrase(each)})")
    return 0


def _is_blocked(status: ServerStatus) -> bool:
    """Return whether a server will not connect unless a person does something."""
    state, failure = status["status"], status.get("last_error")
    if state == "failed" and status.get("retry_at"):
        return failure is not None and needs_person(failure)
    return state in ("needs-auth", "disabled", "idle", "failed")


def _blocking_error(
    cli: CliContext, blocked: Sequence[ServerStatus], statuses: Sequence[ServerStatus]
) -> CtlError:
    first = blocked[0]
    message = f"{first['name']} {state_phrase(first)}{status_summary(first)}"
    if len(statuses) > 1:
        listed = "; ".join(f"{each['name']} {state_phrase(each)}" for each in blocked)
        message = f"{len(blocked)} of {count(len(statuses), 'server')} not connected: {listed}"
    kind = AuthNeeded if all(status["status"] == "needs-auth" for status in blocked) else ServerNotReady
    return kind(
        message,
        hint=hint_for(cli, first["name"]),
        server=first["name"],
        state=first["status"],
        servers=list(statuses),
    )
