"""`mcpctl completion`: the script that teaches a shell our commands, servers and tools."""

from __future__ import annotations

import click

from ctl.context import CliContext


@click.command(
    epilog='Examples:\n\n\b\n  eval "$(mcpctl completion bash)"\n'
    "  mcpctl completion fish > ~/.config/fish/completions/mcpctl.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(cli: CliContext, shell: str) -> int:
    """Print the completion script for a shell.

    The names of servers and tools come from the running daemon; completing never starts one. MCPCTL_OUTPUT
    makes no JSON of the script, which a shell is to read; --json does.
    """
    from ctl.app import app
    from ctl.completion_scripts import SHELLS

    script = SHELLS[shell](app, {}, "mcpctl", "_MCPCTL_COMPLETE").source()
    if cli.out.json and not cli.out.format_is_default:
        cli.out.json_value({"shell": shell, "script": script})
    else:
        cli.out.block(script)
    return 0
