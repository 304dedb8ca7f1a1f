"""`mcpctl clients`: who is connected, from which process, using what."""

from __future__ import annotations

import click

from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.output import Line, paint
from ctl.status_view import mapping, objects
from ctl.table import table
from ctl.terminal_text import ago

HEADER = ("CLIENT", "PID", "DOOR", "CONNECTED", "SEES", "REVISION", "CALLS", "USES")


@click.command(epilog="Example:\n\n\b\n  mcpctl clients --json")
@click.pass_obj
def clients(cli: CliContext) -> int:
    """Who is connected, from which process, using what.

    SEES is the server a client speaks MCP to, or `*` for all of them together.
    """
    reply = cli.call("mcpd/clients")
    if not cli.show_json(reply):
        cli.out.lines(clients_table(reply.value, cli.out.columns))
    return 0


def clients_table(answer: Json, fit: int | None) -> list[Line]:
    """One row a client; the one who asks is among them."""
    rows: list[Line] = [
        [
            str(client.get("name") or "-"),
            str(client.get("pid") or "-"),
            str(client.get("door")),
            ago(client.get("since")),
            str(client.get("sees") or "-"),
            str(client.get("protocol_version") or "-"),
            str(client.get("calls", 0)),
            _server_uses(mapping(client.get("servers"))),
        ]
        for client in objects(answer.get("clients"))
    ]
    return table(HEADER, rows, right=(1, 6), fit=fit) if rows else [[paint("nobody is connected", "dim")]]


def _server_uses(servers: Json) -> str:
    """`git (12), time (3, 2025-06-18 → 2026-07-28)`."""
    told = []
    for name, use in servers.items():
        each = mapping(use)
        revisions = str(each.get("revisions") or "")
        between = f", {revisions}" if "→" in revisions else ""
        told.append(f"{each.get('instance') or name} ({each.get('calls', 0)}{between})")
    return ", ".join(told) or "-"
