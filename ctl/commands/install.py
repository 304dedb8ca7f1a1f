"""`mcpctl install` and `uninstall`: configure editors to use mcpd, and undo it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import click

from ctl.cli.arguments import surface_option
from ctl.cli.completion import editor_names, server_names
from ctl.cli.errors import CtlError, DaemonError, NotFound, UsageError, WriteFailed
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping
from ctl.commands.import_ import unknown_editor
from ctl.daemon.client import Json
from ctl.editors.backups import BackupRecord, EditorBackups
from ctl.editors.config_files import BY_NAME, EditorSpec, UserContext, find_editor_files
from ctl.editors.import_plan import ImportTarget, find_import_target
from ctl.editors.install import FileChange
from ctl.editors.install import install as install_entry
from ctl.editors.install import uninstall as uninstall_entry
from ctl.editors.install_report import (
    RemainingEntries,
    as_json,
    report_installed,
    report_left_on,
    report_names_of_mcpd,
    report_old_names,
    report_own_profile,
    report_profile,
    report_uninstalled,
)
from ctl.editors.mcpd_entry import (
    InstallTarget,
    command_entry,
    install_targets,
    installable_editors,
    mcpctl_path,
)
from ctl.editors.old_names import Mention, OldNames, client_style, restore_lists
from ctl.editors.take_over import (
    OwnProfile,
    TakeOver,
    add_own_profile,
    has_servers,
    own_servers,
    remove_own_profile,
)
from mcpd.config.in_place_edits.document import Document, KeyPath
from mcpd.model.errors import BadSpec, CannotWrite
from mcpd.model.tool_names import ClientStyle

NAME = "mcpd"
MakeEntry = Callable[[KeyPath], dict[str, object]]
"""Returns mcpd's entry for the place in the file where it is written."""

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
    epilog="Examples:\n\n\b\n  mcpctl install cursor claude-code\n  mcpctl install vscode --take-over\n\n"
    f"Editors: {', '.join(installable_editors())}.",
)
@_editors
@click.option("--all", "every", is_flag=True, help="All editors that have a configuration file.")
@click.option("--server", metavar="NAME", help="Only the tools of this server.", shell_complete=server_names)
@click.option("--profile", metavar="NAME", help="Only what this profile selects.")
@click.option("--own", is_flag=True, help="Only the servers that the editor had: adds a profile for it.")
@click.option("--name", metavar="NAME", help="Name of the entry. [default: mcpd]")
@surface_option
@click.option(
    "--take-over",
    "take_over",
    flag_value="ready",
    help="Disable the editor's entries for servers that mcpd can serve now; =all for all that it has.",
)
@click.option("--take-over-all", "take_over", flag_value="all", hidden=True)
@click.option("--permissions", is_flag=True, help="Rename the tools in the editor's permission lists, too.")
@_project
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
    surface: str | None,
    take_over: str | None,
    permissions: bool,
    project: bool,
    dry_run: bool,
) -> int:
    """Configure editors to use mcpd.

    Adds one entry that runs `mcpctl bridge` to the editor's configuration file. The rest of the file is not
    changed. `mcpctl uninstall` restores it.
    """
    if sum(map(bool, (server, profile, own))) > 1:
        raise UsageError("--server, --profile and --own cannot be combined")
    if own and project:
        raise UsageError("--own is for your own file of the editor", hint="use --profile NAME with --project")
    user = UserContext(os.environ, Path.cwd())
    targets = _targets(cli, editors, every, project, user)
    options = _InstallOptions(
        server, profile, own, name, surface, take_over, permissions, project, every, dry_run
    )
    backups = EditorBackups(os.environ)
    may_start = cli.may_start and not dry_run
    is_preview = cli.may_start and dry_run
    everything = _take_over(cli, user, server, profile, may_start=may_start, is_preview=is_preview)
    if everything.target is not None:
        _warn_if_unknown(cli, everything.target, server, profile)
    return _for_each(cli, targets, _Installation(cli, user, options, backups, everything).install)


@attrs.frozen
class _InstallOptions:
    """The options of `mcpctl install`."""

    server: str | None
    profile: str | None
    own: bool
    name: str | None
    surface: str | None
    take_over: str | None
    permissions: bool
    project: bool
    every: bool
    dry_run: bool

    @property
    def entry_name(self) -> str:
        """The name of the new entry."""
        return self.name or "-".join(filter(None, (NAME, self.server or self.profile)))

    def again(self, editor: EditorSpec) -> str:
        """Return the command that was run, to which an option can be appended."""
        given = (
            ("--server", self.server),
            ("--profile", self.profile),
            ("--name", self.name),
            ("--surface", self.surface),
        )
        words = [word for option, value in given if value for word in (option, value)]
        words += [option for option, is_on in (("--project", self.project), ("--own", self.own)) if is_on]
        return shlex.join(["mcpctl", "install", editor.name, *words])


def _entry_maker(
    cli: CliContext, editor: EditorSpec, options: _InstallOptions, own_profile: str | None
) -> MakeEntry:
    profile, name = own_profile or options.profile, options.entry_name
    args = ["bridge", "--client", editor.name]
    args += ["--server", options.server] if options.server else ["--profile", profile] if profile else []
    args += ["--surface", options.surface] if options.surface else []
    args += ["--socket", cli.socket] if cli.socket_option else []
    program = mcpctl_path()
    return lambda key_path: command_entry(editor, key_path, name, program, args)


@attrs.define
class _Installation:
    """One run of `mcpctl install`."""

    cli: CliContext
    user: UserContext
    options: _InstallOptions
    backups: EditorBackups
    everything: TakeOver

    def install(self, target: InstallTarget) -> Json:
        """Write mcpd's entry to the file of one editor, and report it."""
        options, entry = self.options, self.everything
        own = self._own_profile(target) if options.own else None
        if own is not None:
            entry = entry.only(own.servers, f"profile {own.name}")
        left_on = RemainingEntries()

        def entries_to_disable(key_path: KeyPath, document: Document) -> dict[str, str]:
            return self._to_disable(target, entry, document, left_on)

        own_name = None if own is None else own.name
        change = install_entry(
            target,
            options.entry_name,
            _entry_maker(self.cli, target.editor, options, own_name),
            entries_to_disable,
            self.backups,
            dry_run=options.dry_run,
        )
        if not self.cli.out.json:
            self._report(target, change, left_on, own)
        names = self._old_names(target, change, own_name)
        rewritten = {} if names is None else self._rewrite_lists(names)
        mentions = [] if names is None else names.mentions()
        if not self.cli.out.json:
            again = f"{options.again(target.editor)} --take-over --permissions"
            can_rename = names is not None and bool(names.lists())
            report_old_names(self.cli, rewritten, mentions, again if can_rename else "", self.user)
            has_changed = change.added is not None or rewritten
            if has_changed and not options.dry_run and (step := target.editor.next_step):
                title = target.editor.title  # the steps of several editors follow each other
                self.cli.out.next_step(step if title in step else f"in {title}, {step}")
        return as_json(target, change, self.backups) | {
            **left_on.to_json(),
            "profile": None if own is None else own.to_json(),
            "renamed_permissions": {str(path): found for path, found in rewritten.items()},
            "old_names": [each.to_json() for each in mentions],
            "dry_run": options.dry_run,
        }

    def _old_names(self, target: InstallTarget, change: FileChange, own: str | None) -> OldNames | None:
        """Return the former names of the tools that were taken over, now or by an earlier installation."""
        active, record = self.everything.target, self.backups.load(target.path)
        disabled = (*(record.disabled if record is not None else ()), *change.disabled)
        if active is None or not disabled:
            return None
        style: object = active.client_tool_names
        if profile := own or self.options.profile:
            style = mapping(active.profiles.get(profile)).get("clientToolNames", style)
        return OldNames(
            target,
            self.user,
            {each.name: each.server or each.name for each in disabled},
            self.options.entry_name,
            None if self.options.server else client_style(style),
        )

    def _rewrite_lists(self, names: OldNames) -> dict[Path, dict[str, str]]:
        """Rename the tools in the editor's permission lists, if the user wants that. Returns old → new names
        by file."""
        cli, options = self.cli, self.options
        found = {} if options.dry_run else names.lists()
        if not found:
            return {}
        if not options.permissions:
            if cli.out.json or not sys.stdin.isatty():
                return {}
            files = ", ".join(map(self.user.display_path, found))
            cli.out.flush()
            try:
                click.confirm(f"Rename the tools in the permission lists in {files}?", abort=True, err=True)
            except click.Abort:
                cli.out.end_prompt_line()
                return {}
        try:
            return names.rewrite(self.backups)
        except OSError as error:
            raise WriteFailed(f"cannot keep a backup: {error.strerror or error}") from None

    def _own_profile(self, target: InstallTarget) -> OwnProfile | None:
        """Return the profile with the servers that the editor had; None if it gets all of them."""
        active = self.everything.target
        if active is None:
            return None
        had = own_servers(self.everything, target, self.backups)
        is_new = target.editor.name not in active.profiles
        if self.options.every and not had and is_new and not has_servers(self.everything, target):
            return None
        return add_own_profile(
            self.cli, active, target.editor, had, self.backups, dry_run=self.options.dry_run
        )

    def _to_disable(
        self, target: InstallTarget, entry: TakeOver, document: Document, left_on: RemainingEntries
    ) -> dict[str, str]:
        """Return the entries to disable and their servers in mcpd, and note the others in `left_on`."""
        redundant, take_over = entry.find(target, document), self.options.take_over
        left_on.redundant, left_on.reasons = [], {}
        if not take_over:
            left_on.redundant = entry.without_failed(redundant)
            return {}
        left_on.reasons = entry.others(target, document)
        left_on.of_projects = entry.of_projects(target)
        if take_over != "all":
            reasons = {name: entry.reason_to_leave(server) for name, server in redundant.items()}
            left_on.reasons |= {name: reason for name, reason in reasons.items() if reason}
        return {name: server for name, server in redundant.items() if name not in left_on.reasons}

    def _report(
        self, target: InstallTarget, change: FileChange, left_on: RemainingEntries, own: OwnProfile | None
    ) -> None:
        cli, dry_run = self.cli, self.options.dry_run
        report_installed(cli, target, change, dry_run=dry_run, user=self.user)
        report_left_on(cli, left_on, self.options.again(target.editor), dry_run=dry_run)
        if change.added is not None and change.existed and not dry_run:
            cli.out.line(f"  backup: {self.user.display_path(self.backups.original_path(target.path))}")
        if change.added is not None and self.options.project:
            cli.out.line(
                "  it names programs of this machine: if git tracks the file, do not commit the change"
            )
        if own is not None:
            report_own_profile(cli, own, dry_run=dry_run)


@click.command(epilog="Examples:\n\n\b\n  mcpctl uninstall cursor\n  mcpctl uninstall --all")
@_editors
@click.option("--all", "every", is_flag=True, help="All editors that have a configuration file.")
@_project
@_dry_run
@click.pass_obj
def uninstall(
    cli: CliContext,
    editors: tuple[str, ...],
    every: bool,
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
        name, record = target.editor.name, backups.load(target.path)
        lists = restore_lists(target.path, backups, dry_run=dry_run)
        change = uninstall_entry(target, backups, dry_run=dry_run)
        left = [] if dry_run else _names_of_mcpd(target, user, change, record, backups)
        changed.extend([name] if change.has_changes else [])
        if not cli.out.json and (change.has_changes or (name not in reported and target is last[name])):
            report_uninstalled(cli, target, change, user, dry_run)
            for path in lists:
                cli.out.line(f"  {user.display_path(path)}: permission lists {'would be ' * dry_run}restored")
            report_names_of_mcpd(cli, left, user)
            reported.add(name)
        facts = as_json(target, change, None) | {"dry_run": dry_run}
        facts["restored_permissions"] = list(map(str, lists))
        facts["old_names"] = [each.to_json() for each in left]
        if target is not last[name]:
            return facts
        files = [each.path for each in targets if each.editor.name == name]
        removed = remove_own_profile(name, files, backups, dry_run=dry_run)
        if not cli.out.json:
            report_profile(cli, name, removed, dry_run=dry_run)
        return facts | {"profile_removed": bool(removed)}

    code = _for_each(cli, targets, uninstall_one)
    if every and targets and not (changed or code or cli.out.json):
        cli.out.line("no editor is configured to use mcpd, so there is nothing to undo")
    if every:
        for path in backups.other_files(target.path for target in targets):
            command = f"mcpctl uninstall EDITOR{'' if project else ' --project'}"
            cli.out.message(f"{user.display_path(path)} also contains mcpd; run {command} in its directory")
    return code


def _names_of_mcpd(
    target: InstallTarget,
    user: UserContext,
    change: FileChange,
    record: BackupRecord | None,
    backups: EditorBackups,
) -> list[Mention]:
    """Return what still names tools of mcpd's entries, which were removed."""
    disabled = () if record is None else record.disabled
    taken = {each.name: each.server or each.name for each in disabled}
    everything = (OldNames(target, user, taken, name, ClientStyle.UNDERSCORES) for name in change.removed)
    found = [mention for names in everything for mention in names.mentions_of_mcpd()]
    if found and target.project is not None:
        of_user = install_targets(target.editor, user, project=False)
        if any(backups.load(one.path) is not None for one in of_user):
            return []  # the user's own file has an entry that provides these tools
    return found


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
        except CannotWrite as error:
            failed.append(DaemonError({"message": error.message, "data": error.data()}))
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


def _warn_if_unknown(cli: CliContext, active: ImportTarget, server: str | None, profile: str | None) -> None:
    """Warn about an unknown server or profile. It may be added later, but is more often a typo."""
    for what, name, known in (("server", server, active.server_names), ("profile", profile, active.profiles)):
        if name and name not in known:
            available = f"available: {', '.join(sorted(known))}" if known else "there are none"
            cli.out.warning(f"mcpd has no {what} '{name}' ({available})")


def _take_over(
    cli: CliContext,
    user: UserContext,
    server: str | None,
    profile: str | None,
    *,
    may_start: bool,
    is_preview: bool,
) -> TakeOver:
    try:
        active = find_import_target(cli)
    except DaemonError as error:
        cli.out.warning(f"{error.message}; the editor's own entries stay enabled")
        return TakeOver(cli, user, None, {}, may_start)
    what = f"profile {profile}" if profile else "the entry"
    return TakeOver(cli, user, active, active.visible_servers(server, profile), may_start, what, is_preview)
