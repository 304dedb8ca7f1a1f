"""`mcpctl import`: import servers from the configuration of editors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from ctl.completion_candidates import editors_and_files
from ctl.context import CliContext
from ctl.editors.discovery import DiscoveredEntries, ImportCandidate, discover
from ctl.editors.editor_catalog import BY_NAME, EDITORS, EditorSpec
from ctl.editors.editor_paths import UserContext, find_editor_files
from ctl.editors.import_history import ImportHistory, ServerUpdate
from ctl.editors.import_report import (
    as_json,
    describe_target,
    describe_update,
    plan_lines,
    servers_only_in_mcpd,
)
from ctl.editors.import_target import ImportTarget, find_import_target
from ctl.editors.importing import (
    ImportPlan,
    ImportResult,
    build_result,
    plan_import,
    record_import,
    write_import,
)
from ctl.editors.inline_secrets import lift_secrets, masked_definition
from ctl.editors.merging import MergedServer
from ctl.errors import NotFound, UsageError
from ctl.output import paint
from ctl.terminal_text import clean, count
from mcpd.config.loader import SUFFIXES
from mcpd.config.secret_store import secrets_path


@click.command(
    "import",
    epilog="Examples:\n\n\b\n  mcpctl import --dry-run\n  mcpctl import cursor claude-code\n"
    "  mcpctl import ~/backup/mcp.json --yes\n\n"
    f"Editors: {', '.join(BY_NAME)}.",
)
@click.argument("sources", metavar="[EDITOR|FILE]...", nargs=-1, shell_complete=editors_and_files)
@click.option("--server", "-s", "only", metavar="NAME", multiple=True, help="Only servers with this name.")
@click.option("--dry-run", is_flag=True, help="Show what would be imported without changing anything.")
@click.option("--yes", "-y", is_flag=True, help="Import everything possible without asking.")
@click.option("--unfold", is_flag=True, help="Connect directly to the URL behind mcp-remote or mcp-proxy.")
@click.option(
    "--keep-secrets",
    is_flag=True,
    help="Keep secrets in the definitions instead of moving them to the secret store.",
)
@click.option("--disabled", is_flag=True, help="Import the servers as disabled.")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(file_okay=False, exists=True),
    help="Project directory, for its files and ${workspaceFolder}. [default: .]",
)
@click.pass_obj
def import_(
    cli: CliContext,
    sources: tuple[str, ...],
    only: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    unfold: bool,
    keep_secrets: bool,
    disabled: bool,
    project: str | None,
) -> int:
    """Import servers from your editors.

    Reads the configuration of all supported editors, or of those you name, shows each server with the exact
    command it would run, and asks for confirmation. If you run it again, it shows what changed in the editors
    and offers to update the servers. Never modifies the editors' files.
    """
    around = UserContext(os.environ, Path(project or ".").absolute(), project is not None)
    editors, files = parse_sources(sources)
    home = find_import_target(cli)
    found = find_editor_files(editors, around) if editors else []
    if editors and sources and not found and not files:
        titles = " or ".join(editor.title for editor in editors)
        raise NotFound(f"no configuration of {titles} found", hint="name the file: mcpctl import FILE")
    seen = discover(found, files, around, home.addresses)
    memory = ImportHistory(os.environ, home.path)
    if only:
        _filter_servers(seen, only, memory)
    can_ask = sys.stdin.isatty() and not yes
    made = plan_import(cli, home, seen, memory, disabled=disabled, unfold=unfold, can_ask=can_ask, named=only)
    only_here = [] if sources or only else servers_only_in_mcpd(home, made)
    answer = as_json(made, only_here) | {"path": str(home.path), "written": False}
    for warning in seen.warnings:
        cli.out.message(paint("warning: ", "yellow"), warning)
    if not cli.out.json:
        cli.out.lines(plan_lines(made, around, only_here))
    servers, changes, result = made.new_servers, made.updates, ImportResult()
    if (servers or changes) and not dry_run:
        if not yes and not can_ask:
            raise UsageError(
                "importing needs confirmation, but stdin is not a terminal; nothing was written",
                hint="mcpctl import --yes, or preview with --dry-run",
            )
        cli.out.flush()
        answers: dict[str, str] = {}
        try:
            if can_ask:
                servers = _ask_which(servers, home) if servers else []
                changes = [one for one in changes if _confirm_change(one)]
                servers += [one.server for one in changes]
                answers = _ask_for_values(made, servers)
                servers = [
                    one
                    for one in servers
                    if all(answers.get(each.name) for each in made.missing_secrets(one))
                ]
                keep_secrets = keep_secrets or not _confirm_storing_secrets(made, servers)
        except click.Abort:
            cli.out.end_prompt_line()
            cli.out.message("nothing was imported")
            raise KeyboardInterrupt from None
        if not can_ask:
            servers = servers + [one.server for one in changes]
        result = build_result(made, servers, answers, keep=keep_secrets)
        if servers:
            reloaded = write_import(cli, home, result)
            imported = [name for name in result.definitions if name not in result.replaced]
            answer |= {"written": True, "reloaded": reloaded, "imported": imported}
            answer |= {"taken_over": list(result.replaced), "secrets_stored": list(result.secrets)}
        if not cli.out.json:
            _report(cli, home, result)
    elif (servers or changes) and not cli.out.json:
        cli.out.message(paint("next: ", "dim"), "mcpctl import (asks before it changes anything)")
    elif not seen.files and not seen.warnings and not cli.out.json:
        hint = "mcpctl add NAME -- COMMAND, or name a file: mcpctl import FILE"
        cli.out.message(paint("next: ", "dim"), hint)
    if not dry_run:
        _remember(cli, memory, home, made, result)
    if cli.out.json:
        cli.out.json_value(answer)
    broken = [path for path in files if path not in seen.files]  # the user named them
    return UsageError.exit if broken else 0


def _remember(
    cli: CliContext, memory: ImportHistory, home: ImportTarget, made: ImportPlan, result: ImportResult
) -> None:
    """Remember what the editors contain now, so that the next run can show changes."""
    record_import(memory, home, made, result)
    if memory.entries and (trouble := memory.save()):
        cli.out.message(paint("warning: ", "yellow"), trouble)


def _report(cli: CliContext, home: ImportTarget, result: ImportResult) -> None:
    if not result.definitions:
        cli.out.line("nothing was imported")
        return
    changed = f" ({len(result.replaced)} updated)" if result.replaced else ""
    cli.out.line(f"{count(len(result.definitions), 'server')} saved in {home.path}{changed}")
    if result.secrets:
        stored = count(len(result.secrets), "secret")
        cli.out.line(f"{stored} stored in {secrets_path(os.environ)}: {', '.join(result.secrets)}")
    hint = "mcpctl install --all --take-over   (preview with --dry-run)"
    if not home.running:
        cli.out.line("mcpd is not running; it will load them when it starts")
        # Otherwise the first editor waits for npx or uvx downloads and has no tools until then.
        hint = "mcpctl wait   (starts mcpd and the servers), then: mcpctl install --all --take-over"
    cli.out.message(paint("next: ", "dim"), hint)


def parse_sources(words: tuple[str, ...]) -> tuple[tuple[EditorSpec, ...], list[Path]]:
    """Return the named editors and files; all editors if none are named. Raises UsageError."""
    editors: list[EditorSpec] = []
    files: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if word in BY_NAME:
            editors.append(BY_NAME[word])
        elif path.exists() or os.path.sep in word or path.suffix in SUFFIXES:
            if path.is_dir():
                raise UsageError(
                    f"{word} is a directory", hint="name a file in it, or use mcpctl import --project DIR"
                )
            if not path.is_file():
                raise NotFound(f"file not found: {word}")
            files.append(path.absolute())
        else:
            raise unknown_editor(word, list(BY_NAME))
    return (tuple(editors) if words else EDITORS), files


def unknown_editor(word: str, known: list[str]) -> UsageError:
    import difflib

    near = difflib.get_close_matches(word.lower(), known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(known)}"
    return UsageError(f"unknown editor: {word}", hint=hint, suggestions=near)


def _filter_servers(seen: DiscoveredEntries, names: tuple[str, ...], memory: ImportHistory) -> None:
    import difflib

    def called(one: ImportCandidate) -> set[str]:
        then = memory.get(one.source)
        return {one.name, one.source.name, *([then.server] if then is not None else [])}

    there = [name for one in seen.candidates for name in called(one)]
    there += [one.source.name for one in seen.skipped]
    for name in names:
        if name not in there:
            near = difflib.get_close_matches(name, set(there), n=2, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(near)}?" if near else "mcpctl import --dry-run lists all servers"
            )
            raise NotFound(f"no editor has a server named {name}", hint=hint, suggestions=near)
    seen.candidates = [one for one in seen.candidates if not called(one).isdisjoint(names)]
    seen.skipped = [one for one in seen.skipped if one.source.name in names]


def _ask_which(servers: list[MergedServer], home: ImportTarget) -> list[MergedServer]:
    """Ask which servers to import."""
    which = count(len(servers), "server")
    started = " and start the enabled ones" if home.running else ""
    answer = click.prompt(
        f"Import {which} into {home.path}{started}? y: yes, n: no, c: choose",
        type=click.Choice(["y", "n", "c"]),
        default="n",
        show_choices=False,
        err=True,
    )
    if answer == "c":
        return [server for server in servers if click.confirm(_question(server), err=True)]
    return servers if answer == "y" else []


def _confirm_change(change: ServerUpdate) -> bool:
    """Ask whether to apply a change. The default is no if it is more than an update."""
    question = clean(f"{change.server.name}: apply {describe_update(change)}?")
    return click.confirm(question, default=not change.conflicts, err=True)


def _question(server: MergedServer) -> str:
    definition = masked_definition(lift_secrets(server.name, server.definition, {}))
    return clean(f"{server.name}: {describe_target(definition)} ?")


def _confirm_storing_secrets(made: ImportPlan, servers: list[MergedServer]) -> bool:
    """Ask whether to move literal secrets to the secret store."""
    literals = {one.name for server in servers for one in made.lifted[server.name].secrets}
    if not literals:
        return True
    what = count(len(literals), "secret")
    question = (
        f"Move {what} ({', '.join(sorted(literals))}) to {secrets_path(os.environ)}, readable only by you?"
    )
    return click.confirm(question, default=True, err=True)


def _ask_for_values(made: ImportPlan, servers: list[MergedServer]) -> dict[str, str]:
    """Ask once for each value that only the user knows. An empty value skips the server."""
    answers: dict[str, str] = {}
    for server in servers:
        for one in made.missing_secrets(server):
            if one.name not in answers:
                prompt = clean(f"{server.name}: {one.prompt} (press Return to skip)")
                answers[one.name] = click.prompt(
                    prompt, hide_input=True, default="", show_default=False, err=True
                )
    return answers
