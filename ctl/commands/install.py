"""`mcpctl install` and `uninstall`: configure editors to use mcpd, and undo it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from ctl import definition_fields, systemd_units
from ctl.commands.import_ import unknown_editor
from ctl.completion_candidates import editor_names, server_names
from ctl.context import CliContext
from ctl.daemon_client import Json
from ctl.editors.backup import EditorBackups
from ctl.editors.discovery import discover_in_file
from ctl.editors.editor_catalog import BY_NAME, EditorSpec
from ctl.editors.editor_paths import EditorFile, UserContext, find_editor_files
from ctl.editors.import_target import find_import_target
from ctl.editors.installing import FileChange
from ctl.editors.installing import install as install_entry
from ctl.editors.installing import uninstall as uninstall_entry
from ctl.editors.mcpd_entry import (
    InstallTarget,
    command_entry,
    install_targets,
    installable_editors,
    mcpctl_path,
    new_file_content,
    slot_of,
    socket_url,
    url_entry,
)
from ctl.editors.mcpd_entry import uses_list as is_listed
from ctl.editors.merging import matching_server, server_identities
from ctl.errors import CtlError, DaemonError, NotFound, UsageError
from ctl.output import paint
from mcpd.config.in_place_edits.document import Document, KeyPath, parse_document
from mcpd.model.errors import BadSpec

NAME = "mcpd"

_project = click.option(
    "--project", is_flag=True, help="Use the configuration of the current project instead of the user's."
)
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done without changing anything.")
_editors = click.argument("editors", metavar="EDITOR...", nargs=-1, shell_complete=editor_names)


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl install cursor claude-code\n  mcpctl install vscode --take-over\n"
    f"  mcpctl install zed --print\n\nEditors: {', '.join(installable_editors())}.",
)
@_editors
@click.option("--all", "every", is_flag=True, help="All editors that have a configuration file.")
@click.option("--server", metavar="NAME", help="Only the tools of this server.", shell_complete=server_names)
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.option("--name", metavar="NAME", help="Name of the entry. [default: mcpd]")
@click.option(
    "--take-over", is_flag=True, help="Disable the editor's own entries for servers that mcpd provides."
)
@click.option(
    "--via",
    type=click.Choice(["bridge", "socket"]),
    help="Start mcpctl bridge, or connect to the socket (VS Code). [default: chosen automatically]",
)
@_project
@click.option("--print", "only_print", is_flag=True, help="Print the entry without changing anything.")
@_dry_run
@click.pass_obj
def install(
    cli: CliContext,
    editors: tuple[str, ...],
    every: bool,
    server: str | None,
    profile: str | None,
    name: str | None,
    take_over: bool,
    via: str | None,
    project: bool,
    only_print: bool,
    dry_run: bool,
) -> int:
    """Configure editors to use mcpd.

    Adds one entry that runs `mcpctl bridge` to the editor's configuration file. The rest of the file is not
    changed. `mcpctl uninstall` restores it.
    """
    if server and profile:
        raise UsageError("--server and --profile cannot be combined")
    around = UserContext(os.environ, Path.cwd())
    places = _targets(cli, editors, every, project, around)
    for one in places:
        if via == "socket" and not one.editor.supports_socket_url:
            raise UsageError(f"{one.editor.title} cannot connect to a Unix socket", hint="omit --via socket")
    called = name or "-".join(filter(None, (NAME, server or profile)))
    program = mcpctl_path()

    def made(editor: EditorSpec) -> Callable[[KeyPath], dict[str, object]]:
        if via == "socket" or (
            via is None and editor.supports_socket_url and systemd_units.manages_socket(cli.socket)
        ):
            return lambda slot: url_entry(socket_url(cli.socket, server, profile))
        args = ["bridge", "--client", editor.name]
        args += ["--server", server] if server else ["--profile", profile] if profile else []
        args += ["--socket", cli.socket] if cli.socket_option else []
        return lambda slot: command_entry(editor, slot, called, program, args)

    if only_print:
        return _print(cli, places, called, made)
    _warn_if_unknown(cli, server, profile)
    shared = _duplicate_finder(cli, around, server, profile)
    backups = EditorBackups(os.environ)

    def put(one: InstallTarget) -> Json:
        found: list[str] = []

        def same(slot: KeyPath, document: Document) -> list[str]:
            found[:] = shared(one, document)
            return found if take_over else []

        change = install_entry(one, called, made(one.editor), same, backups, dry_run=dry_run)
        left = [] if take_over else sorted(set(found))
        if not cli.out.json:
            _report_installed(cli, one, change, left, backups, around, dry_run)
        return _as_json(one, change, backups) | {"also_in_mcpd": left, "dry_run": dry_run}

    return _each(cli, places, put)


@click.command(
    epilog="Examples:\n\n\b\n  mcpctl uninstall cursor\n  mcpctl uninstall --all",
)
@_editors
@click.option("--all", "every", is_flag=True, help="All editors that have a configuration file.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Only the entry with this name.")
@_project
@_dry_run
@click.pass_obj
def uninstall(
    cli: CliContext,
    editors: tuple[str, ...],
    every: bool,
    names: tuple[str, ...],
    project: bool,
    dry_run: bool,
) -> int:
    """Undo the changes made by install.

    Restores a file byte for byte if it has not changed since. Otherwise, removes mcpd's entries and restores
    the entries that install disabled.
    """
    around = UserContext(os.environ, Path.cwd())
    backups = EditorBackups(os.environ)

    places = _targets(cli, editors, every, project, around, everywhere=True)
    last = {one.editor.name: one for one in places}
    told = set(last) if every else set[str]()

    def take_out(one: InstallTarget) -> Json:
        name = one.editor.name
        change = uninstall_entry(one, frozenset(names), backups, dry_run=dry_run)
        if not cli.out.json and (change.has_changes or (name not in told and one is last[name])):
            _report_uninstalled(cli, one, change, around, dry_run)
            told.add(name)
        return _as_json(one, change, None) | {"dry_run": dry_run}

    code = _each(cli, places, take_out)
    if every:
        for path in backups.other_files(one.path for one in places):
            command = f"mcpctl uninstall EDITOR{'' if project else ' --project'}"
            cli.out.message(f"{around.display_path(path)} also contains mcpd; run {command} in its directory")
    return code


def _each(cli: CliContext, places: list[InstallTarget], act: Callable[[InstallTarget], Json]) -> int:
    """Run `act` for every editor, even if it fails for some. Returns the exit code of the first failure."""
    done: list[Json] = []
    failed: list[CtlError] = []
    for one in places:
        try:
            done.append(act(one))
            continue
        except BadSpec as error:
            failed.append(DaemonError({"message": f"{error.source} was not changed", "data": error.data()}))
        except CtlError as error:
            failed.append(error)
        if len(places) == 1:
            raise failed[0]
        done.append({"editor": one.editor.name, "path": str(one.path), "error": failed[-1].to_json()})
        if not cli.out.json:
            cli.out.flush()
            cli.out.error(failed[-1])
    if cli.out.json:
        cli.out.json_value({"editors": done})
    return failed[0].exit if failed else 0


def _targets(
    cli: CliContext,
    words: tuple[str, ...],
    every: bool,
    project: bool,
    around: UserContext,
    *,
    everywhere: bool = False,
) -> list[InstallTarget]:
    """Return the file of each editor; with `everywhere`, all its existing files."""
    if bool(words) == every:
        raise UsageError(
            "which editors?", hint=f"name editors ({', '.join(installable_editors())}), or use --all"
        )
    for word in words:
        if word not in BY_NAME:
            raise unknown_editor(word, installable_editors())
    if every:
        here = {
            one.editor.name
            for one in find_editor_files(tuple(BY_NAME[name] for name in installable_editors()), around)
        }
        words = tuple(name for name in installable_editors() if name in here)
        if not words:
            raise NotFound("no editor configuration found", hint="name an editor: mcpctl install cursor")
    found: list[InstallTarget] = []
    for word in dict.fromkeys(words):
        try:
            there = install_targets(BY_NAME[word], around, project=project, addresses=frozenset({cli.socket}))
            found += there if everywhere else there[:1]
        except CtlError:
            if not every:
                raise
    return found


def _warn_if_unknown(cli: CliContext, server: str | None, profile: str | None) -> None:
    """Warn about an unknown server or profile. It may be added later, but is more often a typo."""
    if not server and not profile:
        return
    try:
        home = find_import_target(cli)
    except DaemonError:
        return  # reported later
    what, name, known = (
        ("server", server, home.server_names) if server else ("profile", profile, home.profiles)
    )
    if name not in known:
        available = f"available: {', '.join(sorted(known))}" if known else "there are none"
        cli.out.message(paint("warning: ", "yellow"), f"mcpd has no {what} '{name}' ({available})")


def _duplicate_finder(
    cli: CliContext, around: UserContext, server: str | None, profile: str | None
) -> Callable[[InstallTarget, Document], list[str]]:
    """Return a function that finds the entries in an editor's file that the new entry makes redundant.

    These are enabled entries for servers that are enabled in mcpd and provided by the new entry.
    """
    try:
        home = find_import_target(cli)
    except DaemonError as error:
        cli.out.message(
            paint("warning: ", "yellow"), f"{error.message}; the editor's own entries stay enabled"
        )
        return lambda one, document: []
    offered = home.visible_servers(server, profile)
    ours = server_identities(
        {name: fields for name, fields in offered.items() if definition_fields.is_enabled(fields)}, os.environ
    )

    def find(one: InstallTarget, document: Document) -> list[str]:
        project = around.project if one.location.scope == "project" else None
        seen = discover_in_file(EditorFile(one.editor, one.location, one.path, project), document, around)
        return [
            candidate.source.name
            for candidate in seen.candidates
            if candidate.source.scope == one.location.scope
            and definition_fields.is_enabled(candidate.definition)
            and matching_server(candidate, ours, os.environ) is not None
        ]

    return find


def _print(
    cli: CliContext,
    targets: list[InstallTarget],
    name: str,
    made: Callable[[EditorSpec], Callable[[KeyPath], dict[str, object]]],
) -> int:
    """Print the entry alone, as a file of its own."""
    answers: list[Json] = []
    for one in targets:
        document = _read_document(one)
        slot = slot_of(one, document)
        fields = made(one.editor)(slot)
        empty = parse_document(b"", one.path, foreign=True)
        text = empty.with_entry(slot, name, fields, listed=is_listed(one)).text
        answers.append({"editor": one.editor.name, "path": str(one.path), "text": text})
        if not cli.out.json:
            cli.out.message(paint(f"{one.editor.title}: ", "bold"), f"into {one.path}")
            cli.out.block(text)
    if cli.out.json:
        cli.out.json_value({"editors": answers})
    return 0


def _read_document(one: InstallTarget) -> Document:
    try:
        return parse_document(one.path.read_bytes(), one.path, foreign=True)
    except (OSError, BadSpec):
        return parse_document(new_file_content(one.editor), one.path, foreign=True)


def _report_installed(
    cli: CliContext,
    one: InstallTarget,
    change: FileChange,
    left: list[str],
    backups: EditorBackups,
    around: UserContext,
    dry_run: bool,
) -> None:
    would = "would be " if dry_run else ""
    if change.added is None:
        cli.out.line(f"{one.editor.title}: already configured in {around.display_path(one.path)}")
    else:
        cli.out.line(f"{one.editor.title}: '{change.added}' {would}added to {around.display_path(one.path)}")
    for taken in change.disabled:
        how = "removed until mcpctl uninstall" if taken.removed else "disabled"
        cli.out.line(f"  {taken.name}: {would}{how} (provided by mcpd)")
    if left:
        cli.out.message(
            f"  also provided by mcpd: {', '.join(left)}; disable them in the editor with: "
            f"mcpctl install {one.editor.name} --take-over"
        )
    if change.added is not None and not dry_run:
        if change.existed:
            cli.out.line(f"  backup: {around.display_path(backups.original_path(one.path))}")
        if one.editor.next_step:
            cli.out.message(paint("next: ", "dim"), one.editor.next_step)


def _report_uninstalled(
    cli: CliContext, one: InstallTarget, change: FileChange, around: UserContext, dry_run: bool
) -> None:
    would = "would be " if dry_run else ""
    path = around.display_path(one.path)
    if change.restored:
        cli.out.line(f"{one.editor.title}: {path} {would}restored to its original content")
    elif not change.has_changes:
        cli.out.line(f"{one.editor.title}: mcpd is not configured in {path}")
    else:
        for name in change.removed:
            cli.out.line(f"{one.editor.title}: '{name}' {would}removed from {path}")
        for name in change.re_enabled:
            cli.out.line(f"  {name}: {would}restored")


def _as_json(one: InstallTarget, change: FileChange, backups: EditorBackups | None) -> dict[str, object]:
    facts: dict[str, object] = {
        "editor": one.editor.name,
        "path": str(one.path),
        "added": change.added,
        "removed": list(change.removed),
        "taken_over": [{"name": taken.name, "removed": taken.removed} for taken in change.disabled],
    }
    if backups is None:
        return facts | {"restored": change.restored, "given_back": list(change.re_enabled)}
    return facts | {
        "backup": str(backups.original_path(one.path)) if change.existed and change.added else None
    }
