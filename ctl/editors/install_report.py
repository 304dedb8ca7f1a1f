"""What `mcpctl install` and `uninstall` print about one file of an editor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from ctl.cli.invocation import CliContext
from ctl.daemon.client import Json
from ctl.editors.backups import EditorBackups
from ctl.editors.config_files import UserContext
from ctl.editors.install import FileChange
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.old_names import Mention
from ctl.editors.take_over import OwnProfile

_MAX_MENTIONS = 30


@attrs.define
class RemainingEntries:
    """The entries of an editor that stay on."""

    redundant: list[str] = attrs.field(factory=list)
    """Those for servers that the new entry provides, if they were not to be disabled."""
    reasons: dict[str, str] = attrs.field(factory=dict)
    """Those that were to be disabled → why they are not."""
    of_projects: list[tuple[str, str]] = attrs.field(factory=list)
    """The same for entries that the editor has for single projects."""

    @property
    def all_reasons(self) -> list[tuple[str, str]]:
        return [*sorted(self.reasons.items()), *self.of_projects]

    def to_json(self) -> Json:
        return {
            "also_in_mcpd": self.redundant,
            "left_on": [{"name": entry, "reason": reason} for entry, reason in self.all_reasons],
        }


def report_installed(
    cli: CliContext, target: InstallTarget, change: FileChange, *, dry_run: bool, user: UserContext
) -> None:
    """Print what was changed in the file."""
    would, path = "would be " if dry_run else "", user.display_path(target.path)
    if change.added is None:
        cli.out.line(f"{target.editor.title}: already configured in {path}")
    else:
        done = "replaced in" if change.replaced else "added to"
        cli.out.line(f"{target.editor.title}: '{change.added}' {would}{done} {path}")
    for taken in change.disabled:
        how = "removed until mcpctl uninstall" if taken.removed else "disabled"
        called = f" as {taken.server}" if taken.server not in ("", taken.name) else ""
        cli.out.line(f"  {taken.name}: {would}{how} (provided by mcpd{called})")
    if loaded := [taken.name for taken in change.disabled if taken.entry.get("alwaysLoad") is True]:
        cli.out.line(
            f"  alwaysLoad of {', '.join(loaded)} {would or 'is '}set for all tools of '{change.added}'"
        )


def report_left_on(cli: CliContext, left_on: RemainingEntries, again: str, *, dry_run: bool) -> None:
    """Print the entries that stay on. `again` is the command that was run.

    Everything is part of the answer, on stdout, because it belongs to one of several editors.
    """
    would = "would be " if dry_run else ""
    for name, reason in left_on.all_reasons:
        cli.out.line(f"  {name}: {would}left on, because {reason}")
    if left_on.redundant:
        names = ", ".join(left_on.redundant)
        cli.out.line(
            f"  also provided by mcpd: {names}; disable them in the editor with: {again} --take-over"
        )


def report_old_names(
    cli: CliContext,
    rewritten: Mapping[Path, Mapping[str, str]],
    mentions: Sequence[Mention],
    again: str,
    user: UserContext,
) -> None:
    """Print what names the former tools. `again`: the command that renames those in lists, if any."""
    for path, names in rewritten.items():
        cli.out.line(f"  renamed in the permission lists of {user.display_path(path)}:")
        for old, new in names.items():
            cli.out.line(f"    {old} → {new}")
    if mentions:
        by_hand = "permission lists aside, edit them by hand" if again else "edit them by hand"
        cli.out.line(f"  these still name the former tools, which have other names now; {by_hand}:")
    _report_mentions(cli, mentions, user)
    if again:
        cli.out.line(f"  rename those in permission lists with: {again}")


def report_names_of_mcpd(cli: CliContext, mentions: Sequence[Mention], user: UserContext) -> None:
    """Print what still names tools of mcpd's entry, which was removed."""
    if mentions:
        cli.out.line("  these still name tools of mcpd, which the editor no longer has; edit them by hand:")
    _report_mentions(cli, mentions, user)


def _report_mentions(cli: CliContext, mentions: Sequence[Mention], user: UserContext) -> None:
    for each in mentions[:_MAX_MENTIONS]:
        new = f" → {each.new}" if each.new else ""
        cli.out.line(f"    {user.display_path(each.path)}:{each.line}: {each.old}{new}")
    if len(mentions) > _MAX_MENTIONS:
        cli.out.line(f"    and {len(mentions) - _MAX_MENTIONS} more (--json lists all)")


def report_own_profile(cli: CliContext, profile: OwnProfile, *, dry_run: bool) -> None:
    """Print a new profile."""
    if profile.is_new:
        would = "would be " if dry_run else ""
        cli.out.line(f"  profile {profile.name}: {would}added with {', '.join(profile.servers)}")


def report_profile(cli: CliContext, editor: str, removed: bool | None, *, dry_run: bool) -> None:
    """Print whether mcpctl's own profile was removed. None: there is none to remove."""
    if removed:
        cli.out.line(f"  profile {editor}: {'would be ' if dry_run else ''}removed")
    elif removed is not None:
        cli.out.line(f"  profile {editor}: kept, because it was changed or is used in the settings")


def report_uninstalled(
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
        if not change.removed:  # somebody has removed it by hand
            cli.out.line(f"{target.editor.title}: mcpd is no longer configured in {path}")
        for name in change.re_enabled:
            cli.out.line(f"  {name}: {would}restored")
        for entry in change.superseded:
            cli.out.line(
                f"  {entry.name}: {would}not restored, because the file has another entry with this name; "
                f"the former one became {entry.server or entry.name} in mcpd"
            )


def as_json(target: InstallTarget, change: FileChange, backups: EditorBackups | None) -> dict[str, object]:
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
