"""`mcpctl why`: why a server is as it is."""

from __future__ import annotations

import os

import click

from ctl import login_shell
from ctl.completion_candidates import server_names
from ctl.context import CliContext
from ctl.status_view import mapping, not_ready_exit, objects

_HISTORY_LIMIT = 200
"""Entries of the history in which the beginning of the trouble is looked for: all that there are."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl why github\n  mcpctl why github --json")
@click.argument("server", shell_complete=server_names)
@click.option("--shell/--no-shell", default=None, help="Compare with a login shell. [when it has failed]")
@click.pass_obj
def why(cli: CliContext, server: str, shell: bool | None) -> int:
    """Why a server is as it is, and what to do.

    The cause, its evidence, who asked for it, and, since services do not see what a terminal does, how a
    login shell of yours differs. The exit code is that of status SERVER.
    """
    from ctl.why import explain, render

    detail = cli.call("mcpd/server", {"server": server}).value
    status = mapping(detail.get("server"))
    compare = status.get("status") in ("failed", "pending") if shell is None else shell
    past = objects(cli.call("mcpd/history", {"server": server, "limit": _HISTORY_LIMIT}).value.get("entries"))
    login = login_shell.login_environment(os.environ) if compare and detail.get("command") else None
    told = explain(detail, past, login)
    if cli.out.json:
        cli.out.json_value(told)
    else:
        cli.out.lines(render(told, cli.out.columns))
    return not_ready_exit(status)
