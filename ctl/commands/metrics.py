"""`mcpctl metrics`: the figures for a monitoring system."""

from __future__ import annotations

import click

from ctl.context import Session


@click.command(epilog="Examples:\n\n\b\n  mcpctl metrics\n  mcpctl metrics --json | jq -r .text")
@click.pass_obj
def metrics(session: Session) -> int:
    """Everything that is counted, in Prometheus' text format.

    For a textfile collector, say: `mcpctl metrics > /var/lib/node_exporter/mcpd.prom`.
    """
    reply = session.call("mcpd/metrics")
    if not session.show(reply):
        session.out.block(str(reply.value.get("text", "")).rstrip("\n"))
    return 0
