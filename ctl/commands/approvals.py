"""`mcpctl approvals`: list the calls that wait for a person's approval, and answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ctl.cli.errors import DaemonError, NotFound, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.cli.text import ago, until

if TYPE_CHECKING:
    from ctl.api_types import PendingApproval

_DONE = {
    "once": "allowed",
    "session": "allowed until the client disconnects",
    "always": "allowed, and a rule was added to the configuration",
    "no": "refused",
}
HEADER = ("ID", "CLIENT", "USES", "ARGUMENTS", "SINCE", "REFUSED")


@click.group(
    invoke_without_command=True,
    epilog="Examples:\n\n\b\n  mcpctl approvals\n  mcpctl approvals allow 3 --session\n"
    "  mcpctl approvals allow 3 --always\n"
    "  mcpctl approvals deny 3",
)
@click.pass_context
def approvals(context: click.Context) -> int:
    """List the calls that wait for your approval, or answer them.

    Calls wait if a rule in `settings.policies` says `ask`.
    """
    if context.invoked_subcommand is not None:
        return 0
    cli: CliContext = context.find_root().obj
    reply = cli.call("mcpd/approvals")
    if not cli.show_json(reply):
        cli.out.lines(approvals_table(reply.value["approvals"], cli.out.columns))
    return 0


@approvals.command(epilog="Example:\n\n\b\n  mcpctl approvals allow 3")
@click.argument("id")
@click.option("--session", is_flag=True, help="Also allow further uses until the client disconnects.")
@click.option("--always", is_flag=True, help="Also write a rule that always allows this client to use it.")
@click.pass_obj
def allow(cli: CliContext, id: str, session: bool, always: bool) -> int:
    """Allow a call that waits for approval."""
    if session and always:
        raise UsageError("--session and --always exclude each other", hint="use one of them")
    return _answer(cli, id, "always" if always else "session" if session else "once")


@approvals.command(epilog="Example:\n\n\b\n  mcpctl approvals deny 3")
@click.argument("id")
@click.pass_obj
def deny(cli: CliContext, id: str) -> int:
    """Refuse a call that waits for approval."""
    return _answer(cli, id, "no")


def _answer(cli: CliContext, id: str, decision: str) -> int:
    try:
        reply = cli.call("mcpd/approve", {"id": id, "decision": decision})
    except DaemonError as error:
        problem = error.problems[0] if error.code == "invalid_arguments" and error.problems else {}
        if problem.get("path") == "$.id":  # no such call waits
            error.exit = NotFound.exit
        if problem and not cli.out.json:
            # Its path is a parameter of the control API, which nobody has typed.
            error.message, error.hint = str(problem.get("message", "")), str(problem.get("fix", ""))
            del error.details["problems"]
        raise
    if not cli.show_json(reply):
        cli.out.message(f"call {id}: {_DONE[decision]}")
    return 0


def approvals_table(waiting: list[PendingApproval], fit: int | None) -> list[Line]:
    """One row per call, and how to answer."""
    if not waiting:
        return [[paint("no calls wait for approval", "dim")]]
    rows: list[Line] = [
        [
            each["id"],
            each["client"],
            f"{each['name']}@{each['server']}",
            each["arguments"] or "-",
            ago(each["since"]),
            until(each["expires_at"]),
        ]
        for each in waiting
    ]
    first = waiting[0]["id"]
    return [
        *table(HEADER, rows, fit=fit),
        [],
        [paint("next: ", "dim"), f"mcpctl approvals allow {first}   (or: mcpctl approvals deny {first})"],
    ]
