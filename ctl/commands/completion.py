"""`mcpctl completion`: the script that teaches a shell our commands, servers and tools."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ctl.session import Session


@click.command(
    epilog='Examples:\n\n\b\n  eval "$(mcpctl completion bash)"\n'
    "  mcpctl completion fish > ~/.config/fish/completions/mcpctl.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(session: Session, shell: str) -> int:
    """Print the completion script for a shell.

    The names of servers and tools come from the running daemon; completing never starts one.
    """
    from ctl.app import app

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells that the argument allows"
    session.out.block(kind(app, {}, "mcpctl", "_MCPCTL_COMPLETE").source())
    return 0
