"""`mcpctl auth`: show, explain, and renew logins. Tokens are never printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ctl.cli.completion import server_names
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.cli.text import ago, until
from ctl.commands.login import describe_login

if TYPE_CHECKING:
    from ctl.api_types import AuthStatus, LoginStatus

HEADER = ("SERVERS", "STATE", "ISSUER", "ACCOUNT", "SINCE", "TOKEN UNTIL", "RENEWS")
_STYLES = {"valid": "green", "over": "red", "failing": "yellow", "renewing": "cyan"}


@click.group(epilog="Examples:\n\n\b\n  mcpctl auth list\n  mcpctl auth explain linear")
def auth() -> None:
    """Show, explain, and renew logins to remote servers."""


@auth.command("list", epilog="Example:\n\n\b\n  mcpctl auth list --json")
@click.pass_obj
def list_(cli: CliContext) -> int:
    """List all logins."""
    reply = cli.call("mcpd/auth/status")
    if not cli.show_json(reply):
        cli.out.lines(logins_table(reply.value, cli.out.columns))
        _show_needed(cli, reply.value)
    return 0


@auth.command(
    "status",
    epilog="Examples:\n\n\b\n  mcpctl auth status\n  mcpctl auth status linear",
)
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def status(cli: CliContext, server: str | None) -> int:
    """Show the login of a server, or all logins in detail.

    Exits with 4 if a server needs a login.
    """
    reply = cli.call("mcpd/auth/status", {"server": server})
    answer = reply.value
    if not cli.show_json(reply):
        for login in answer["logins"]:
            cli.out.lines(login_lines(login))
        if not answer["logins"]:
            cli.out.line(f"{server}: nobody is logged in" if server else "no logins")
        _show_needed(cli, answer)
    return 4 if answer.get("needed") or any(each["state"] == "over" for each in answer["logins"]) else 0


@auth.command("refresh", epilog="Example:\n\n\b\n  mcpctl auth refresh linear")
@click.argument("server", shell_complete=server_names)
@click.pass_obj
def refresh(cli: CliContext, server: str) -> int:
    """Renew a login now."""
    reply = cli.call("mcpd/auth/refresh", {"server": server}, timeout=90.0)
    if not cli.show_json(reply):
        cli.out.line(f"{server}: renewed {describe_login(reply.value)}")
    return 0


@auth.command("explain", epilog="Example:\n\n\b\n  mcpctl auth explain linear")
@click.argument("server", shell_complete=server_names)
@click.pass_obj
def explain(cli: CliContext, server: str) -> int:
    """Show every step of a login, without logging in.

    Exits with 4 if a login is not possible.
    """
    reply = cli.call("mcpd/auth/explain", {"server": server}, timeout=90.0)
    answer = reply.value
    if not cli.show_json(reply):
        cli.out.lines(
            table(("STEP", "OUTCOME"), [[step["step"], step["outcome"]] for step in answer["steps"]])
        )
        cli.out.line("")
        if error := answer.get("error"):
            cli.out.line(paint("a login is not possible: ", "red"), error)
        else:
            rows: list[Line] = [
                ["issuer", answer.get("issuer", "")],
                ["resource", answer.get("resource") or "not sent"],
                ["scopes", " ".join(answer.get("scopes", [])) or "none requested"],
                ["client", answer.get("client", "")],
            ]
            cli.out.lines([[f"{name:<14}", value] for name, value in rows])
            cli.out.next_step(f"mcpctl login {server}")
    return 4 if answer.get("error") else 0


def logins_table(answer: AuthStatus, fit: int | None) -> list[Line]:
    """One row per login."""
    rows: list[Line] = [
        [
            ", ".join(login["servers"]) or "-",
            paint(login["state"], _STYLES.get(login["state"], "")),
            login["issuer"],
            login["account"],
            ago(login.get("logged_in_at")),
            until(login.get("expires_at")) if login.get("expires_at") else "-",
            "yes" if login["renews"] else "no",
        ]
        for login in answer["logins"]
    ]
    return table(HEADER, rows, fit=fit, squeeze=(2,)) if rows else [[paint("no logins", "dim")]]


def login_lines(login: LoginStatus) -> list[Line]:
    """The login in detail."""
    facts = {
        "state": login["state"],
        "issuer": login["issuer"],
        "for": login["url"],
        "account": login["account"],
        "used by": ", ".join(login["servers"]) or "no configured server",
        "scopes": " ".join(login.get("scopes", [])) or "not stated",
        "logged in": ago(login.get("logged_in_at")),
        "renewed": ago(login.get("renewed_at")) if login.get("renewed_at") else "not yet",
        "token until": until(login.get("expires_at")) if login.get("expires_at") else "not stated",
        "renews itself": "yes" if login["renews"] else "no",
    }
    if login.get("reason"):
        facts["reason"] = login.get("reason", "")
    return [*([f"{name:<14}", value] for name, value in facts.items()), [""]]


def _show_needed(cli: CliContext, answer: AuthStatus) -> None:
    if problem := answer.get("problem"):
        cli.out.warning(problem)
    for name in answer.get("needed", [])[:3]:
        cli.out.next_step(f"mcpctl login {name}")
