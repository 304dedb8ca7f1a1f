"""Names for the shell's completion, from the running daemon, quickly or not at all."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ctl.commands import COMMANDS
from ctl.context import CliContext
from ctl.daemon_client import DaemonClient, Json
from ctl.errors import CtlError
from ctl.status_view import objects

TIMEOUT = 1.0
"""Seconds. A completion that takes longer is worse than none."""


def server_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the servers, with how they are."""
    servers = _query(ctx, "mcpd/status", "servers")
    return [
        CompletionItem(str(server.get("name")), help=str(server.get("status", "")))
        for server in servers
        if str(server.get("name")).startswith(incomplete)
    ]


def tool_targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """TOOL@SERVER, and after it the tool's arguments."""
    return _targets(_query(ctx, "mcpd/tools", "tools"), _typed_words(ctx), incomplete)


def prompt_targets(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """PROMPT@SERVER, and after it the prompt's arguments."""
    return _targets(_query(ctx, "mcpd/prompts", "prompts"), _typed_words(ctx), incomplete)


def command_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The commands, and what else there is help on."""
    if ctx.params.get("words"):
        return []
    known = {name: entry.help for name, entry in COMMANDS.items() if not entry.hidden or name == "exit-codes"}
    return [CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)]


def editor_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The editors that can be given an entry."""
    from ctl.editors.editor_catalog import EDITORS

    return [
        CompletionItem(editor.name, help=editor.title)
        for editor in EDITORS
        if editor.entry_form is not None and editor.name.startswith(incomplete)
    ]


def editors_and_files(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The editors whose files can be read, and any file."""
    from ctl.editors.editor_catalog import EDITORS

    names = [
        CompletionItem(editor.name, help=editor.title)
        for editor in EDITORS
        if editor.name.startswith(incomplete)
    ]
    return names or [CompletionItem(incomplete, type="file")]


def _targets(entries: list[Json], typed: list[str], incomplete: str) -> list[CompletionItem]:
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
    """`key=` for text and `key:=` for anything else, of a tool or a prompt."""
    schema = entry.get("inputSchema")
    if not isinstance(schema, dict):
        return [f"{argument.get('name')}=" for argument in objects(entry.get("arguments"))]
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [
        f"{name}=" if isinstance(shape, dict) and shape.get("type") == "string" else f"{name}:="
        for name, shape in properties.items()
    ]


def _typed_words(ctx: click.Context) -> list[str]:
    words = ctx.params.get("words") or ()
    return [str(word) for word in words]


def _query(ctx: click.Context, method: str, key: str) -> list[Json]:
    try:
        cli: CliContext = ctx.find_root().obj
        with DaemonClient(cli.socket) as client:
            return objects(client.call(method, timeout=TIMEOUT).value.get(key))
    except CtlError:
        return []  # a shell's prompt is no place for an error
