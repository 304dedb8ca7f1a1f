"""`mcpctl install` and `uninstall`: configure editors to use mcpd, and undo it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import click

from ctl import systemd_units
from ctl.commands.import_ import unknown_editor
from ctl.completion_candidates import editor_names, server_names
from ctl.daemon_client import Json
from ctl.editors.backup import EditorBackups
from ctl.editors.editor_catalog import BY_NAME, EditorSpec
from ctl.editors.editor_paths import UserContext, find_editor_files
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
from ctl.editors.own_profile import add_own_profile, own_servers, remove_own_profile
from ctl.editors.project_entries import project_entries
from ctl.editors.take_over import TakeOver
from ctl.errors import CtlError, DaemonError, NotFound, UsageError
from ctl.invocation import CliContext
from ctl.output import paint
from mcpd.config.in_place_edits.document import Document, KeyPath, parse_document
from mcpd.model.errors import BadSpec

NAME = "mcpd"

_project = click.option("--project", is_flag=True, help="Use the configuration of the current project.")
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done without changing anything.")
_editors = click.argument("editors", metavar="EDITOR...", nargs=-1, shell_complete=editor_names)


class _InstallCommand(click.Command):
    """Accepts `--take-over` and `--take-over=all`; click would take the next argument for the value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, ["--take-over-all" if each == "--take-over=all" else each for each in args]
        )


@click.command(
    cls=_InstallCommand,
    epilog="Examples:\n\n\b\n  mcpctl install cursor claude-code\n  mcpctl install vscode --take-over\n"
    f"  mcpctl install zed --print\n\nEditors: {', '.join(installable_editors())}.",
)
@_editors
@click.option("--all", "every", is_flag=True, help="All editors that have a configuration file.")
@click.option("--server", metavar="NAME", help="Only the tools of this server.", shell_complete=server_names)
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.option("--own", is_flag=True, help="Only the servers that the editor had: adds a profile for it.")
@click.option("--name", metavar="NAME", help="Name of the entry. [default: mcpd]")
@click.option(
    "--take-over",
    "take_over",
    flag_value="ready",
    help="Disable the editor's entries for servers that mcpd can serve now; =all for all that it has.",
)
@click.option("--take-over-all", "take_over", flag_value="all", hidden=True)
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
    own: bool,
    name: str | None,
    take_over: str | None,
    via: str | None,
    project: bool,
    only_print: bool,
    dry_run: bool,
) -> int:
    """Configure editors to use mcpd.

    Adds one entry that runs `mcpctl bridge` to the editor's configuration file. The rest of the file is not
    changed. `mcpctl uninstall` restores it.
    """
    if sum(map(bool, (server, profile, own))) > 1:
        raise UsageError("--server, --profile and --own cannot be combined")
    user = UserContext(os.environ, Path.cwd())
    targets = _targets(cli, editors, every, project, user)
    for target in targets:
        if via == "socket" and not target.editor.supports_socket_url:
            message = f"{target.editor.title} cannot connect to a Unix socket"
            raise UsageError(message, hint="omit --via socket")
    entry_name = name or "-".join(filter(None, (NAME, server or profile)))
    program = mcpctl_path()
    own_profiles = {target.editor.name: target.editor.name for target in targets} if own else {}

    def entry_for(editor: EditorSpec) -> Callable[[KeyPath], dict[str, object]]:
        if via == "socket" or (
            via is None and editor.supports_socket_url and systemd_units.manages_socket(cli.socket)
        ):
            url = socket_url(cli.socket, server, own_profiles.get(editor.name, profile))
            return lambda key_path: url_entry(url)
        args = ["bridge", "--client", editor.name]
        selected = own_profiles.get(editor.name, profile)
        args += ["--server", server] if server else ["--profile", selected] if selected else []
        args += ["--socket", cli.socket] if cli.socket_option else []
        return lambda key_path: command_entry(editor, key_path, entry_name, program, args)

    if only_print:
        return _print(cli, targets, entry_name, entry_for)
    may_start = cli.may_start and not dry_run
    _warn_if_unknown(cli, server, profile)
    everything = _take_over(cli, user, server, profile, may_start=may_start)
    backups = EditorBackups(os.environ)

    def install_one(target: InstallTarget) -> Json:
        found: dict[str, str] = {}  # entries that stay on, and why
        had = {} if server or profile else own_servers(everything, target, backups)
        redundant, chosen = everything, None
        if own and every and not had and target.editor.name not in everything.profiles:
            own_profiles.pop(target.editor.name)  # it had no servers, so it gets all of them
        elif own and everything.target is not None:
            chosen = add_own_profile(cli, everything.target, target, had, backups, dry_run=dry_run)
            redundant = everything.only(chosen.servers)

        def entries_to_disable(key_path: KeyPath, document: Document) -> list[str]:
            entries = redundant.find(target, document)
            found.clear()
            if not take_over:
                found.update((each.entry, "") for each in entries)
            elif take_over != "all":
                reasons = ((each.entry, redundant.reason_to_leave(each.server)) for each in entries)
                found.update((entry, reason) for entry, reason in reasons if reason)
            return [each.entry for each in entries if each.entry not in found]

        change = install_entry(
            target, entry_name, entry_for(target.editor), entries_to_disable, backups, dry_run=dry_run
        )
        left_on = dict(sorted(found.items()))
        elsewhere = project_entries(redundant, target) if take_over else []
        selected = chosen.name if chosen else profile
        sees = redundant.summary(target.editor.title, target.editor.name, selected, had)
        if not cli.out.json:
            selected_by = [("--server", server), ("--profile", profile), ("--name", name)]
            options = [word for option, value in selected_by if value for word in (option, value)]
            words = ["mcpctl", "install", target.editor.name, *options, *(["--own"] if chosen else [])]
            again = shlex.join([*words, *(["--project"] if project else [])])
            _report_installed(cli, target, change, left_on, again, backups, user, dry_run)
            cli.out.lines([f"  {each.describe(user)}"] for each in elsewhere)
            if chosen is not None and chosen.is_new:
                would = "would be " if dry_run else ""
                tools = ", and only the tools that the editor used" if chosen.has_filters else ""
                cli.out.line(f"  profile {chosen.name}: {would}added with {', '.join(chosen.servers)}{tools}")
            if sees:
                cli.out.line(f"  {sees}")
        return _as_json(target, change, backups) | {
            "also_in_mcpd": list(left_on),
            "left_on": [{"name": entry, "reason": reason} for entry, reason in left_on.items() if reason],
            "in_projects": [each.to_json() for each in elsewhere],
            "profile": None if chosen is None else chosen.to_json(),
            "dry_run": dry_run,
        }

    return _for_each(cli, targets, install_one)


@click.command(epilog="Examples:\n\n\b\n  mcpctl uninstall cursor\n  mcpctl uninstall --all")
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
    the entries that install disabled. Also removes a profile that install --own added, unless it was changed
    or is used elsewhere.
    """
    user = UserContext(os.environ, Path.cwd())
    backups = EditorBackups(os.environ)

    targets = _targets(cli, editors, every, project, user, all_files=True)
    last = {target.editor.name: target for target in targets}
    reported = set(last) if every else set[str]()
    changed: list[str] = []

    def uninstall_one(target: InstallTarget) -> Json:
        name = target.editor.name
        change = uninstall_entry(target, frozenset(names), backups, dry_run=dry_run)
        changed.extend([name] if change.has_changes else [])
        if not cli.out.json and (change.has_changes or (name not in reported and target is last[name])):
            _report_uninstalled(cli, target, change, user, dry_run)
            reported.add(name)
        facts = _as_json(target, change, None) | {"dry_run": dry_run}
        if target is not last[name] or (dry_run and names):
            return facts
        files = [each for each in targets if each.editor.name == name]
        removed = remove_own_profile(name, files, backups, dry_run=dry_run)
        if not cli.out.json and removed is not None:
            would = "would be " if dry_run else ""
            cli.out.line(
                f"  profile {name}: {would}removed"
                if removed
                else f"  profile {name}: kept, because it was changed or is used in the settings"
            )
        return facts | {"profile_removed": bool(removed)}

    code = _for_each(cli, targets, uninstall_one)
    if every and targets and not (changed or code or cli.out.json):
        cli.out.line("no editor is configured to use mcpd, so there is nothing to undo")
    if every:
        for path in backups.other_files(target.path for target in targets):
            command = f"mcpctl uninstall EDITOR{'' if project else ' --project'}"
            cli.out.message(f"{user.display_path(path)} also contains mcpd; run {command} in its directory")
    return code


def _for_each(cli: CliContext, targets: list[InstallTarget], action: Callable[[InstallTarget], Json]) -> int:
    """Run `act` for every editor, even if it fails for some. Returns the exit code of the first failure."""
    done: list[Json] = []
    failed: list[CtlError] = []
    for target in targets:
        try:
            done.append(action(target))
            continue
        except BadSpec as error:
            failed.append(DaemonError({"message": f"{error.source} was not changed", "data": error.data()}))
        except CtlError as error:
            failed.append(error)
        if len(targets) == 1:
            raise failed[0]
        done.append({"editor": target.editor.name, "path": str(target.path), "error": failed[-1].to_json()})
        if not cli.out.json:
            cli.out.flush()
            cli.out.error(failed[-1])
    if cli.out.json:
        cli.out.json_value({"editors": done})
    return failed[0].exit if failed else 0


def _targets(
    cli: CliContext,
    editors: tuple[str, ...],
    every: bool,
    project: bool,
    user: UserContext,
    *,
    all_files: bool = False,
) -> list[InstallTarget]:
    """Return the file of each editor; with `everywhere`, all its existing files."""
    if bool(editors) == every:
        here = ", ".join(_configured(user))
        named = f"found here: {here}" if here else f"one of {', '.join(installable_editors())}"
        raise UsageError("which editors?", hint=f"name editors ({named}), or use --all")
    for editor in editors:
        if editor not in BY_NAME:
            meant = ("to remove", "remove NAME") if all_files else ("to add", "add NAME -- COMMAND")
            raise unknown_editor(editor, installable_editors(), meant)
    if every:
        editors = _configured(user)
        if not editors and all_files:
            cli.out.message("no editor configuration found, so there is nothing to undo")
        elif not editors:
            raise NotFound("no editor configuration found", hint="name an editor: mcpctl install cursor")
    found: list[InstallTarget] = []
    for editor in dict.fromkeys(editors):
        try:
            files = install_targets(BY_NAME[editor], user, project=project, addresses=frozenset({cli.socket}))
            found += files if all_files else files[:1]
        except CtlError:
            if not every:
                raise
    return found


def _configured(user: UserContext) -> tuple[str, ...]:
    """Return the names of the editors that have a configuration file on this machine."""
    known = tuple(BY_NAME[name] for name in installable_editors())
    found = {target.editor.name for target in find_editor_files(known, user)}
    return tuple(name for name in installable_editors() if name in found)


def _warn_if_unknown(cli: CliContext, server: str | None, profile: str | None) -> None:
    """Warn about an unknown server or profile. It may be added later, but is more often a typo."""
    if not server and not profile:
        return
    try:
        active = find_import_target(cli)
    except DaemonError:
        return  # reported later
    what, name, known = (
        ("server", server, active.server_names) if server else ("profile", profile, active.profiles)
    )
    if name not in known:
        available = f"available: {', '.join(sorted(known))}" if known else "there are none"
        cli.out.warning(f"mcpd has no {what} '{name}' ({available})")


def _take_over(
    cli: CliContext, user: UserContext, server: str | None, profile: str | None, *, may_start: bool
) -> TakeOver:
    try:
        active = find_import_target(cli)
    except DaemonError as error:
        cli.out.warning(f"{error.message}; the editor's own entries stay enabled")
        return TakeOver(cli, user, None, {}, may_start)
    return TakeOver(cli, user, active, active.visible_servers(server, profile), may_start)


def _print(
    cli: CliContext,
    targets: list[InstallTarget],
    name: str,
    entry_for: Callable[[EditorSpec], Callable[[KeyPath], dict[str, object]]],
) -> int:
    """Print the entry alone, as a file of its own."""
    answers: list[Json] = []
    for target in targets:
        document = _read_document(target)
        key_path = slot_of(target, document)
        fields = entry_for(target.editor)(key_path)
        empty = parse_document(b"", target.path, foreign=True)
        text = empty.with_entry(key_path, name, fields, listed=is_listed(target)).text
        answers.append({"editor": target.editor.name, "path": str(target.path), "text": text})
        if not cli.out.json:
            cli.out.message(paint(f"{target.editor.title}: ", "bold"), f"into {target.path}")
            cli.out.block(text)
    if cli.out.json:
        cli.out.json_value({"editors": answers})
    return 0


def _read_document(target: InstallTarget) -> Document:
    try:
        return parse_document(target.path.read_bytes(), target.path, foreign=True)
    except (OSError, BadSpec):
        return parse_document(new_file_content(target.editor), target.path, foreign=True)


def _report_installed(
    cli: CliContext,
    target: InstallTarget,
    change: FileChange,
    left_on: dict[str, str],
    again: str,
    backups: EditorBackups,
    user: UserContext,
    dry_run: bool,
) -> None:
    """Print what was changed. `again` is the command that was run, for the entries that are left on."""
    would, path = "would be " if dry_run else "", user.display_path(target.path)
    if change.added is None:
        cli.out.line(f"{target.editor.title}: already configured in {path}")
    else:
        cli.out.line(f"{target.editor.title}: '{change.added}' {would}added to {path}")
    for taken in change.disabled:
        how = "removed until mcpctl uninstall" if taken.removed else "disabled"
        cli.out.line(f"  {taken.name}: {would}{how} (provided by mcpd)")
    for name, reason in left_on.items():
        if reason:
            cli.out.line(f"  {name}: {would}left on, because {reason}")
    if any(left_on.values()):
        cli.out.message(f"  to take these over too: {again} --take-over=all")
    elif left_on:
        cli.out.message(
            f"  also provided by mcpd: {', '.join(left_on)}; disable them in the editor with: "
            f"{again} --take-over"
        )
    if change.added is not None and not dry_run:
        if change.existed:
            cli.out.line(f"  backup: {user.display_path(backups.original_path(target.path))}")
        if target.editor.next_step:
            cli.out.next_step(target.editor.next_step)


def _report_uninstalled(
    cli: CliContext, target: InstallTarget, change: FileChange, user: UserContext, dry_run: bool
) -> None:
    would = "would be " if dry_run else ""
    path = user.display_path(target.path)
    if change.restored:
        cli.out.line(f"{target.editor.title}: {path} {would}restored to its original content")
    elif not change.has_changes:
        cli.out.line(f"{target.editor.title}: mcpd is not configured in {path}")
    else:
        for name in change.removed:
            cli.out.line(f"{target.editor.title}: '{name}' {would}removed from {path}")
        for name in change.re_enabled:
            cli.out.line(f"  {name}: {would}restored")


def _as_json(target: InstallTarget, change: FileChange, backups: EditorBackups | None) -> dict[str, object]:
    facts: dict[str, object] = {
        "editor": target.editor.name,
        "path": str(target.path),
        "added": change.added,
        "removed": list(change.removed),
        "taken_over": [{"name": taken.name, "removed": taken.removed} for taken in change.disabled],
    }
    if backups is None:
        return facts | {"restored": change.restored, "given_back": list(change.re_enabled)}
    return facts | {
        "backup": str(backups.original_path(target.path)) if change.existed and change.added else None
    }
