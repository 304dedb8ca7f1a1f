"""`mcpctl prompts` and `mcpctl prompt`."""

from __future__ import annotations

import json

import click

from ctl.call_arguments import parse_pairs, split_target
from ctl.completion_candidates import prompt_targets, server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.errors import UsageError
from ctl.output import Line, paint
from ctl.status_view import mapping, objects
from ctl.table import table


@click.command(epilog="Examples:\n\n\b\n  mcpctl prompts\n  mcpctl prompts everything --json")
@click.argument("server", required=False, shell_complete=server_names)
@click.pass_obj
def prompts(cli: CliContext, server: str | None) -> int:
    """The prompts of every server, or of one.

    ARGUMENTS: those in brackets may be left out. Get one with: mcpctl prompt PROMPT@SERVER key=text
    """
    reply = cli.call("mcpd/prompts", {"server": server} if server else {})
    if cli.show_json(reply):
        return 0
    entries = objects(reply.value.get("prompts"))
    if not entries:
        cli.out.message("no prompts" + (f" on {server}" if server else ""))
        return 0
    rows: list[Line] = [
        [
            f"{entry.get('name', '?')}@{entry.get('server', '?')}",
            _arguments(entry),
            str(entry.get("description") or entry.get("title") or "-"),
        ]
        for entry in entries
    ]
    cli.out.lines(table(("PROMPT", "ARGUMENTS", "DESCRIPTION"), rows, fit=cli.out.columns, squeeze=(1,)))
    return 0


def _arguments(prompt: Json) -> str:
    arguments = objects(prompt.get("arguments"))
    shown = [str(a.get("name")) for a in arguments if a.get("required") is True]
    shown += [f"[{a.get('name')}]" for a in arguments if a.get("required") is not True]
    return " ".join(shown) or "-"


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl prompt simple-prompt@everything\n"
    "  mcpctl prompt everything args-prompt city=Paris"
)
@click.argument(
    "words", metavar="PROMPT@SERVER [KEY=TEXT]...", nargs=-1, required=True, shell_complete=prompt_targets
)
@click.pass_obj
def prompt(cli: CliContext, words: tuple[str, ...]) -> int:
    """Get a prompt, filled in.

    Also written SERVER/PROMPT or SERVER PROMPT. The arguments of prompts are always text.
    """
    server, name, rest = split_target(words, "prompt")
    arguments = parse_pairs(rest, {})
    if wrong := [key for key, value in arguments.items() if not isinstance(value, str)]:
        raise UsageError(f"the arguments of a prompt are text: {', '.join(wrong)}", hint="write KEY=TEXT")
    reply = cli.call("mcpd/prompt", {"server": server, "prompt": name, "arguments": arguments}, timeout=None)
    if cli.show_json(reply):
        return 0
    for message in objects(reply.value.get("messages")):
        cli.out.line(paint(f"{message.get('role', '?')}:", "bold"))
        cli.out.block(_text(mapping(message.get("content"))))
    return 0


def _text(content: Json) -> str:
    if isinstance(text := content.get("text"), str):
        return text
    resource = mapping(content.get("resource"))
    if isinstance(text := resource.get("text"), str):
        return text
    kind = content.get("type", "content")
    about = (
        content.get("mimeType") or content.get("uri") or resource.get("uri") or json.dumps(sorted(content))
    )
    return f"[{kind} {about}]"
