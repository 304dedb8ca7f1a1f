"""`mcpctl install --own`: a profile with the servers that an editor had before it was connected to mcpd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from ctl.daemon_client import Json
from ctl.editors.backup import EditorBackups
from ctl.editors.import_target import ImportTarget
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.take_over import TakeOver
from ctl.editors.tool_filters import ToolFilters, as_profile
from ctl.errors import DaemonError, NotFound
from ctl.invocation import CliContext
from ctl.json_values import objects
from mcpd.config.edit_config_file import put_profile, remove_profile
from mcpd.config.in_place_edits.document import parse_document
from mcpd.model.errors import BadSpec


def own_servers(
    everything: TakeOver, target: InstallTarget, backups: EditorBackups
) -> dict[str, ToolFilters]:
    """Return the servers in mcpd that the editor's own entries mean, in the order of mcpd's configuration.

    With the filters of each, as far as the definition in mcpd does not have them.

    Includes the entries that an earlier `install` disabled or removed, which are in the original file.
    `everything` must be for an entry that provides all servers. An unreadable file has no entries.
    """
    record = backups.load(target.path)
    found: dict[str, ToolFilters] = {}
    try:
        files = [target.path.read_bytes(), *([record.original] if record is not None else [])]
        for data in files:
            document = parse_document(data, target.path, foreign=True)
            for each in everything.find(target, document):
                found.setdefault(each.server, each.filters)
    except (OSError, BadSpec):  # `install` reports it
        pass
    return {name: found[name] for name in everything.visible if name in found}


@attrs.frozen
class OwnProfile:
    """The profile of one editor, named after it."""

    name: str
    servers: tuple[str, ...]
    """What it selects. Names of servers, in which an existing profile may have wildcards."""
    is_new: bool
    has_filters: bool = False
    """Whether it selects only some tools of its servers, as the editor did."""

    def to_json(self) -> Json:
        return {"name": self.name, "servers": list(self.servers), "added": self.is_new}


def add_own_profile(
    cli: CliContext,
    active: ImportTarget,
    target: InstallTarget,
    servers: Mapping[str, ToolFilters],
    backups: EditorBackups,
    *,
    dry_run: bool,
) -> OwnProfile:
    """Add the profile to mcpd's configuration and reload the daemon; an existing profile is used unchanged.

    Raises NotFound if the editor had no server that mcpd has, and BadSpec or DaemonError if the file cannot
    be changed.
    """
    name = target.editor.name
    if name in active.profiles:
        return OwnProfile(name, tuple(active.visible_servers(None, name)), False)
    if not servers:
        message = f"{target.editor.title} has no servers that are in mcpd"
        raise NotFound(message, hint=f"mcpctl import {name}, or omit --own to provide all servers")
    if not dry_run:
        profile = as_profile(servers)
        put_profile(active.path, name, profile)
        backups.keep_profile(name, active.path, profile)
        if active.running:
            errors = objects(cli.call("mcpd/reload").value.get("errors"))
            if errors:
                data = {"code": "bad_spec", "exit": 2, "problems": errors}
                raise DaemonError({"message": f"{active.path} is invalid", "data": data})
    return OwnProfile(name, tuple(servers), True, any(servers.values()))


def remove_own_profile(
    editor: str, targets: Iterable[InstallTarget], backups: EditorBackups, *, dry_run: bool
) -> bool | None:
    """Remove the profile that `install --own` added for an editor; a running daemon notices the change.

    `targets` are the editor's files, from which mcpd's entries have been removed unless it is a `dry_run`.
    Return None if there is nothing to do: there is no such profile, or a file still uses it. Return False if
    the profile stays because it was changed, or because another setting refers to it. Raises BadSpec.
    """
    kept, files = backups.kept_profile(editor), [target.path for target in targets]
    using = [*backups.other_files(files), *([] if dry_run else files)]
    if kept is None or any(_may_use(path, editor) for path in using):
        return None
    path, profile = kept
    if dry_run:
        return True
    removed = path.exists() and remove_profile(path, editor, profile)
    backups.forget_profile(editor)
    return removed if path.exists() else None


def _may_use(path: Path, profile: str) -> bool:
    """Return whether an editor's file may refer to a profile, as an argument or in a URL."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return False
    return re.search(rf"--profile[\W]+{re.escape(profile)}\b|#/mcp/{re.escape(profile)}\b", text) is not None
