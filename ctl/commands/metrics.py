"""`mcpctl metrics`: the figures for a monitoring system."""

from __future__ import annotations

import click

from ctl.context import CliContext


@click.command(epilog="Examples:\n\n\b\n  mcpctl metrics\n  mcpctl metrics --json | jq -r .text")
@click.pass_obj
def metrics(cli: CliContext) -> int:
    """Everything that is counted, in Prometheus' text format.

    For a textfile collector, say: `mcpctl metrics > /var/lib/node_exporter/mcpd.prom`.
    """
    reply = cli.call("mcpd/metrics")
    if not cli.show_json(reply):
        cli.out.block(str(reply.value.get("text", "")).rstrip("\n"))
    return 0
