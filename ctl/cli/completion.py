"""Shell completion: the scripts for bash, zsh and fish, and the candidates from the running daemon.

Completion never starts the daemon and never waits long. click's own scripts are not used: names and
descriptions come from servers, and its bash script would insert a tool named `$(reboot)` unquoted; its fish
script cuts every description at the first comma.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

import click
from click.shell_completion import CompletionItem, FishComplete, ShellComplete, ZshComplete, split_arg_string

from ctl.cli.errors import CtlError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects
from ctl.cli.text import clean
from ctl.commands import COMMANDS
from ctl.daemon.client import DaemonClient, Json

TIMEOUT = 1.0
"""Seconds. Slow completion is worse than none."""


def server_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(str(server["name"]), help=str(server["status"]))
        for server in _query(ctx, "mcpd/status", "servers")
        if str(server["name"]).startswith(incomplete)
    ]


def tool_targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _targets(ctx, _query(ctx, "mcpd/tools", "tools"), incomplete)


def prompt_targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _targets(ctx, _query(ctx, "mcpd/prompts", "prompts"), incomplete)


def command_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    if ctx.params.get("words"):
        return []
    known = {name: entry.help for name, entry in COMMANDS.items() if not entry.hidden or name == "exit-codes"}
    return [CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)]


def editor_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _editors(incomplete, installable=True)


def editors_and_files(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the editors whose files can be read, and any file."""
    return _editors(incomplete, installable=False) or [CompletionItem(incomplete, type="file")]


def _editors(incomplete: str, *, installable: bool) -> list[CompletionItem]:
    from ctl.editors.config_files import EDITORS

    return [
        CompletionItem(editor.name, help=editor.title)
        for editor in EDITORS
        if editor.name.startswith(incomplete) and (editor.entry_form is not None or not installable)
    ]


def _targets(ctx: click.Context, entries: Sequence[Json], incomplete: str) -> list[CompletionItem]:
    typed = ctx.params.get("words")
    if not typed:
        return [
            CompletionItem(name, help=str(entry.get("description", "")).partition("\n")[0][:60])
            for entry in entries
            if (name := f"{entry.get('name')}@{entry.get('server')}").startswith(incomplete)
        ]
    for entry in entries:
        if f"{entry.get('name')}@{entry.get('server')}" == typed[0]:
            return [CompletionItem(word) for word in _arguments(entry) if word.startswith(incomplete)]
    return []


def _arguments(entry: Json) -> list[str]:
    """Return the arguments of a tool or prompt: `key=` for text, `key:=` for anything else."""
    schema = entry.get("inputSchema")
    if not isinstance(schema, dict):
        return [f"{argument.get('name')}=" for argument in objects(entry.get("arguments"))]
    return [
        f"{name}=" if mapping(shape).get("type") == "string" else f"{name}:="
        for name, shape in mapping(schema.get("properties")).items()
    ]


def _query(ctx: click.Context, method: str, member: str) -> list[Json]:
    try:
        cli: CliContext = ctx.find_root().obj
        if cli.elsewhere:  # too slow
            return []
        with DaemonClient(cli.socket) as client:
            return objects(client.request(method, timeout=TIMEOUT).value.get(member))
    except CtlError:
        return []  # a shell prompt must not show errors


_BASH = r"""_mcpctl_completion() {
    local kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                [[ $value == *= ]] && compopt -o nospace
                COMPREPLY+=("$value")
                ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} _MCPCTL_COMPLETE=bash_complete "$1")
}

complete -o nosort -F _mcpctl_completion mcpctl
"""

_ZSH = r"""#compdef mcpctl

_mcpctl_completion() {
    local kind key help
    local -a names shown open response
    (( $+commands[mcpctl] )) || return 1
    local -x _MCPCTL_COMPLETE=zsh_complete COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1))
    response=("${(@f)$(mcpctl)}")
    for kind key help in "${response[@]}"; do
        case $kind in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ $key == *= ]]; then
                    open+=("$key")
                else
                    names+=("$key")
                    [[ $help == _ ]] && shown+=("$key") || shown+=("$key -- $help")
                fi
                ;;
        esac
    done
    (( $#open )) && compadd -V arguments -S '' -a open
    (( $#names )) && compadd -V names -l -d shown -a names
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _mcpctl_completion "$@"
else
    compdef _mcpctl_completion mcpctl
fi
"""

_FISH = r"""function _mcpctl_completion
    set -lx _MCPCTL_COMPLETE fish_complete
    set -lx COMP_WORDS (commandline -cp)
    set -lx COMP_CWORD (commandline -ct)
    for line in (mcpctl)
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                printf '%s\n' $parts[2]
        end
    end
end

complete --no-files --command mcpctl --arguments '(_mcpctl_completion)'
"""

_BREAKS = "@=:"
"""bash splits words at these and replaces only the part after the last one; an @ is part of it."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@=+,%")


class _SafeCompletion:
    """Overrides of click's classes: our own script, and only candidates that can be typed."""

    source_template: ClassVar[str]

    def source(self) -> str:
        return self.source_template

    def candidates(self) -> list[CompletionItem]:
        """Return the printable candidates. Their help comes from servers and is sanitized."""
        assert isinstance(self, ShellComplete)
        items = self.get_completions(*self.get_completion_args())
        kept = [item for item in items if str(item.value).isprintable()]
        for item in kept:
            item.help = clean(item.help) if item.help else None
        return kept


class _Bash(_SafeCompletion, ShellComplete):
    name = "bash"
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        before, word = split_last_word(os.environ.get("COMP_LINE", ""))
        return split_arg_string(before)[1:], "".join(split_arg_string(word))

    def complete(self) -> str:
        _, word = split_last_word(os.environ.get("COMP_LINE", ""))
        return "\n".join(
            f"{item.type},{reply}"
            for item in self.candidates()
            if (reply := str(item.value) if item.type != "plain" else bash_reply(str(item.value), word))
        )


class _Zsh(_SafeCompletion, ZshComplete):
    source_template = _ZSH

    def complete(self) -> str:
        return "\n".join(f"{item.type}\n{item.value}\n{item.help or '_'}" for item in self.candidates())


class _Fish(_SafeCompletion, FishComplete):
    source_template = _FISH

    def complete(self) -> str:
        return "\n".join(
            f"{item.type},{item.value}" + (f"\t{item.help}" if item.help else "")
            for item in self.candidates()
        )


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def split_last_word(line: str) -> tuple[str, str]:
    """Split a command line before the word being typed, including its quotes and backslashes."""
    start, quote, escaped = 0, "", False
    for at, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char.isspace():
            start = at + 1
    return line[:start], line[start:]


def bash_reply(value: str, word: str) -> str:
    """Return the quoted replacement for `word`; empty if there is none.

    Inside quotes, only candidates without special characters are offered, because bash's behaviour there
    depends on its settings.
    """
    quoted = "".join(char if char in _PLAIN or char.isalnum() else f"\\{char}" for char in value)
    if "'" in word or '"' in word:
        return value if quoted == value else ""
    before = word[: max((word.rfind(char) + 1 for char in _BREAKS), default=0)].removesuffix("@")
    return quoted.removeprefix(before) if quoted.startswith(before) else ""
