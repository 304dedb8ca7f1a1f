"""Completion candidates for the shell, from the running daemon. Never starts it and never waits long."""

from __future__ import annotations

from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from ctl.commands import COMMANDS
from ctl.daemon_client import DaemonClient, Json
from ctl.errors import CtlError
from ctl.invocation import CliContext
from ctl.json_values import mapping, objects

TIMEOUT = 1.0
"""Seconds. Slow completion is worse than none."""


def server_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of servers, with their states."""
    return [
        CompletionItem(str(server["name"]), help=str(server["status"]))
        for server in _query(ctx, "mcpd/status", "servers")
        if str(server["name"]).startswith(incomplete)
    ]


def tool_targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete TOOL@SERVER, then the tool's arguments."""
    return _targets(ctx, _query(ctx, "mcpd/tools", "tools"), incomplete)


def prompt_targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete PROMPT@SERVER, then the prompt's arguments."""
    return _targets(ctx, _query(ctx, "mcpd/prompts", "prompts"), incomplete)


def command_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the topics of `mcpctl help`."""
    if ctx.params.get("words"):
        return []
    known = {name: entry.help for name, entry in COMMANDS.items() if not entry.hidden or name == "exit-codes"}
    return [CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)]


def editor_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the editors that can be configured."""
    return _editors(incomplete, installable=True)


def editors_and_files(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the editors whose files can be read, and any file."""
    return _editors(incomplete, installable=False) or [CompletionItem(incomplete, type="file")]


def _editors(incomplete: str, *, installable: bool) -> list[CompletionItem]:
    from ctl.editors.editor_catalog import EDITORS

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
        with DaemonClient(cli.socket) as client:
            return objects(client.request(method, timeout=TIMEOUT).value.get(member))
    except CtlError:
        return []  # a shell prompt must not show errors
