"""`mcpctl cache`: the results that mcpd uses again."""

from __future__ import annotations

import click

from ctl.cli.completion import server_names
from ctl.cli.invocation import CliContext
from ctl.cli.text import count


@click.group(epilog="Examples:\n\n\b\n  mcpctl cache clear\n  mcpctl cache clear github")
def cache() -> None:
    """Manage the results that mcpd uses again.

    Servers and definitions say what may be cached; `mcpctl stats SERVER` shows how often it was used.
    """


@cache.command()
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def clear(cli: CliContext, server: str | None) -> int:
    """Drop the cached results of one server or all servers."""
    reply = cli.call("mcpd/cache/clear", {"server": server})
    if not cli.show_json(reply):
        cli.out.line(f"dropped {count(reply.value['results'], 'result')}")
    return 0
