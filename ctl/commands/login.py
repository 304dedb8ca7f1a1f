"""`mcpctl login` and `mcpctl logout`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ctl.commands.ui import has_browser
from ctl.completion_candidates import server_names
from ctl.daemon_client import DaemonClient, Json
from ctl.errors import CtlError, DaemonError, UsageError
from ctl.invocation import CliContext
from ctl.output import paint
from ctl.server_progress import hint_for, print_status
from ctl.terminal_text import until

if TYPE_CHECKING:
    from ctl.api_types import LoginOffer, LoginStatus

_CONNECT_TIMEOUT = 30.0
"""Seconds to wait for the server after the login."""


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl login linear\n  mcpctl login linear --paste\n"
    "  mcpctl login linear --scope write"
)
@click.argument("server", shell_complete=server_names)
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
@click.option("--paste", is_flag=True, help="Log in on another machine, and paste the address it ends at.")
@click.option("--device", is_flag=True, help="Use a code that you enter on any device.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="Also request this scope.")
@click.pass_obj
def login(
    cli: CliContext, server: str, no_browser: bool, paste: bool, device: bool, scopes: tuple[str, ...]
) -> int:
    """Log in to a remote server in your browser.

    mcpd keeps the login and renews it, and all editors use it. Without a browser on this machine, mcpctl
    uses a device code if the server's login offers that, or shows how to forward the port.
    """
    if paste and device:
        raise UsageError("--paste and --device cannot be combined", hint="use one of them")
    headless = not has_browser(os.environ) or _is_remote_shell(os.environ)
    offer = _begin(cli, server, scopes, device=device, try_device=headless and not (paste or no_browser))
    code = offer.get("user_code")
    opened = not (code or no_browser or paste or headless) and _open(offer["url"])
    if cli.out.json and not opened:
        cli.out.message(offer["url"])  # JSON is only the result
    if not cli.out.json:
        _show_offer(cli, offer, opened=opened)
    if not code and not opened and (paste or sys.stdin.isatty()):
        _read_answers(cli, offer["attempt"])
    try:
        reply = cli.call("mcpd/login/wait", {"attempt": offer["attempt"]}, timeout=None)
    except KeyboardInterrupt:
        cli.call("mcpd/login/cancel", {"attempt": offer["attempt"]})
        raise
    if cli.show_json(reply):
        return 0
    cli.out.line(f"{server}: ", paint("logged in", "green"), f" {describe_login(reply.value)}")
    status = cli.call("mcpd/connect", {"server": server, "wait": _CONNECT_TIMEOUT}, timeout=60.0)
    print_status(cli, status.value["server"])
    if status.value["server"]["status"] != "connected":
        cli.out.next_step(hint_for(cli, server))
    return 0


def _begin(
    cli: CliContext, server: str, scopes: tuple[str, ...], *, device: bool, try_device: bool
) -> LoginOffer:
    """Begin a login; with `try_device` by a device code if there are any."""
    if device or try_device:
        try:
            return cli.call(
                "mcpd/login/begin", {"server": server, "device": True, "scopes": list(scopes)}
            ).value
        except DaemonError as error:
            if device or error.details.get("step") != "device code":
                raise
    return cli.call("mcpd/login/begin", {"server": server, "scopes": list(scopes)}).value


def _show_offer(cli: CliContext, offer: LoginOffer, *, opened: bool) -> None:
    out, code = cli.out, offer.get("user_code")
    if opened:
        out.message(f"log in to {offer['issuer']} in the browser window; if there is none, open:")
    elif code:
        out.message("open this address on any device and enter the code ", paint(code, "bold"), ":")
    else:
        out.message("open this address in a browser:")
    out.line(offer["url"])
    redirect = offer.get("redirect_uri")
    if redirect and not opened:
        port = urlsplit(redirect).port
        out.message("if the browser is on another machine, forward the port there first:")
        out.line(f"ssh -L {port}:127.0.0.1:{port} {_this_machine(os.environ)}")
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
                with DaemonClient(cli.socket) as client:
                    asked: Json = {"attempt": attempt, "url": line.strip()}
                    client.request("mcpd/login/answer", asked)
            except CtlError as error:
                cli.out.error(error)
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


@click.command(epilog="Examples:\n\n\b\n  mcpctl logout linear")
@click.argument("server", shell_complete=server_names)
@click.pass_obj
def logout(cli: CliContext, server: str) -> int:
    """Log out of a remote server, and revoke its tokens.

    Other servers with the same address and account use the same login, so they are logged out, too.
    """
    reply = cli.call("mcpd/logout", {"server": server})
    if cli.show_json(reply):
        return 0
    result = reply.value
    if not result["was_logged_in"]:
        cli.out.line(f"{server}: nobody is logged in")
        return 0
    confirmed = {
        True: "the authorization server has revoked the tokens",
        False: "the authorization server did not confirm that the tokens are revoked",
    }.get(
        result.get("revoked"),  # type: ignore[arg-type]  # None is neither
        "the authorization server offers no revocation; the tokens are deleted here",
    )
    others = [name for name in result.get("servers", []) if name != server]
    also = f" (and {', '.join(others)})" if others else ""
    cli.out.line(f"{server}{also}: logged out; {confirmed}")
    return 0
