"""`mcpctl completion`: the script that teaches a shell our commands, servers and tools."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ctl.session import Session

_BASH = r"""_mcpctl_completion() {
    local line=${COMP_LINE:0:COMP_POINT} current before kind value
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[-1]}
    # bash breaks words at these, and replaces only what comes after the last of them; a @ belongs to it
    before=${current%"${current##*[@=:]}"}
    before=${before%@}
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *)
                [[ $value == *= ]] && compopt -o nospace
                COMPREPLY+=("${value#"$before"}")
                ;;
        esac
    done < <(COMP_WORDS=$line COMP_CWORD=$((${#words[@]} - 1)) _MCPCTL_COMPLETE=bash_complete "$1")
}

complete -o nosort -F _mcpctl_completion mcpctl
"""
"""Not click's own, which is handed TOOL@SERVER and KEY=VALUE in pieces."""


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

    if shell == "bash":
        session.out.block(_BASH)
        return 0
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that the argument allows"
    session.out.block(kind(app, {}, "mcpctl", "_MCPCTL_COMPLETE").source())
    return 0
