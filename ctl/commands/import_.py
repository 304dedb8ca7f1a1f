"""`mcpctl import`: import servers from the configuration of editors."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import click

from ctl.cli.completion import editors_and_files
from ctl.cli.errors import CtlError, NotFound, UsageError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import strings
from ctl.cli.output import Line, paint
from ctl.cli.text import clean, count
from ctl.daemon.client import Json
from ctl.editors.config_files import BY_NAME, EDITORS, EditorSpec, UserContext, find_editor_files
from ctl.editors.import_plan import (
    ImportPlan,
    ImportResult,
    ImportTarget,
    build_result,
    find_import_target,
    plan_import,
    write_import,
)
from ctl.editors.merge import KnownEntry, MergedServer
from ctl.editors.read_entries import (
    IS_MCPD,
    DiscoveredEntries,
    EntrySource,
    SkippedEntry,
    discover,
    valid_server_name,
)
from ctl.editors.secrets import masked_definition
from mcpd.config.inherited_environment import to_pass_step, withheld_variables
from mcpd.config.loader import SUFFIXES
from mcpd.config.secret_store import secrets_path


@click.command(
    "import",
    epilog="Examples:\n\n\b\n  mcpctl import --dry-run\n  mcpctl import cursor claude-code\n"
    "  mcpctl import ~/backup/mcp.json --yes\n\n"
    f"Editors: {', '.join(BY_NAME)}.",
)
@click.argument("sources", metavar="[EDITOR|FILE]...", nargs=-1, shell_complete=editors_and_files)
@click.option(
    "--server",
    "-s",
    "only",
    metavar="NAME",
    multiple=True,
    help="Only this server, even if there is a similar one.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported without changing anything.")
@click.option("--yes", "-y", is_flag=True, help="Import all of your own entries without asking.")
@click.option("--unfold", is_flag=True, help="Connect directly to the URL behind mcp-remote.")
@click.option("--no-rules", is_flag=True, help="Do not import which tools the editors deny or ask about.")
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
    no_rules: bool,
    project: str | None,
) -> int:
    """Import servers from your editors.

    Reads the configuration of all supported editors, or of those you name, shows each server with the exact
    command it would run, and asks for confirmation. Also imports which tools the editors deny or ask about,
    as rules for these editors. Leaves out entries with the package or URL of a server that mcpd has, and
    shows the difference. Never modifies the editors' files.
    """
    user = UserContext(os.environ, Path(project or ".").absolute(), project is not None)
    editors, files = parse_sources(sources)
    target = find_import_target(cli)
    discovered = _discover(editors, files, user, target, named=bool(sources))
    discovered.warnings += [
        f"{name} of this shell holds a password, so servers do not get it; to pass it: {to_pass_step(name)}"
        for name in withheld_variables(os.environ)
        if name not in target.shared_env
    ]
    if only:
        _keep_only(discovered, only)
    if yes:
        _leave_out_projects(discovered, files, only)
    can_ask = sys.stdin.isatty() and not yes
    plan = plan_import(
        cli,
        target,
        discovered,
        user,
        named=only,
        with_rules=not no_rules,
        unfold=unfold,
        can_ask=can_ask,
    )
    _show_plan(cli, plan, user)
    report = {**_plan_json(plan), "path": str(target.path), "written": False}
    if dry_run or not (plan.new_servers or plan.rules):
        _show_next_step(cli, plan)
    else:
        if not yes and not can_ask:
            message = "importing needs confirmation, but stdin is not a terminal; nothing was written"
            raise UsageError(message, hint="mcpctl import --yes, or preview with --dry-run")
        cli.out.flush()
        answers = _ask(cli, plan, target) if can_ask else {}
        report |= _apply(cli, plan, target, answers)
    if cli.out.json:
        cli.out.json_value(report)
    unreadable = [path for path in files if path not in discovered.files]  # the user named them
    return UsageError.exit if unreadable else 0


def _show_next_step(cli: CliContext, plan: ImportPlan) -> None:
    if cli.out.json:
        return
    if plan.new_servers or plan.rules:
        cli.out.next_step("mcpctl import (asks before it changes anything)")
    elif not plan.discovered.files and not plan.discovered.warnings:
        cli.out.next_step("mcpctl add NAME -- COMMAND, or name a file: mcpctl import FILE")


# ---- what to import ----------------------------------------------------------------------------------


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


def _discover(
    editors: tuple[EditorSpec, ...],
    files: list[Path],
    user: UserContext,
    target: ImportTarget,
    *,
    named: bool,
) -> DiscoveredEntries:
    editor_files = find_editor_files(editors, user) if editors else []
    if editors and named and not editor_files and not files:
        titles = " or ".join(editor.title for editor in editors)
        raise NotFound(f"no configuration of {titles} found", hint="specify a file: mcpctl import FILE")
    return discover(editor_files, files, user, target.addresses)


def _keep_only(discovered: DiscoveredEntries, names: tuple[str, ...]) -> None:
    known = {name for one in discovered.candidates for name in (one.name, one.source.name)}
    known |= {one.source.name for one in discovered.skipped}
    for name in names:
        if name not in known:
            error = NotFound(f"no editor has a server named {name}")
            raise error.suggest(name, known, "mcpctl import --dry-run lists all servers")
    everything = discovered.candidates
    discovered.candidates = [one for one in everything if {one.name, one.source.name} & {*names}]
    discovered.not_chosen = [one for one in everything if one not in discovered.candidates]
    discovered.skipped = [one for one in discovered.skipped if one.source.name in names]


def _leave_out_projects(discovered: DiscoveredEntries, files: list[Path], named: Collection[str]) -> None:
    """Leave out what the files of projects would run, which may come from anywhere, unless the user named the
    file, or a server that only such a file has."""
    own = {one.source.name for one in discovered.candidates if one.source.scope != "project"}
    own |= {one.source.name for one in discovered.skipped if one.source.scope != "project"}
    chosen = {*named} - own
    left_out = [
        one
        for one in discovered.candidates
        if one.source.scope == "project"
        and one.source.path not in files
        and chosen.isdisjoint((one.name, one.source.name))
    ]
    discovered.candidates = [one for one in discovered.candidates if one not in left_out]
    for one in left_out:
        step = f"mcpctl import {shlex.quote(str(one.source.path))}"
        reason = (
            f"the file of a project says what it runs, so --yes does not import it; look at it with: {step}"
        )
        discovered.skipped.append(SkippedEntry(one.source, reason, one.definition))


# ---- the user's answers, and what is done ------------------------------------------------------------


def _ask(cli: CliContext, plan: ImportPlan, target: ImportTarget) -> dict[str, str]:
    """Ask whether to import, and once for each value that only the user knows. Returns these values.

    Raises KeyboardInterrupt if the user declines.
    """
    servers, rules = count(len(plan.new_servers), "server"), count(len(plan.rules), "rule")
    what = " and ".join([*([servers] if plan.new_servers else []), *([rules] if plan.rules else [])])
    started = " and start the enabled servers" if target.running and plan.new_servers else ""
    answers: dict[str, str] = {}
    try:
        click.confirm(f"Import {what} into {target.path}{started}?", abort=True, err=True)
        for server in plan.new_servers:
            for each in plan.missing_secrets(server):
                if each.name not in answers:
                    prompt = f"{server.name}: {each.prompt} (press Return to leave {server.name} out)"
                    answers[each.name] = click.prompt(
                        clean(prompt), hide_input=True, default="", show_default=False, err=True
                    )
    except click.Abort:
        cli.out.end_prompt_line()
        cli.out.message("nothing was imported")
        raise KeyboardInterrupt from None
    return answers


def _apply(cli: CliContext, plan: ImportPlan, target: ImportTarget, answers: Mapping[str, str]) -> Json:
    """Write the servers whose secrets are known, and the rules. Returns the report for `--json`."""
    servers = [
        one for one in plan.new_servers if all(answers.get(each.name) for each in plan.missing_secrets(one))
    ]
    result = build_result(plan, servers, answers)
    report: Json = {}
    if servers or result.rules:
        report = {
            "written": True,
            "reloaded": write_import(cli, target, result),
            "imported": list(result.definitions),
            "rules_added": [one.to_json() for one in result.rules],
            "secrets_stored": list(result.secrets),
        }
    if not cli.out.json:
        left_out = [one.name for one in plan.new_servers if one not in servers]
        _show_result(cli, target, result, left_out)
    return report


def _show_result(
    cli: CliContext, target: ImportTarget, result: ImportResult, left_out: Sequence[str]
) -> None:
    """`left_out`: the servers whose values the user did not enter."""
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
    cli.out.line(f"{count(len(result.definitions), 'server')} saved in {target.path}")
    if result.secrets:
        stored = count(len(result.secrets), "secret")
        cli.out.line(f"{stored} stored in {secrets_path(os.environ)}: {', '.join(result.secrets)}")
    hint = "mcpctl install --all --take-over   (preview with --dry-run)"
    if not target.running:
        cli.out.line("mcpd is not running; it will load them when it starts")
        # Otherwise the first editor waits for npx or uvx downloads and has no tools until then.
        hint = "mcpctl wait --any   (starts mcpd and the servers), then: mcpctl install --all --take-over"
    cli.out.next_step(hint)


# ---- the plan, as text and as JSON; it never contains secrets ----------------------------------------


def _show_plan(cli: CliContext, plan: ImportPlan, user: UserContext) -> None:
    for warning in plan.discovered.warnings:
        cli.out.warning(warning)
    if cli.out.json:
        return
    for server in plan.merged.servers:
        cli.out.lines(_server_lines(plan, server, user))
    skipped = [
        f"{one.source.name}: {one.reason} ({_describe(one.source, user)})"
        for one in plan.discovered.skipped
        if one.reason != IS_MCPD
    ]
    rules = [
        f"{one.title}: {one.describe(user)} ({', '.join(map(user.display_path, one.paths))})"
        for one in plan.rules
    ]
    _show_section(cli, "already in mcpd", _known_lines(plan, user))
    _show_section(cli, "not imported, because there is a similar server", _similar_lines(plan, user))
    _show_section(cli, "not imported", skipped)
    _show_section(cli, "rules to import into settings.policies", rules)
    _show_section(cli, "rules that are not imported", plan.skipped_rules)
    also = f", {count(len(plan.rules), 'rule')}" if plan.rules else ""
    blocked = f", {len(plan.blocked)} blocked ({', '.join(plan.blocked)})" if plan.blocked else ""
    similar = ", ".join(dict.fromkeys(one.source.name for one in plan.merged.similar))
    left_out = f", left out because there is a similar server: {similar}" if similar else ""
    files = count(len(plan.discovered.files), "file")
    cli.out.line(f"{count(len(plan.new_servers), 'server')} to import{also}, from {files}{blocked}{left_out}")


def _show_section(cli: CliContext, title: str, lines: Sequence[str]) -> None:
    if lines:
        cli.out.lines([[paint(title, "bold")], *([f"  {line}"] for line in lines), []])


def _server_lines(plan: ImportPlan, server: MergedServer, user: UserContext) -> list[Line]:
    definition = masked_definition(plan.without_secrets[server.name])
    disabled = ", disabled" if definition.get("enabled") is False else ""
    label = "  url: " if "url" in definition else "  runs: "
    lines: list[Line] = [[paint(server.name, "bold"), disabled], [label, _describe_target(definition)]]
    for key, label in (("env", "environment"), ("headers", "headers")):
        values = definition.get(key)
        if isinstance(values, dict):
            lines.append([f"  {label}: ", ", ".join(f"{name}={value}" for name, value in values.items())])
    if "cwd" in definition:
        lines.append(["  directory: ", str(definition["cwd"])])
    for key, label in (("includeTools", "  only the tools: "), ("excludeTools", "  without the tools: ")):
        if key in definition:
            lines.append([label, ", ".join(strings(definition[key]))])
    lines.append(["  from: ", "; ".join(_describe(one, user, server.name) for one in server.sources)])
    lines += [["  note: ", note] for note in server.notes]
    secrets = plan.without_secrets[server.name].secrets
    lines += [["  secret: ", f"{one.location} is in plain text in the file"] for one in secrets]
    lines += [["  needs: ", f"the secret {one.name} ({one.prompt})"] for one in plan.missing_secrets(server)]
    if server.name in plan.blocked:
        lines.append([paint("  blocked: ", "yellow"), plan.blocked[server.name]])
    return [*lines, []]


def _known_lines(plan: ImportPlan, user: UserContext) -> list[str]:
    lines: list[str] = []
    for name in dict.fromkeys(one.server for one in plan.merged.known):
        entries = [one for one in plan.merged.known if one.server == name]
        lines.append(f"{name}: {'; '.join(_describe(one.source, user, name) for one in entries)}")
    return lines


def _similar_lines(plan: ImportPlan, user: UserContext) -> list[str]:
    lines, new = [], {one.name for one in plan.merged.servers}
    for one in plan.merged.similar:
        step = f"mcpctl import -s {shlex.quote(one.source.name)}"
        is_other = one.server in new or one.server.casefold() != valid_server_name(one.source.name).casefold()
        replace = "" if is_other else f"; to replace it: mcpctl remove {one.server} && {step}"
        lines.append(
            f"{one.source.name}: differs from {one.server} in {', '.join(one.differs_in)} "
            f"({_describe(one.source, user)}); to import it too: {step}{replace}"
        )
    return lines


def _describe_target(definition: Mapping[str, object]) -> str:
    """Return the command line or URL of a definition."""
    if "url" in definition:
        kind = definition.get("type")
        return f"{definition['url']}{f' ({kind})' if kind else ''}"
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [])]
    return shlex.join([str(word) for word in words])


def _describe(source: EntrySource, user: UserContext, name: str = "") -> str:
    """Describe the location of an entry, and its name there if that is not `name`."""
    scope = f", {source.scope}" if source.scope != "user" else ""
    called = f" as '{source.name}'" if name and source.name != name else ""
    return f"{source.title}{scope}, {user.display_path(source.path)}{called}"


def _plan_json(plan: ImportPlan) -> Json:
    return {
        "files": [str(path) for path in plan.discovered.files],
        "servers": [_server_json(server, plan) for server in plan.merged.servers],
        "known": [_known_json(one) for one in plan.merged.known],
        "similar": [{**_known_json(one), "differs_in": list(one.differs_in)} for one in plan.merged.similar],
        "skipped": [
            {"source": _source_json(one.source), "reason": one.reason} for one in plan.discovered.skipped
        ],
        "rules": [one.to_json() for one in plan.rules],
        "skipped_rules": list(plan.skipped_rules),
        "warnings": list(plan.discovered.warnings),
    }


def _server_json(server: MergedServer, plan: ImportPlan) -> Json:
    safe = plan.without_secrets[server.name]
    return {
        "name": server.name,
        "definition": masked_definition(safe),
        "sources": [_source_json(one) for one in server.sources],
        "notes": list(server.notes),
        "secrets": [{"name": one.name, "place": one.location} for one in safe.secrets],
        "needs": [one.name for one in plan.missing_secrets(server)],
        "problem": plan.blocked.get(server.name),
    }


def _known_json(one: KnownEntry) -> Json:
    return {"name": one.server, "source": _source_json(one.source)}


def _source_json(source: EntrySource) -> Json:
    return {
        "editor": source.editor,
        "path": str(source.path),
        "scope": source.scope,
        "name": source.name,
        "project": None if source.project is None else str(source.project),
    }
