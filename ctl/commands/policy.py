"""`mcpctl policy` and `approvals`: which rule decides about a use, and the calls that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import click

from ctl.cli.arguments import split_target
from ctl.cli.errors import DaemonError, NotFound, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint, table
from ctl.cli.text import ago, until
from mcpd.model.policy import TRANSPORTS

if TYPE_CHECKING:
    from ctl.api_types import PendingApproval, PolicyClient, PolicyLimit, PolicyParams, PolicyResult

DENIED_EXIT = 1
_COLORS = {"allow": "green", "ask": "yellow", "deny": "red"}
_KINDS = ("tool", "prompt", "resource")


@click.group(epilog="Example:\n\n\b\n  mcpctl policy test zed delete_repo@github")
def policy() -> None:
    """Explain which client may use which tools.

    The rules are in the configuration, under `settings.policies`.
    """


@policy.command(
    epilog="Examples:\n\n\b\n  mcpctl policy test zed delete_repo@github\n"
    "  mcpctl policy test zed file:///etc/passwd@files --kind resource\n"
    "  mcpctl policy test codex create_issue@github --executable /usr/bin/codex"
)
@click.argument("client")
@click.argument("target", metavar="TOOL", nargs=-1)
@click.option("--kind", type=click.Choice(_KINDS), default="tool", help="What TOOL names.", show_default=True)
@click.option("--executable", metavar="PATH", help="The client's program.")
@click.option("--transport", type=click.Choice(TRANSPORTS), help="How the client is connected.")
@click.option("--profile", metavar="NAME", help="The client's profile.")
@click.option("--directory", metavar="DIR", help="The client's working directory.")
@click.pass_obj
def test(cli: CliContext, /, client: str, target: tuple[str, ...], kind: str, **known: str | None) -> int:
    """Show whether the rules allow CLIENT to use TOOL, and which rule decides.

    If a client of that name is connected, what mcpd knows about it is used, unless an option says otherwise.
    Nothing is called. Exits with 1 if the use is denied, or if the client's profile does not select TOOL.
    """
    return show_decision(cli, client, target, kind, known)


def show_decision(
    cli: CliContext, client: str, target: tuple[str, ...], kind: str, known: Mapping[str, str | None]
) -> int:
    """Print which rule decides about a use. Returns the exit code."""
    server, name, rest = split_target(target, kind)
    if rest:
        raise UsageError(f"unexpected argument: {rest[0]}", hint="arguments of the tool do not count")
    given = {key: value for key, value in known.items() if value is not None}
    params = cast("PolicyParams", {"client": client, "server": server, kind: name, **given})
    reply = cli.call("mcpd/policy", params)
    if not cli.show_json(reply):
        cli.out.lines(render(reply.value, f"{name}@{server}", cli.out.columns))
        if reply.value.get("known") is False:
            cli.out.message(paint("warning: ", "yellow"), f"{server} has no {kind} named {name}")
    is_selected = reply.value.get("selected", True)
    return 0 if is_selected and reply.value["decision"] != "deny" else DENIED_EXIT


def render(result: PolicyResult, target: str, fit: int | None) -> list[Line]:
    """The decision first, then what it is based on, then the rules that were compared."""
    decision = result["decision"]
    rule = f" by {result['rule']}" if result["rule"] else ": no rule matches"
    lines: list[Line] = []
    label = paint(f"{target}: ", "bold")
    if not result.get("selected", True):
        lines.append([label, paint(f"not in the profile {result['client']['profile']}", "red")])
        label = paint("the rules alone: ", "bold")
    lines.append([label, paint(decision, _COLORS.get(decision, "bold")), rule])
    if reason := result["reason"]:
        lines.append([f"reason: {reason}"])
    rows = [("client", ", ".join(_described(result["client"])))]
    if (hints := result["annotations"]) is not None:
        rows.append(
            ("annotations", ", ".join(name for name, value in hints.items() if value) or "none is true")
        )
    rows += [("limited to", _limit(each)) for each in result.get("limits", [])]
    rows.append(("rules in", result["source"]))
    lines += [[], *labelled_lines(rows)]
    steps: list[Line] = [
        [
            step["rule"],
            step["decision"],
            "matches" if step["matches"] else _mismatch(step.get("mismatch", "")),
        ]
        for step in result["steps"]
    ]
    return [*lines, [], *table(("RULE", "DECISION", "COMPARED"), steps, fit=fit)] if steps else lines


def _mismatch(why: str) -> str:
    return f"no match: {why}" if why else ""


def _limit(limit: PolicyLimit) -> str:
    concurrent = limit.get("concurrent")
    parts = [limit.get("rate") or "", f"{concurrent} at the same time" if concurrent else ""]
    return f"{' and '.join(filter(None, parts))} by {limit['rule']}"


def _described(client: PolicyClient) -> list[str]:
    """Return what is known of the client."""
    parts = [" or ".join(client["names"]) or "no name"]
    parts += [
        f"{name} {value}"
        for name, value in (
            ("executable", client["executable"]),
            ("transport", client["transport"]),
            ("profile", client["profile"]),
            ("directory", client["directory"]),
        )
        if value
    ]
    return [*parts, "connected now" if client["connected"] else "not connected"]


_DONE = {
    "once": "allowed",
    "session": "allowed until the client disconnects",
    "always": "allowed, and a rule was added to the configuration",
    "no": "refused",
}
HEADER = ("ID", "CLIENT", "USES", "SINCE", "REFUSED")


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
    """One row per call, all arguments, and how to answer."""
    if not waiting:
        return [[paint("no calls wait for approval", "dim")]]
    rows: list[Line] = [
        [
            each["id"],
            each["client"],
            f"{each['name']}@{each['server']}",
            ago(each["since"]),
            until(each["expires_at"]),
        ]
        for each in waiting
    ]
    first = waiting[0]["id"]
    return [
        *table(HEADER, rows, fit=fit),
        [],
        *([paint(f"{each['id']}: ", "bold"), each["arguments"]] for each in waiting if each["arguments"]),
        [paint("next: ", "dim"), f"mcpctl approvals allow {first}   (or: mcpctl approvals deny {first})"],
    ]
