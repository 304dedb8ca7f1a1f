"""What `mcpctl install` and `uninstall` print about one file of an editor."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence, Set
from fnmatch import fnmatchcase

import attrs

from ctl.cli.errors import CtlError
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import strings
from ctl.cli.text import count
from ctl.daemon.client import Json
from ctl.editors.entry import InstallTarget
from ctl.editors.install import FileChange
from ctl.editors.paths import UserContext
from ctl.editors.take_over import OwnProfile, Redundant, TakeOver
from ctl.editors.undo import EditorBackups


@attrs.define
class LeftOn:
    """The entries of an editor that stay on."""

    redundant: dict[Redundant, str] = attrs.field(factory=dict)
    """Those for servers that the new entry provides → why mcpd cannot serve them now; empty if it can."""
    others: dict[str, str] = attrs.field(factory=dict)
    """The other entries → why they cannot be taken over."""

    @property
    def reasons(self) -> dict[str, str]:
        """The entries of `redundant` that mcpd cannot serve now → why."""
        return {each.entry: reason for each, reason in self.redundant.items() if reason}

    def to_json(self) -> Json:
        reasons = sorted((self.others | self.reasons).items())
        return {
            "also_in_mcpd": sorted(each.entry for each in self.redundant),
            "left_on": [{"name": entry, "reason": reason} for entry, reason in reasons],
        }


def report_installed(
    cli: CliContext, target: InstallTarget, change: FileChange, *, dry_run: bool, user: UserContext
) -> None:
    """Print what was changed in the file."""
    would, path = "would be " if dry_run else "", user.display_path(target.path)
    if change.added is None:
        cli.out.line(f"{target.editor.title}: already configured in {path}")
    else:
        cli.out.line(f"{target.editor.title}: '{change.added}' {would}added to {path}")
    for taken in change.disabled:
        how = "removed until mcpctl uninstall" if taken.removed else "disabled"
        cli.out.line(f"  {taken.name}: {would}{how} (provided by mcpd)")


def report_left_on(
    cli: CliContext, left_on: LeftOn, entry: TakeOver, again: str, *, took_over: bool, dry_run: bool
) -> None:
    """Print the entries that stay on, and what to do about them. `again` is the command that was run.

    Everything is part of the answer, on stdout, because it belongs to one of several editors.
    """
    reasons = left_on.reasons
    if took_over:
        would = "would be " if dry_run else ""
        for name, reason in sorted((left_on.others | reasons).items()):
            cli.out.line(f"  {name}: {would}left on, because {reason}")
        if reasons:
            cli.out.line(f"  to take these over too: {again} --take-over=all")
    else:
        for name, reason in sorted(reasons.items()):
            cli.out.line(f"  {name}: also in mcpd, but {reason}")
    if reasons:
        servers = sorted(each.server for each, reason in left_on.redundant.items() if reason)
        steps = dict.fromkeys(map(entry.first_step, servers))
        them = next(iter(reasons)) if len(reasons) == 1 else "them"
        cli.out.line(f"  so that mcpd can provide {them}: {'; '.join(steps)}")
    if provided := sorted(each.entry for each, reason in left_on.redundant.items() if not reason):
        names = ", ".join(provided)
        cli.out.line(
            f"  also provided by mcpd: {names}; disable them in the editor with: {again} --take-over"
        )


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
        for name in change.not_restored:
            restored = "would not be restored" if dry_run else "not restored"
            cli.out.line(f"  {name}: {restored}, because the file has another '{name}' now")
        if change.not_restored and change.kept is not None:
            kept = user.display_path(change.kept)
            cli.out.line(f"  the original content {would or 'is '}kept in {kept}")


def as_json(target: InstallTarget, change: FileChange, backups: EditorBackups | None) -> dict[str, object]:
    facts: dict[str, object] = {
        "editor": target.editor.name,
        "path": str(target.path),
        "added": change.added,
        "removed": list(change.removed),
        "taken_over": [{"name": taken.name, "removed": taken.removed} for taken in change.disabled],
    }
    if backups is None:
        return (
            facts
            | {"restored": change.restored, "given_back": list(change.re_enabled)}
            | {
                "not_restored": list(change.not_restored),
                "backup": None if change.kept is None else str(change.kept),
            }
        )
    return facts | {
        "backup": str(backups.original_path(target.path)) if change.existed and change.added else None
    }


_BYTES_PER_TOKEN = 4
"""A rough average for JSON and English."""
_MANY_TOOLS = 40
"""Tools from which on a profile is suggested. Some editors use no more than that many."""
_TIMEOUT = 10.0
"""Seconds. The daemon answers from memory."""


def describe_tools(
    entry: TakeOver,
    target: InstallTarget,
    fields: Mapping[str, object] | None,
    had: Collection[str],
    again: str,
) -> str:
    """Return how many tools the editor will see and what they cost it, in one line; empty if not known.

    `fields` are the members of the entry's profile, if it has one. `had`: the servers that the editor had
    before. `again` is the command that was run, to which an option can be appended.
    """
    entry.cli.may_start = False
    try:
        tools = entry.cli.call("mcpd/tools", timeout=_TIMEOUT).value["tools"]
    except CtlError:
        return ""
    profile = fields or {}
    seen = [tool for tool in tools if tool.get("server") in entry.visible and _selects(profile, tool)]
    if not seen:
        return ""
    shown = [{key: tool.get(key) for key in ("name", "description", "inputSchema")} for tool in seen]
    size = len(json.dumps(shown, ensure_ascii=False).encode())
    servers = {str(tool.get("server")) for tool in seen}
    tokens = max(100, round(size // _BYTES_PER_TOKEN, -2))
    at_most = "up to " if entry.may_deny(profile) else ""
    advice = "" if fields is not None else _advice(target, len(seen), servers, had, again)
    return (
        f"{target.editor.title} will see {at_most}{count(len(seen), 'tool')} of "
        f"{count(len(servers), 'server')}, about {tokens:,} tokens in each conversation{advice}"
    )


def _advice(target: InstallTarget, tools: int, servers: Set[str], had: Collection[str], again: str) -> str:
    """Return how the editor can see fewer tools; empty if it does not see too many."""
    if had and not servers <= {*had} and target.project is None:
        number = count(len(had), "server")  # it may have had others that mcpd does not have
        return f"; for only the {number} in mcpd that it had: {again} --own"
    return f"; for fewer, define a profile and run: {again} --profile NAME" if tools >= _MANY_TOOLS else ""


def _selects(profile: Mapping[str, object], tool: Json) -> bool:
    """Return whether a profile selects a tool, by its tags and by the patterns `tool` and `tool@server`."""
    name, full = str(tool.get("name")), f"{tool.get('name')}@{tool.get('server')}"

    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(full if "@" in each else name, each) for each in patterns)

    include, tags = profile.get("includeTools"), profile.get("tags")
    has_tag = any(fnmatchcase(tag, each) for tag in strings(tool.get("tags")) for each in strings(tags))
    return (
        (include is None or matches(strings(include)))
        and (tags is None or has_tag)
        and not matches(strings(profile.get("excludeTools")))
    )
