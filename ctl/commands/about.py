"""`mcpctl version`, `help`, `exit-codes` and `shutdown`: about mcpctl itself, and the daemon's end."""

from __future__ import annotations

import click

from ctl.completion_candidates import command_names
from ctl.context import Session
from ctl.daemon_client import Json
from ctl.errors import EXIT_CODES, DaemonUnreachable


@click.command(epilog="Examples:\n\n\b\n  mcpctl version\n  mcpctl version --json")
@click.pass_obj
def version(session: Session) -> int:
    """The versions of mcpctl and of the running daemon.

    Never starts the daemon.
    """
    from mcpd import __version__

    session.may_start = False
    daemon: Json | None
    try:
        daemon = session.call("mcpd/version", timeout=10.0).value
    except DaemonUnreachable:
        daemon = None
    if session.out.json:
        session.out.value({"mcpctl": __version__, "daemon": daemon})
        return 0
    session.out.line(f"mcpctl {__version__}")
    if daemon is None:
        session.out.line("mcpd   not running")
        return 0
    protocols = daemon.get("protocol_versions")
    spoken = ", ".join(map(str, protocols)) if isinstance(protocols, list) else "?"
    about = f"pid {daemon.get('pid')}, API {daemon.get('api')}, Python {daemon.get('python')}"
    session.out.line(f"mcpd   {daemon.get('version')} ({about})")
    session.out.line(f"MCP    {spoken}")
    if daemon.get("version") != __version__:
        session.out.talk("note: the daemon is another version; mcpctl daemon restart")
    return 0


@click.command("help", epilog="Examples:\n\n\b\n  mcpctl help call\n  mcpctl help exit-codes")
@click.argument("words", metavar="[COMMAND | exit-codes]", nargs=-1, shell_complete=command_names)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Help on a command, or on exit-codes."""
    session: Session = ctx.obj
    if words == ("exit-codes",):
        return _show_exit_codes(session)
    from ctl.app import app

    parent = app.make_context("mcpctl", [], obj=session, resilient_parsing=True)
    command: click.Command = app  # always that of `parent`
    for word in words:
        if not isinstance(command, click.Group):
            break
        name, found, _ = command.resolve_command(parent, [word])
        if found is None:
            break
        command, parent = found, found.make_context(name, [], parent, resilient_parsing=True)
    session.out.block(parent.get_help())
    return 0


@click.command("exit-codes")
@click.pass_obj
def exit_codes(session: Session) -> int:
    """What the exit codes mean."""
    return _show_exit_codes(session)


def _show_exit_codes(session: Session) -> int:
    if session.out.json:
        session.out.value({"exit_codes": [{"code": code, "meaning": text} for code, text in EXIT_CODES]})
    else:
        session.out.lines([f"{code:>4}  {meaning}"] for code, meaning in EXIT_CODES)
    return 0


@click.command()
@click.pass_obj
def shutdown(session: Session) -> int:
    """Stop the daemon and every server."""
    session.may_start = False
    reply = session.call("mcpd/shutdown")
    if not session.show(reply):
        session.out.line("mcpd is stopping")
    return 0
