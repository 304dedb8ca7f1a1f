"""`mcpctl import`: import servers from the configuration of editors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ctl.cli.completion import editors_and_files
from ctl.cli.errors import CtlError, NotFound, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.text import clean, count
from ctl.editors.discovery import DiscoveredEntries, ImportCandidate, discover
from ctl.editors.editor_catalog import BY_NAME, EDITORS, EditorSpec
from ctl.editors.editor_paths import UserContext, find_editor_files
from ctl.editors.import_drift import ServerUpdate
from ctl.editors.import_history import ImportHistory
from ctl.editors.import_report import (
    as_json,
    context_of,
    describe_target,
    describe_update,
    plan_lines,
    servers_only_in_mcpd,
)
from ctl.editors.import_rules import NewRule, read_rules
from ctl.editors.import_target import ImportTarget, find_import_target
from ctl.editors.importing import (
    ImportPlan,
    ImportResult,
    build_result,
    name_secrets_again,
    plan_import,
    record_import,
    unite_servers,
    write_import,
)
from ctl.editors.inline_secrets import lift_secrets, masked_definition
from ctl.editors.merging import MergedServer
from mcpd.config.definition_view import environment
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
@click.option("--no-rules", is_flag=True, help="Leave the editors' permissions for tools where they are.")
@click.option("--disabled", is_flag=True, help="Import the servers as disabled.")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(file_okay=False, exists=True),
    help="Project directory, for its files (default: the current one) and for ${workspaceFolder}.",
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
    no_rules: bool,
    disabled: bool,
    project: str | None,
) -> int:
    """Import servers from your editors.

    Reads the configuration of all supported editors, or of those you name, shows each server with the exact
    command it would run, and asks for confirmation. Also imports which tools the editors allow, ask about, or
    deny, as rules for these editors. If you run it again, it shows what changed in the editors and offers to
    update the servers. Never modifies the editors' files.
    """
    user = UserContext(os.environ, Path(project or ".").absolute(), project is not None)
    editors, files = parse_sources(sources)
    target = find_import_target(cli)
    editor_files = find_editor_files(editors, user) if editors else []
    if editors and sources and not editor_files and not files:
        titles = " or ".join(editor.title for editor in editors)
        raise NotFound(f"no configuration of {titles} found", hint="specify a file: mcpctl import FILE")
    discovered = discover(editor_files, files, user, target.addresses)
    history = ImportHistory(os.environ, target.path)
    if only:
        _filter_servers(discovered, only, history)
    can_ask = sys.stdin.isatty() and not yes
    named_editors = [editor.name for editor in editors]
    plan = plan_import(
        cli,
        target,
        discovered,
        history,
        disabled=disabled,
        unfold=unfold,
        can_ask=can_ask,
        named=only,
        read_permissions=None
        if no_rules
        else lambda names, in_entries: read_rules(names, in_entries, named_editors, user),
    )
    only_in_mcpd = [] if sources or only else servers_only_in_mcpd(target, plan)
    report = as_json(plan, only_in_mcpd) | {"path": str(target.path), "written": False}
    for warning in discovered.warnings:
        cli.out.warning(warning)
    if not cli.out.json:
        cli.out.lines(plan_lines(plan, user, only_in_mcpd))
    servers, updates, result = plan.new_servers, plan.updates, ImportResult()
    rules = plan.new_rules((each.name for each in servers), {})
    if (servers or updates or rules) and not dry_run:
        if not yes and not can_ask:
            message = "importing needs confirmation, but stdin is not a terminal; nothing was written"
            raise UsageError(message, hint="mcpctl import --yes, or preview with --dry-run")
        cli.out.flush()
        answers: dict[str, str] = {}
        same: dict[str, str] = {}
        left_out: list[str] = []
        try:
            if can_ask:
                servers = _ask_which(plan, servers, target) if servers else []
                same = _ask_about_similar(plan, servers, target)
                servers = [each for each in servers if each.name not in same]
                updates = [each for each in updates if _confirm_update(each)]
                servers += [each.server for each in updates]
                answers = _ask_for_values(plan, servers)
                chosen = servers
                servers = [s for s in servers if all(answers.get(x.name) for x in plan.missing_secrets(s))]
                left_out = [each.name for each in chosen if each not in servers]
                plan = name_secrets_again(plan, servers)
                rules = _ask_about_rules(plan, servers, same, target)
                keep_secrets = keep_secrets or not _confirm_storing_secrets(plan, servers)
        except click.Abort:
            cli.out.end_prompt_line()
            cli.out.message("nothing was imported")
            raise KeyboardInterrupt from None
        if not can_ask:
            servers = servers + [each.server for each in updates]
        result = build_result(plan, servers, answers, keep=keep_secrets)
        notes = unite_servers(plan, target, result, same)
        result.rules = rules
        if servers or rules:
            reloaded = write_import(cli, target, result)
            imported = [name for name in result.definitions if name not in result.replaced]
            report |= {"written": True, "reloaded": reloaded, "imported": imported}
            report |= {"same": dict(result.same), "rules_added": [one.to_json() for one in rules]}
            report |= {"taken_over": list(result.replaced), "secrets_stored": list(result.secrets)}
        if not cli.out.json:
            _report(cli, target, result, left_out, notes)
    elif (servers or updates or rules) and not cli.out.json:
        cli.out.next_step("mcpctl import (asks before it changes anything)")
    elif not discovered.files and not discovered.warnings and not cli.out.json:
        hint = "mcpctl add NAME -- COMMAND, or name a file: mcpctl import FILE"
        cli.out.next_step(hint)
    if not dry_run:
        record_import(history, target, plan, result)  # so that the next run can show changes
        if (history.entries or history.rules) and (error := history.save()):
            cli.out.warning(error)
    if cli.out.json:
        cli.out.json_value(report)
    unreadable = [path for path in files if path not in discovered.files]  # the user named them
    return UsageError.exit if unreadable else 0


def _report(
    cli: CliContext, target: ImportTarget, result: ImportResult, left_out: list[str], notes: Sequence[str]
) -> None:
    """`left_out`: the servers whose values the user did not enter. `notes` are about equal servers."""
    for name, other in result.same.items():
        cli.out.line(f"{name}: the same as {other}")
    for note in notes:
        cli.out.line(f"note: {note}")
    for name in left_out:
        cli.out.line(
            f"{name}: not imported, because you entered no value; mcpctl import -s {name} asks again"
        )
    if result.rules:
        cli.out.line(f"{count(len(result.rules), 'rule')} added to settings.policies in {target.path}")
    if not result.definitions:
        if not result.rules:
            cli.out.line("nothing was imported")
        return
    changed = f" ({len(result.replaced)} updated)" if result.replaced else ""
    cli.out.line(f"{count(len(result.definitions), 'server')} saved in {target.path}{changed}")
    if result.secrets:
        stored = count(len(result.secrets), "secret")
        cli.out.line(f"{stored} stored in {secrets_path(os.environ)}: {', '.join(result.secrets)}")
    hint = "mcpctl install --all --take-over   (preview with --dry-run)"
    if not target.running:
        cli.out.line("mcpd is not running; it will load them when it starts")
        # Otherwise the first editor waits for npx or uvx downloads and has no tools until then.
        hint = "mcpctl wait   (starts mcpd and the servers), then: mcpctl install --all --take-over"
    cli.out.next_step(hint)


def parse_sources(sources: tuple[str, ...]) -> tuple[tuple[EditorSpec, ...], list[Path]]:
    """Return the named editors and files; all editors if none are named. Raises UsageError."""
    editors: list[EditorSpec] = []
    files: list[Path] = []
    for source in sources:
        path = Path(source).expanduser()
        if source in BY_NAME:
            editors.append(BY_NAME[source])
        elif path.exists() or os.path.sep in source or path.suffix in SUFFIXES:
            if path.is_dir():
                raise UsageError(
                    f"{source} is a directory", hint="name a file in it, or mcpctl import --project DIR"
                )
            if not path.exists():
                raise NotFound(f"file not found: {source}")
            if not path.is_file():
                message = f"cannot read {source}: it is not a regular file"
                raise UsageError(message, hint="save what it contains in a file, and name that one")
            files.append(path.absolute())
        else:
            raise unknown_editor(source, list(BY_NAME), ("to add", "add NAME -- COMMAND"))
    return (tuple(editors) if sources else EDITORS), files


def unknown_editor(source: str, known: list[str], meant: tuple[str, str]) -> CtlError:
    """`meant`: what a user who named a server probably wants, and the command for that."""
    error = UsageError(f"unknown editor: {source}")
    error.suggest(source.lower(), known, f"use one of {', '.join(known)}")
    error.hint += f"; {meant[0]} a server, use: mcpctl {meant[1]}"
    return error


def _filter_servers(discovered: DiscoveredEntries, names: tuple[str, ...], history: ImportHistory) -> None:
    def names_of(each: ImportCandidate) -> set[str]:
        previous = history.get(each.source)
        return {each.name, each.source.name, *([previous.server] if previous is not None else [])}

    known_names = [name for each in discovered.candidates for name in names_of(each)]
    known_names += [each.source.name for each in discovered.skipped]
    for name in names:
        if name not in known_names:
            error = NotFound(f"no editor has a server named {name}")
            raise error.suggest(name, set(known_names), "mcpctl import --dry-run lists all servers")
    discovered.candidates = [each for each in discovered.candidates if not names_of(each).isdisjoint(names)]
    discovered.skipped = [each for each in discovered.skipped if each.source.name in names]


def _ask_which(plan: ImportPlan, servers: list[MergedServer], target: ImportTarget) -> list[MergedServer]:
    """Ask which servers to import."""
    which = count(len(servers), "server")
    started = " and start the enabled ones" if target.running else ""
    answer = click.prompt(
        f"Import {which} into {target.path}{started}? y: yes, n: no, c: choose",
        type=click.Choice(["y", "n", "c"]),
        default="n",
        show_choices=False,
        err=True,
    )
    if answer == "c":
        return _choose(plan, servers)
    return servers if answer == "y" else []


def _choose(plan: ImportPlan, servers: list[MergedServer]) -> list[MergedServer]:
    """Ask about each server. The user can go back, and take all the rest."""
    chosen: dict[str, bool] = {}
    number = 0
    while number < len(servers):
        server = servers[number]
        definition = masked_definition(lift_secrets(server.name, server.definition, {}))
        # Two servers often run the same command and differ in a variable.
        variables = ", ".join(environment(definition))
        given = f" (environment: {variables})" if variables else ""
        about = f"{server.name}: {describe_target(definition)}{given}? ({context_of(plan, server)})"
        keys = ["y", "n", "a", *(["b"] if number else [])]
        legend = f"y: yes, n: no, a: this and all the rest{', b: back' if number else ''}"
        answer = click.prompt(
            clean(f"{about} {legend}"), type=click.Choice(keys), default="n", show_choices=False, err=True
        )
        if answer == "a":
            chosen |= dict.fromkeys((each.name for each in servers[number:]), True)
            break
        chosen[server.name] = answer == "y"
        number += -1 if answer == "b" else 1
    return [each for each in servers if chosen.get(each.name)]


def _ask_about_similar(plan: ImportPlan, servers: list[MergedServer], target: ImportTarget) -> dict[str, str]:
    """Ask about each chosen server that resembles another one. Returns name → the server that it is."""
    available = {each.name for each in servers} | set(target.servers)
    same: dict[str, str] = {}
    found = [(each, plan.similar[each.name]) for each in servers if each.name in plan.similar]
    found = [(server, similar) for server, similar in found if similar.name in available]
    for number, (server, similar) in enumerate(found):
        rest = ", k: keep both, here and in the rest" if number < len(found) - 1 else ""
        question = (
            f"{server.name} looks like {similar.describe()}. Is it the same server? "
            f"y: use only {similar.name}, n: keep both{rest}"
        )
        answer = click.prompt(
            clean(question),
            type=click.Choice(["y", "n", *(["k"] if rest else [])]),
            default="n",
            show_choices=False,
            err=True,
        )
        if answer == "y":
            same[server.name] = similar.name
        elif answer == "k":
            break
    for name in same:
        while same[name] in same:
            same[name] = same[same[name]]
    return same


def _ask_about_rules(
    plan: ImportPlan, servers: list[MergedServer], same: dict[str, str], target: ImportTarget
) -> list[NewRule]:
    """Ask whether to add the rules for the chosen servers and those that mcpd has."""
    if plan.new_servers and not servers and not same:
        return []  # the user has declined the import
    rules = plan.new_rules((each.name for each in servers), same)
    question = f"Add {count(len(rules), 'rule')} to settings.policies in {target.path}?"
    return rules if rules and click.confirm(question, default=True, err=True) else []


def _confirm_update(update: ServerUpdate) -> bool:
    """Ask whether to apply a change. The default is no if it is more than an update."""
    question = clean(f"{update.server.name}: apply {describe_update(update)}?")
    return click.confirm(question, default=not update.conflicts, err=True)


def _confirm_storing_secrets(plan: ImportPlan, servers: list[MergedServer]) -> bool:
    """Ask whether to move literal secrets to the secret store."""
    literals = {each.name for server in servers for each in plan.lifted[server.name].secrets}
    if not literals:
        return True
    what = count(len(literals), "secret")
    question = (
        f"Move {what} ({', '.join(sorted(literals))}) to {secrets_path(os.environ)}, readable only by you?"
    )
    return click.confirm(question, default=True, err=True)


def _ask_for_values(plan: ImportPlan, servers: list[MergedServer]) -> dict[str, str]:
    """Ask once for each value that only the user knows. An empty value skips the server."""
    answers: dict[str, str] = {}
    for server in servers:
        for each in plan.missing_secrets(server):
            if each.name not in answers:
                prompt = clean(f"{server.name}: {each.prompt} (press Return to leave {server.name} out)")
                answers[each.name] = click.prompt(
                    prompt, hide_input=True, default="", show_default=False, err=True
                )
    return answers
