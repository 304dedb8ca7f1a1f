"""`mcpctl ui`: the dashboard in the browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from ctl.context import CliContext
from ctl.errors import DaemonError


@click.command(epilog="Examples:\n\n\b\n  mcpctl ui\n  mcpctl ui --print")
@click.option("--print", "only_print", is_flag=True, help="Print the address, and open nothing.")
@click.pass_obj
def ui(cli: CliContext, only_print: bool) -> int:
    """Open the dashboard in your browser.

    Its address is good once, for a minute; then the browser is let in until you log out, or mcpd ends. mcpd
    has to listen for HTTP. Where there is no browser, the address is printed.
    """
    try:
        reply = cli.call("mcpd/page")
    except DaemonError as error:
        if error.code == "unsupported":
            error.hint = 'mcpctl edit   ("settings": {"http": "127.0.0.1:8931"}), then: mcpctl daemon restart'
        raise
    if cli.show_json(reply):
        return 0
    url = str(reply.value.get("url", ""))
    if not only_print and has_browser(os.environ):
        import webbrowser

        if webbrowser.open(url):
            cli.out.message("opened in your browser; if you do not see it: `mcpctl ui --print`")
            return 0
    cli.out.line(url)
    cli.out.message("good once, for a minute")
    return 0


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether a window can be opened. In a terminal alone, Python would take a browser that fills it."""
    wanted = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(environ.get(name) for name in wanted)
