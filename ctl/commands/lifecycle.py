"""`mcpctl connect`, `disconnect`, `reconnect`, `enable`, `disable`: what a person wants of servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click

from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.errors import DaemonError, UsageError
from ctl.status_view import mapping, not_ready_exit, objects, painted_state
from ctl.terminal_text import count, until
from ctl.time_options import parse_duration, parse_time, rfc3339

servers_argument = click.argument(
    "servers", metavar="SERVER...", nargs=-1, required=True, shell_complete=server_names
)
wait_option = click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Wait so long for it to have settled; 0: do not wait.",
)


@click.command(epilog="Examples:\n\n\b\n  mcpctl connect github\n  mcpctl connect github time --wait 5")
@servers_argument
@wait_option
@click.pass_obj
def connect(cli: CliContext, servers: tuple[str, ...], wait: float) -> int:
    """Connect servers now."""
    return change_servers(cli, "mcpd/connect", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl disconnect github\n  mcpctl disconnect github time")
@servers_argument
@wait_option
@click.pass_obj
def disconnect(cli: CliContext, servers: tuple[str, ...], wait: float) -> int:
    """Disconnect servers until somebody connects them."""
    return change_servers(cli, "mcpd/disconnect", servers, wait, ready=False)


@click.command(epilog="Examples:\n\n\b\n  mcpctl reconnect github\n  mcpctl reconnect --failed")
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option("--failed", is_flag=True, help="All that have failed or need a login.")
@click.option("--all", "every", is_flag=True, help="All that are switched on.")
@wait_option
@click.pass_obj
def reconnect(cli: CliContext, servers: tuple[str, ...], failed: bool, every: bool, wait: float) -> int:
    """End servers and connect them afresh."""
    if bool(servers) + failed + every != 1:
        raise UsageError("reconnect which servers?", hint="name them, or give one of --failed and --all")
    if failed or every:
        servers = _select_servers(cli, ("failed", "needs-auth") if failed else None)
        if not servers:
            return _report_none_selected(
                cli, "no server has failed" if failed else "no server is switched on"
            )
    return change_servers(cli, "mcpd/reconnect", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl enable github\n  mcpctl enable github --wait 0")
@servers_argument
@wait_option
@click.pass_obj
def enable(cli: CliContext, servers: tuple[str, ...], wait: float) -> int:
    """Switch servers on; lasts."""
    return change_servers(cli, "mcpd/enable", servers, wait, ready=True)


@click.command(epilog="Examples:\n\n\b\n  mcpctl disable github time\n  mcpctl disable github --for 2h")
@servers_argument
@click.option(
    "--for", "length", metavar="TIME", type=parse_duration, help="Only for so long: 90s, 30m, 2h, 1d12h."
)
@click.option("--until", "end", metavar="TIME", type=parse_time, help="Only until 18:00, or an ISO time.")
@wait_option
@click.pass_obj
def disable(
    cli: CliContext, servers: tuple[str, ...], length: timedelta | None, end: datetime | None, wait: float
) -> int:
    """Switch servers off; lasts.

    With --for or --until they come back by themselves, when the clock says so: the daemon may be restarted
    meanwhile, and the machine sleep. `mcpctl enable` brings them back before.
    """
    if length and end:
        raise UsageError("--for and --until say the same in two ways", hint="give one of them")
    until = datetime.now(UTC) + length if length else end
    more: Json | None = {"until": rfc3339(until)} if until else None
    return change_servers(cli, "mcpd/disable", servers, wait, ready=False, more=more)


def change_servers(
    cli: CliContext,
    method: str,
    servers: Sequence[str],
    wait: float,
    *,
    ready: bool,
    more: Json | None = None,
) -> int:
    """Ask for all servers at once; one line for each as it is afterwards.

    `ready`: the exit code says whether they all became so. Without waiting there is nothing to say yet.
    """
    names = list(dict.fromkeys(servers))
    asked: list[Json] = [{"server": name, "wait": wait, **(more or {})} for name in names]
    outcomes = cli.call_all(method, asked, timeout=wait + 30.0)
    refusals = [outcome for outcome in outcomes if isinstance(outcome, DaemonError)]
    statuses = [mapping(o.value.get("server")) for o in outcomes if not isinstance(o, DaemonError)]
    if cli.out.json:
        cli.out.json_document(json.dumps({"servers": statuses}))
    else:
        for status in statuses:
            cli.out.line(f"{status.get('name')}: ", painted_state(status), status_summary(status))
    for refusal in refusals:
        cli.out.error(refusal)
    if refusals:
        return refusals[0].exit
    return max((not_ready_exit(s) for s in statuses), default=0) if ready and wait > 0 else 0


def status_summary(status: Json) -> str:
    """What follows the state's word in one line about a server."""
    word = status.get("status")
    if word == "connected":
        tools = status.get("tools")
        pid = f", pid {status['pid']}" if status.get("pid") else ""
        return f" ({count(tools if isinstance(tools, int) else 0, 'tool')}{pid})"
    if word in ("failed", "needs-auth"):
        why = str(mapping(status.get("last_error")).get("message") or status.get("reason") or "")
        again = f"; next try {until(status['retry_at'])}" if status.get("retry_at") else ""
        return f": {why}{again}"
    return f" ({status['reason']})" if status.get("reason") else ""


def _select_servers(cli: CliContext, states: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of the servers in one of `states`; None: of all that are not switched off."""
    servers = objects(cli.call("mcpd/status").value.get("servers"))
    return tuple(
        str(server["name"])
        for server in servers
        if (server.get("status") in states if states is not None else server.get("status") != "disabled")
    )


def _report_none_selected(cli: CliContext, why: str) -> int:
    if cli.out.json:
        cli.out.json_value({"servers": []})
    else:
        cli.out.line(why)
    return 0
