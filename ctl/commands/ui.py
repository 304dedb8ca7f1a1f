"""`mcpctl ui`: open the dashboard in the browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from ctl.cli.invocation import CliContext


@click.command(epilog="Examples:\n\n\b\n  mcpctl ui\n  mcpctl ui --print")
@click.option("--print", "only_print", is_flag=True, help="Print the address without opening a browser.")
@click.pass_obj
def ui(cli: CliContext, only_print: bool) -> int:
    """Open the dashboard in your browser.

    The address works once, within a minute. The browser then stays logged in until you log out or mcpd stops.
    If mcpd does not listen for HTTP, it opens a port on this machine that serves only the dashboard. Prints
    the address if there is no browser.
    """
    reply = cli.call("mcpd/page")
    if cli.show_json(reply):
        return 0
    url = reply.value["url"]
    if not only_print and has_browser(os.environ):
        import webbrowser

        if webbrowser.open(url):
            cli.out.message("opened in your browser; if it did not open, run: mcpctl ui --print")
            return 0
    cli.out.line(url)
    cli.out.message("this address works once, within a minute")
    return 0


def has_browser(environ: Mapping[str, str]) -> bool:
    """Return whether a browser window can be opened. Without one, Python would start a text browser."""
    wanted = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(environ.get(name) for name in wanted)
