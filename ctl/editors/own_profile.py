"""`mcpctl install --own`: a profile with the servers that an editor had before it was connected to mcpd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
from ctl.editors.take_over import TakeOver
from mcpd.config.definition_view import is_enabled
from mcpd.config.edit_config_file import put_profile, remove_profile
from mcpd.config.in_place_edits.document import parse_document
from mcpd.model.errors import BadSpec


@attrs.frozen
class OwnProfile:
    """The profile for the servers that an editor had."""

    name: str
    servers: tuple[str, ...]
    """The servers that it selects."""
    fields: Mapping[str, object]
    """The profile as it is written in the configuration of mcpd."""
    is_new: bool

    def to_json(self) -> Json:
        return {"name": self.name, "servers": list(self.servers), "added": self.is_new}


def own_servers(everything: TakeOver, target: InstallTarget, backups: EditorBackups) -> list[str]:
    """Return the enabled servers in mcpd that the editor's entries mean, in the order of the configuration.

    Includes the servers that have replaced entries in an earlier `install`. `everything` must be for an entry
    that provides all servers. An unreadable file has no entries.
    """
    found: set[str] = set()
    try:
        document = parse_document(target.path.read_bytes(), target.path, foreign=True)
        found |= {each.server for each in everything.find(target, document)}
    except (OSError, BadSpec):  # `install` reports it
        pass
    if (record := backups.load(target.path)) is not None:
        found |= {each.server or each.name for each in record.disabled}
    return [name for name, fields in everything.visible.items() if name in found and is_enabled(fields)]


def own_profile_name(
    target: InstallTarget, servers: Sequence[str], profiles: Mapping[str, object], backups: EditorBackups
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
    taken |= {name for name, profile in profiles.items() if profile != {"servers": [*servers]}}
    names = (f"{target.editor.name}-{directory}{end}" for end in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(name for name in names if name not in taken)


def add_own_profile(
    cli: CliContext,
    active: ImportTarget,
    target: InstallTarget,
    name: str,
    servers: Sequence[str],
    backups: EditorBackups,
    *,
    dry_run: bool,
) -> OwnProfile:
    """Add the profile to mcpd's configuration and reload the daemon; an existing profile is used unchanged.

    `name` is what `own_profile_name` returns, and `servers` are what `own_servers` returns. Raises NotFound
    if the editor had no server that mcpd has, and BadSpec, CannotWrite or DaemonError if the file cannot be
    changed.
    """
    if name in active.profiles:
        return OwnProfile(
            name, tuple(active.visible_servers(None, name)), mapping(active.profiles[name]), False
        )
    if not servers:
        where = "" if target.project is None else f"'s {target.path}"
        hint = f"mcpctl import {target.editor.name}, or omit --own to provide all servers"
        raise NotFound(f"{target.editor.title}{where} has no servers that are in mcpd", hint=hint)
    profile = {"servers": [*servers]}
    if not dry_run:
        put_profile(active.path, name, profile)
        backups.keep_profile(KeptProfile(name, active.path, profile, str(target.path)))
        if active.running:
            errors = objects(cli.call("mcpd/reload").value.get("errors"))
            if errors:
                data = {"code": "bad_spec", "exit": 2, "problems": errors}
                raise DaemonError({"message": f"{active.path} is invalid", "data": data})
    return OwnProfile(name, tuple(servers), profile, True)


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
