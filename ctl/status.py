"""`mcpctl status`, once it is known what was asked: shared by the fast path and the full command line."""

from __future__ import annotations

from ctl.context import CliContext
from ctl.status_view import mapping, not_ready_exit, server_block, status_table

STATUS_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory; one that needs longer is not well."""


def show_status(cli: CliContext, server: str | None) -> int:
    """Print the table, or one server with its evidence. The answer is the exit code."""
    if server is None:
        reply = cli.call("mcpd/status", timeout=STATUS_TIMEOUT)
        if not cli.show_json(reply):
            cli.out.lines(status_table(reply.value, cli.out.columns))
            _mention_other_version(cli, str(mapping(reply.value.get("daemon")).get("version", "")))
        return 0
    reply = cli.call("mcpd/server", {"server": server}, timeout=STATUS_TIMEOUT)
    if not cli.show_json(reply):
        cli.out.lines(server_block(reply.value))
    return not_ready_exit(mapping(reply.value.get("server")))


def _mention_other_version(cli: CliContext, running: str) -> None:
    from mcpd import __version__

    if running and running != __version__:
        cli.out.message(
            f"note: mcpd {running} is running and this is mcpctl {__version__}; mcpctl daemon restart"
        )
