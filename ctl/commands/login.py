"""`mcpctl login`, `logout` and `auth`: log in, out, and show logins. Tokens are never printed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import click

from ctl.cli.completion import server_names
from ctl.cli.errors import CtlError, DaemonError, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, paint, table
from ctl.cli.text import ago, until
from ctl.commands.help_version import has_browser
from ctl.daemon.client import Json
from ctl.show.progress import hint_for, print_status, show_warnings

if TYPE_CHECKING:
    from ctl.api_types import (
        AuthStatus,
        ForgottenLogin,
        LoginOffer,
        LoginParams,
        LoginStatus,
        LogoutParams,
        Reply,
    )

_CONNECT_TIMEOUT = 30.0
"""Seconds to wait for the server after the login."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl login linear\n  mcpctl login --all\n  mcpctl login --list")
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--list", "show", flag_value="list", help="Show all logins, or SERVER's in detail.")
@click.option("--explain", "show", flag_value="explain", help="Show every step without logging in.")
@click.option("--renew", "show", flag_value="refresh", help="Renew the login of SERVER now.")
@click.option("--all", "all_servers", is_flag=True, help="Log in to all servers that need it, one by one.")
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
@click.option("--paste", is_flag=True, help="Log in on another machine, and paste the address it ends at.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Also request this scope.")
@click.option("--client-id", metavar="ID", help="Use this client, which you have registered.")
@click.option("--client-secret", metavar="NAME", help="The name of its secret (mcpctl secret set NAME).")
@click.option("--callback-port", type=int, metavar="PORT", help="The port of the redirect URI on localhost.")
@click.pass_obj
def login(
    cli: CliContext,
    server: str | None,
    show: str | None,
    all_servers: bool,
    no_browser: bool,
    paste: bool,
    scopes: tuple[str, ...],
    client_id: str | None,
    client_secret: str | None,
    callback_port: int | None,
) -> int:
    """Log in to a remote server in your browser, or show logins.

    mcpd keeps the login and renews it, and all editors use it. Without a browser on this machine, mcpctl
    shows how to forward the port, and takes the address that a browser elsewhere ends at.
    """
    if show is not None:
        return _show(cli, show, server)
    asked: LoginParams = {"server": server or "", "scopes": list(scopes)}
    if client_id is not None:
        asked["client_id"] = client_id
    if client_secret is not None:
        asked["client_secret_name"] = client_secret
    if callback_port is not None:
        asked["callback_port"] = callback_port
    way = _LoginMethod(no_browser, paste)
    if all_servers:
        if server is not None or set(asked) != {"server", "scopes"}:
            raise UsageError(
                "--all uses the definitions as they are", hint="omit the server and the other options"
            )
        return _log_in_to_all(cli, asked, way)
    if server is None:
        raise UsageError("name a server, or use --all", hint="mcpctl login --list")
    reply = _log_in(cli, asked, way)
    if cli.show_json(reply):
        return 0
    _show_connected(cli, server)
    return 0


def _show(cli: CliContext, what: str, server: str | None) -> int:
    """Do what a command of `mcpctl auth` does."""
    name = "status" if what == "list" and server else what
    if server is None and what != "list":
        raise UsageError("name a server", hint="mcpctl login --list")
    callback = auth.commands[name].callback
    assert callback is not None
    return int(callback(server) if server else callback())


class _LoginMethod(NamedTuple):
    """How a person logs in, according to the options."""

    no_browser: bool
    paste: bool


def _log_in_to_all(cli: CliContext, asked: LoginParams, way: _LoginMethod) -> int:
    """Log in to each server that needs it. One login may serve several. Exits with 4 if any failed."""
    done: list[LoginStatus] = []
    failed: list[dict[str, str]] = []
    tried: set[str] = set()
    while names := [name for name in _needing(cli) if name not in tried]:
        server = names[0]
        tried.add(server)
        cli.out.message(f"{server} ({len(names)} left)")
        try:
            reply = _log_in(cli, {**asked, "server": server}, way)
        except DaemonError as error:
            if not cli.out.json:
                cli.out.error(error)
            failed.append({"server": server, "error": str(error)})
            continue
        done.append(reply.value)
        for name in reply.value["servers"]:
            tried.add(name)  # if it needs anything else, another login does not help
            if not cli.out.json:
                _show_connected(cli, name)
    if cli.out.json:
        cli.out.json_value({"logins": done, "failed": failed})
    elif not tried:
        cli.out.line("no server needs a login")
    return 4 if failed else 0


def _needing(cli: CliContext) -> list[str]:
    """Return the servers that need a login, including those that still work without one."""
    answer = cli.call("mcpd/auth/status").value
    over = [name for each in answer["logins"] if each["state"] == "over" for name in each["servers"]]
    return list(dict.fromkeys([*answer.get("needed", []), *over]))


def _log_in(cli: CliContext, asked: LoginParams, way: _LoginMethod) -> Reply[LoginStatus]:
    """Log in, with the help of the person, and print the outcome unless the output is JSON."""
    headless = cli.elsewhere or not has_browser(os.environ) or _is_remote_shell(os.environ)
    offer = cli.call("mcpd/login/begin", asked).value
    opened = not (way.no_browser or way.paste or headless) and _open(offer["url"])
    if cli.out.json and not opened:
        cli.out.message(offer["url"])  # JSON is only the result
    if not cli.out.json:
        _show_offer(cli, offer, opened=opened)
    if not opened and (way.paste or sys.stdin.isatty()):
        _read_answers(cli, offer["attempt"])
    try:
        reply = cli.call("mcpd/login/wait", {"attempt": offer["attempt"]}, timeout=None)
    except KeyboardInterrupt:
        cli.call("mcpd/login/cancel", {"attempt": offer["attempt"]})
        raise
    if not cli.out.json:
        outcome = f" {describe_login(reply.value)}"
        cli.out.line(f"{asked['server']}: ", paint("logged in", "green"), outcome)
    show_warnings(cli, reply.value.get("warnings", ()))
    return reply


def _show_connected(cli: CliContext, server: str) -> None:
    """Wait for the server to connect, and show its state."""
    status = cli.call("mcpd/connect", {"server": server, "wait": _CONNECT_TIMEOUT}, timeout=60.0)
    print_status(cli, status.value["server"])
    if status.value["server"]["status"] != "connected":
        cli.out.next_step(hint_for(cli, server))


def _show_offer(cli: CliContext, offer: LoginOffer, *, opened: bool) -> None:
    out = cli.out
    if opened:
        out.message(f"log in to {offer['issuer']} in the browser window; if there is none, open:")
    else:
        out.message("open this address in a browser:")
    out.line(offer["url"])
    if not opened and out.url:
        out.message("then paste the address that the browser ends at, though the browser cannot open it:")
    elif not opened:
        port = urlsplit(offer["redirect_uri"]).port
        out.message("if the browser is on another machine, forward the port there first:")
        out.line(f"ssh -L {port}:127.0.0.1:{port} {out.host or _this_machine(os.environ)}")
        out.message("or paste the address that the browser ends at:")
    else:
        out.message("waiting for you to finish (Ctrl-C cancels)")


def _read_answers(cli: CliContext, attempt: str) -> None:
    """Pass on pasted addresses in a thread, over a connection of its own, while the login is waited for."""

    def read() -> None:
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                with cli.connect() as client:
                    asked: Json = {"attempt": attempt, "url": line.strip()}
                    client.request("mcpd/login/answer", asked)
            except CtlError as error:  # text, also with --json: it does not end the command
                cli.out.message(paint("error: ", "red"), error.message)
            else:
                return

    threading.Thread(target=read, daemon=True).start()


def _open(url: str) -> bool:
    import webbrowser

    return url.startswith(("https://", "http://")) and webbrowser.open(url)


def _is_remote_shell(environ: Mapping[str, str]) -> bool:
    """Return whether a browser opened here would be on another machine than the person."""
    return bool(environ.get("SSH_CONNECTION")) and not environ.get("BROWSER")


def _this_machine(environ: Mapping[str, str]) -> str:
    """Return what to write after `ssh`: the address under which this shell was reached, else the name."""
    import getpass
    import socket

    parts = environ.get("SSH_CONNECTION", "").split()
    return f"{getpass.getuser()}@{parts[2] if len(parts) == 4 else socket.gethostname()}"


def describe_login(status: LoginStatus) -> str:
    """Return `at ISSUER (account NAME), until 14:05, renews itself`."""
    account = "" if status["account"] == "default" else f" (account {status['account']})"
    parts = [f"at {status['issuer']}{account}"]
    if status.get("expires_at") and not status["renews"]:
        parts.append(f"expires {until(status.get('expires_at'))}")
    parts.append("renews itself" if status["renews"] else "cannot be renewed")
    return ", ".join(parts)


@click.command(epilog="Examples:\n\n\b\n  mcpctl logout linear\n  mcpctl logout --all")
@click.argument("server", required=False, shell_complete=server_names)
@click.option("--all", "every", is_flag=True, help="Log out of everything, also with accounts not in use.")
@click.option("--person", help="Log out this person on another machine, of all servers or of SERVER.")
@click.pass_obj
def logout(cli: CliContext, server: str | None, every: bool, person: str | None) -> int:
    """Log out of a remote server, and revoke its tokens.

    Other servers with the same address and account use the same login, so they are logged out, too.
    """
    if every and (server is not None or person is not None):
        raise UsageError("--all means all servers, accounts and people", hint="use it alone")
    if not every and server is None and person is None:
        raise UsageError("name a server, or use --all", hint="mcpctl login --list")
    params: LogoutParams = {"all": True} if every else {"server": server, "person": person}
    reply = cli.call("mcpd/logout", params, timeout=None)  # each request to revoke has a limit
    if cli.show_json(reply):
        return 0
    result = reply.value
    if not result["was_logged_in"]:
        cli.out.line("nobody is logged in" if server is None else f"{server}: nobody is logged in")
    for login in result.get("logins", []):
        outcome = _REVOCATIONS[login.get("revoked")]
        cli.out.line(f"{_describe_logout(login)}: logged out; {outcome}")
    return 0


def _describe_logout(login: ForgottenLogin) -> str:
    """Return which servers are logged out: `linear, linear-eu (account work)`."""
    account = "" if login["account"] == "default" else f" (account {login['account']})"
    return (", ".join(login.get("servers", [])) or login["url"]) + account


_REVOCATIONS = {
    True: "the authorization server has revoked the tokens",
    False: "the authorization server did not confirm that the tokens are revoked",
    None: "the authorization server offers no revocation; the tokens are deleted here",
}


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
