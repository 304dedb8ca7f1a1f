"""`mcpctl status`, `why`, `debug` and `doctor`: what state servers are in, why, and what to do."""

from __future__ import annotations

import os
from contextlib import suppress

import click

from ctl.cli.completion import server_names
from ctl.cli.errors import DaemonError, UsageError
from ctl.cli.invocation import CliContext
from ctl.commands.policy import show_decision
from ctl.commands.stats import show_metrics
from ctl.explain.server import debug_lines, explain, explanation_lines, show_servers
from ctl.show.status import not_ready_exit, show_table

_HISTORY_LIMIT = 200
"""History entries in which the start of the trouble is looked for: all that the daemon keeps."""
_PING_TIMEOUT = 2.0
"""Seconds that a connected server has to answer."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl status\n  mcpctl status github --json")
@click.argument("servers", metavar="[SERVER...]", nargs=-1, shell_complete=server_names)
@click.option("-w", "--watch", is_flag=True, help="Keep updating the display until Ctrl-C.")
@click.pass_obj
def status(cli: CliContext, servers: tuple[str, ...], watch: bool) -> int:
    """Show the status of all servers, or details for one.

    With SERVER, the exit code is 0 if it is connected or idle, 4 if it needs a login, otherwise 6. With
    several, it is the highest of theirs.
    """
    names = list(dict.fromkeys(servers))
    if watch:
        if len(names) > 1:
            raise UsageError("--watch shows one server, or all", hint=f"mcpctl status {names[0]} --watch")
        from ctl.show.watch import watch_status

        return watch_status(cli, names[0] if names else None)
    return show_servers(cli, names) if names else show_table(cli)


@click.command(epilog="Examples:\n\n\b\n  mcpctl why github\n  mcpctl why delete_repo@github --client zed")
@click.argument("server", metavar="{SERVER | TOOL@SERVER}", shell_complete=server_names)
@click.option("--client", metavar="NAME", help="Show whether the policies let this client use TOOL.")
@click.option(
    "--shell/--no-shell",
    default=None,
    help="Compare the environment with that of your terminal. [default: if failed]",
)
@click.pass_obj
def why(cli: CliContext, server: str, client: str | None, shell: bool | None) -> int:
    """Explain the state of a server, or who may use a tool.

    Shows the cause, the evidence and who requested the state. A service does not see the environment of your
    terminal, so for failed servers it also shows how the two differ. The exit code is that of
    `mcpctl status SERVER`.

    With TOOL@SERVER and --client, shows which policy decides, and exits with 1 if the client may not use it.
    """
    if client is not None:
        return show_decision(cli, client, (server,), "tool", {})
    from ctl.explain.environment import login_environment

    with suppress(DaemonError):  # not connected, or no answer, which is in its status then
        cli.call("mcpd/ping", {"server": server, "timeout": _PING_TIMEOUT})
    detail = cli.call("mcpd/server", {"server": server}).value
    compare = detail["server"]["status"] in ("failed", "pending") if shell is None else shell
    compare = compare and not cli.elsewhere  # which has another login shell
    past = cli.call("mcpd/history", {"server": server, "limit": _HISTORY_LIMIT}).value["entries"]
    login = login_environment(os.environ) if compare and detail.get("command") else None
    explanation = explain(detail, past, login)
    if cli.out.json:
        cli.out.json_value(explanation)
    else:
        cli.out.lines(explanation_lines(explanation, detail["server"], cli.out.columns))
    return not_ready_exit(detail["server"])


@click.command(epilog="Examples:\n\n\b\n  mcpctl debug github\n  mcpctl debug --metrics")
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--metrics", "wants_metrics", is_flag=True, help="Print all metrics in Prometheus text format.")
@click.pass_obj
def debug(cli: CliContext, server: str | None, wants_metrics: bool) -> int:
    """Show everything known about one server, or all metrics.

    Includes its command, environment variables, connection steps, unparsable output and the end of its log.
    Secrets are masked. The exit code is that of `mcpctl status SERVER`.
    """
    if bool(server) == wants_metrics:
        raise UsageError("which server?", hint="mcpctl debug SERVER, or mcpctl debug --metrics")
    if not server:
        return show_metrics(cli)
    reply = cli.call("mcpd/server", {"server": server})
    if not cli.show_json(reply):
        cli.out.lines(debug_lines(reply.value))
    return not_ready_exit(reply.value["server"])


@click.command(epilog="Examples:\n\n\b\n  mcpctl doctor\n  mcpctl doctor --bundle mcpd-report.tar.gz")
@click.option("--shell/--no-shell", default=True, help="Compare with your login shell.", show_default=True)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a .tar.gz to attach to a bug report, with secrets masked.",
)
@click.pass_obj
def doctor(cli: CliContext, shell: bool, bundle: str | None) -> int:
    """Check the installation, the configuration and every server.

    Checks the socket, the service, the PATH, the configuration, and every server with a real request. Works
    without a running daemon and never starts one. Suggests a fix for every problem. Exits with 1 if a check
    fails.
    """
    from ctl.explain.doctor import findings_lines, run_checks

    report = run_checks(cli, os.environ, shell=shell)
    if bundle is not None:
        from ctl.explain.bundle import write_bundle

        write_bundle(bundle, report, os.environ)
    if cli.out.json:
        found = [finding._asdict() for finding in report.findings]
        cli.out.json_value({"well": not report.has_failed, "findings": found, "bundle": bundle})
    else:
        cli.out.lines(findings_lines(report.findings))
        if bundle is not None:
            cli.out.message(f"wrote {bundle}; review its contents before you share it")
    return 1 if report.has_failed else 0
