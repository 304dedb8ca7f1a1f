"""`mcpctl install --own`: a profile with the servers that an editor had before it was connected to mcpd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from ctl.cli.errors import DaemonError, NotFound
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects
from ctl.daemon.client import Json
from ctl.editors.backup import EditorBackups, KeptProfile
from ctl.editors.editor_catalog import BY_NAME
from ctl.editors.import_target import ImportTarget
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.take_over import Redundant, TakeOver
from ctl.editors.tool_filters import ToolFilters, as_profile
from mcpd.config.edit_config_file import put_profile, remove_profile
from mcpd.config.in_place_edits.document import parse_document
from mcpd.model.errors import BadSpec


def own_servers(
    everything: TakeOver, target: InstallTarget, backups: EditorBackups
) -> tuple[dict[str, ToolFilters], dict[str, str]]:
    """Return the servers in mcpd that the editor's own entries mean, in the order of mcpd's configuration,
    with the filters of each, as far as the definition in mcpd does not have them.

    Includes the entries that an earlier `install` disabled or removed, which are in the original file. Also
    returns those of them that now mean no enabled server in mcpd, and why: the editor has lost them.
    `everything` must be for an entry that provides all servers. An unreadable file has no entries.
    """
    record = backups.load(target.path)
    found: dict[str, ToolFilters] = {}
    lost: dict[str, str] = {}
    entries: list[Redundant] = []
    try:
        document = parse_document(target.path.read_bytes(), target.path, foreign=True)
        entries = everything.find(target, document)
        if record is not None:
            on = {each.source.name for each in everything.enabled_entries(target, document)}
            taken = {each.name: each.server for each in record.disabled if each.name not in on}
            original = parse_document(record.original, target.path, foreign=True)
            entries += everything.find(target, original, taken)
            reasons = everything.others(target, original, taken)
            lost = {name: reason for name, reason in reasons.items() if name in taken}
    except (OSError, BadSpec):  # `install` reports it
        pass
    for each in entries:
        found.setdefault(each.server, each.filters)
    return {name: found[name] for name in everything.visible if name in found}, lost


def own_profile_name(
    target: InstallTarget,
    servers: Mapping[str, ToolFilters],
    profiles: Mapping[str, object],
    backups: EditorBackups,
) -> str:
    """Return the name of the profile for an editor's file: that of the editor. In a project, it is followed
    by the name of the directory, and by a number if that is the name of another profile.

    `servers` are those that the profile is for, and `profiles` are those in mcpd's configuration.
    """
    if target.project is None:
        return target.editor.name
    kept = backups.kept_profiles()
    if known := [each.name for each in kept if each.path == str(target.path)]:
        return known[0]
    directory = re.sub(r"\W+", "-", target.project.name, flags=re.ASCII).strip("-") or "project"
    taken = {each.name for each in kept} | BY_NAME.keys()
    taken |= {name for name, profile in profiles.items() if profile != as_profile(servers)}
    names = (f"{target.editor.name}-{directory}{end}" for end in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(name for name in names if name not in taken)


@attrs.frozen
class OwnProfile:
    """The profile for the servers that an editor had."""

    name: str
    servers: tuple[str, ...]
    """What it selects. Names of servers, in which an existing profile may have wildcards."""
    fields: Mapping[str, object]
    """The profile as it is written in the configuration of mcpd."""
    is_new: bool
    has_filters: bool = False
    """Whether it selects only some tools of its servers, as the editor did."""
    missing: tuple[str, ...] = ()
    """Servers that the editor has, but that a profile of an earlier `install` does not provide."""

    left_out: Mapping[str, str] = attrs.field(factory=dict)
    """Entries that were taken over before and whose servers it does not provide → why."""

    def to_json(self) -> Json:
        left_out = [{"name": name, "reason": reason} for name, reason in sorted(self.left_out.items())]
        return {
            "name": self.name,
            "servers": list(self.servers),
            "added": self.is_new,
            "left_out": left_out,
        }


def add_own_profile(
    cli: CliContext,
    active: ImportTarget,
    target: InstallTarget,
    name: str,
    servers: Mapping[str, ToolFilters],
    backups: EditorBackups,
    *,
    left_out: Mapping[str, str],
    dry_run: bool,
) -> OwnProfile:
    """Add the profile to mcpd's configuration and reload the daemon; an existing profile is used unchanged.

    `name` is what `own_profile_name` returns, and `servers` and `left_out` are what `own_servers` returns.
    Raises NotFound if the editor had no server that mcpd has, and BadSpec, CannotWrite or DaemonError if the
    file cannot be changed.
    """
    if name in active.profiles:
        fields = mapping(active.profiles[name])
        added = any((each.name, each.profile) == (name, fields) for each in backups.kept_profiles())
        provided = tuple(active.visible_servers(None, name))
        missing = tuple(each for each in servers if added and each not in provided)
        return OwnProfile(name, provided, fields, False, missing=missing, left_out=left_out if added else {})
    if not servers:
        where = "" if target.project is None else f"'s {target.path}"
        lost = "; ".join(f"{entry}: {reason}" for entry, reason in sorted(left_out.items()))
        message = (
            f"{target.editor.title}{where} has no servers that are in mcpd{f' ({lost})' if lost else ''}"
        )
        raise NotFound(
            message, hint=f"mcpctl import {target.editor.name}, or omit --own to provide all servers"
        )
    profile = as_profile(servers)
    if not dry_run:
        put_profile(active.path, name, profile)
        backups.keep_profile(KeptProfile(name, active.path, profile, str(target.path)))
        if active.running:
            errors = objects(cli.call("mcpd/reload").value.get("errors"))
            if errors:
                data = {"code": "bad_spec", "exit": 2, "problems": errors}
                raise DaemonError({"message": f"{active.path} is invalid", "data": data})
    return OwnProfile(name, tuple(servers), profile, True, any(servers.values()), left_out=left_out)


def remove_own_profiles(
    editor: str, targets: Iterable[InstallTarget], backups: EditorBackups, *, dry_run: bool
) -> dict[str, bool]:
    """Remove the profiles that `install --own` added for an editor and for its files; a running daemon
    notices the change.

    `targets` are the editor's files, from which mcpd's entries have been removed unless it is a `dry_run`.
    Return the names of the profiles that no file uses any more, and whether each was removed. False: it
    stays because it was changed, or because another setting refers to it. Raises BadSpec and
    CannotWrite.
    """
    files = [target.path for target in targets]
    using = [*backups.other_files(files), *([] if dry_run else files)]
    removed: dict[str, bool] = {}
    for kept in backups.kept_profiles():
        is_ours = kept.name == editor or kept.path in map(str, files)
        if is_ours and not any(_may_use(path, kept.name) for path in using):
            exists = kept.config.exists()
            if dry_run or exists:
                removed[kept.name] = dry_run or remove_profile(kept.config, kept.name, kept.profile)
            if not dry_run:
                backups.forget_profile(kept.name)
    return removed


def _may_use(path: Path, profile: str) -> bool:
    """Return whether an editor's file may refer to a profile, as an argument or in a URL."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return False
    return re.search(rf"(?:--profile\W+|#/mcp/){re.escape(profile)}(?![\w.-])", text) is not None
