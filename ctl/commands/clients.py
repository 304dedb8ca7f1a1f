"""`mcpctl clients`: connected clients, their processes and the servers they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.cli.text import ago

if TYPE_CHECKING:
    from ctl.api_types import ClientsResult, ServerUsage

HEADER = ("CLIENT", "PID", "VIA", "CONNECTED", "SCOPE", "REVISION", "CALLS", "SERVERS")


@click.command(epilog="Example:\n\n\b\n  mcpctl clients --json")
@click.pass_obj
def clients(cli: CliContext) -> int:
    """List connected clients and the servers they use.

    SCOPE is the server that a client is connected to, `*` for all servers, or `*PROFILE`.
    """
    reply = cli.call("mcpd/clients")
    if not cli.show_json(reply):
        cli.out.lines(clients_table(reply.value, cli.out.columns))
    return 0


def clients_table(answer: ClientsResult, fit: int | None) -> list[Line]:
    """One row per client, including this mcpctl."""
    rows: list[Line] = [
        [
            client["name"] or "-",
            str(client["pid"] or "-"),
            client["via"],
            ago(client["since"]),
            client.get("sees") or "-",
            client.get("protocol_version") or "-",
            str(client.get("calls", 0)),
            _server_uses(client.get("servers", {})),
        ]
        for client in answer["clients"]
    ]
    return table(HEADER, rows, right=(1, 6), fit=fit) if rows else [[paint("no clients connected", "dim")]]


def _server_uses(servers: Mapping[str, ServerUsage]) -> str:
    """`git (12), time (3, 2025-06-18 → 2026-07-28)`."""
    uses = []
    for name, use in servers.items():
        revisions = use.get("revisions", "")
        translated = f", {revisions}" if "→" in revisions else ""
        uses.append(f"{use.get('instance') or name} ({use['calls']}{translated})")
    return ", ".join(uses) or "-"
