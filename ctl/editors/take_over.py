"""What an editor had before: its entries that mcpd makes redundant, and the profile of their servers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from ctl.cli.errors import CtlError, DaemonError, NotFound, TimedOut
from ctl.cli.invocation import CliContext
from ctl.cli.json_text import mapping, objects
from ctl.daemon.client import Json
from ctl.editors.backups import EditorBackups, KeptProfile
from ctl.editors.config_files import EditorFile, EditorSpec, UserContext, find_editor_files
from ctl.editors.import_plan import ImportTarget
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.merge import KnownServers
from ctl.editors.read_entries import (
    IS_MCPD,
    DiscoveredEntries,
    ImportCandidate,
    discover,
    discover_in_file,
)
from ctl.editors.secrets import named_by_owner
from ctl.show.progress import wait_for_each
from ctl.show.status import READY, failure_summary
from mcpd.config import definition_view
from mcpd.config.definition_view import is_enabled
from mcpd.config.edit_config_file import put_profile, remove_profile
from mcpd.config.in_place_edits.document import (
    Document,
    read_document,
)
from mcpd.config.next_step import needs_login
from mcpd.model.errors import BadSpec

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus


SETTLE_TIMEOUT = 60.0
"""Seconds to wait for servers that are still starting."""


@attrs.define
class TakeOver:
    """Decides for one run of `mcpctl install`. `target` is None if mcpd's configuration cannot be used."""

    cli: CliContext
    user: UserContext
    target: ImportTarget | None
    visible: Mapping[str, Mapping[str, object]]
    """The servers that the new entry provides."""
    may_start: bool
    """Whether the daemon may be started to learn the states of the servers."""
    what: str = "the entry"
    """What the new entry provides: `profile work`."""
    is_preview: bool = False
    """The daemon is not started now, but would be: assume that it can then serve all servers."""
    known: KnownServers = attrs.field(init=False)
    """All servers in mcpd."""
    provided: KnownServers = attrs.field(init=False)
    """The enabled ones that the new entry provides."""
    _reasons: dict[str, str] | None = None

    def __attrs_post_init__(self) -> None:
        self.known = KnownServers(self.target.servers if self.target is not None else {}, os.environ)
        enabled = {name: one for name, one in self.visible.items() if definition_view.is_enabled(one)}
        self.provided = KnownServers(enabled, os.environ)

    def only(self, servers: Collection[str], what: str) -> TakeOver:
        """Return the same for an entry that provides only these servers."""
        visible = {name: fields for name, fields in self.visible.items() if name in servers}
        return attrs.evolve(self, visible=visible, what=what)

    def find(self, target: InstallTarget, document: Document) -> dict[str, str]:
        """Return the enabled entries whose servers the new entry provides, with these servers."""
        found = ((one.source.name, self.provided.find(one)) for one in self._enabled(target, document))
        return {name: server for name, server in found if server is not None}

    def others(self, target: InstallTarget, document: Document) -> dict[str, str]:
        """Return the enabled entries that `find` does not return, and why they cannot be taken over."""
        if self.target is None:
            return {}
        skipped = {
            one.source.name: f"mcpctl cannot import it: {one.reason}"
            for one in self._discover(target, document).skipped
            if one.reason != IS_MCPD
            and one.source.scope == target.location.scope
            and one.fields.get("disabled") is not True
            and one.fields.get("enabled") is not False
        }
        return skipped | {
            one.source.name: self._reason_not_provided(one, self.target)
            for one in self._enabled(target, document)
            if self.provided.find(one) is None
        }

    def of_projects(self, target: InstallTarget) -> list[tuple[str, str]]:
        """Return the enabled entries that the editor has for single projects, and why they stay on: the file
        of the user does not contain them, or others may use them."""
        if target.project is not None:
            return []
        files = find_editor_files((target.editor,), self.user)
        return [
            (one.source.name, f"it is an entry for {self.user.display_path(one.source.project)} only")
            for one in discover(files, [], self.user, target.addresses).candidates
            if one.source.project is not None and definition_view.is_enabled(one.definition)
        ]

    def _reason_not_provided(self, one: ImportCandidate, active: ImportTarget) -> str:
        server = self.known.find(one)
        if server is None:
            similar = self.known.similar_to(one)
            if similar is None:
                return "mcpd does not have it (mcpctl import)"
            parts = ", ".join(similar.differs_in)
            return (
                f"mcpd's {similar.server} differs from it in {parts}: make them equal, or disable this entry"
            )
        if not definition_view.is_enabled(active.servers[server]):
            return f"it is disabled in mcpd (mcpctl enable {server})"
        return f"{self.what} does not include it"

    def _discover(self, target: InstallTarget, document: Document) -> DiscoveredEntries:
        file = EditorFile(target.editor, target.location, target.path, target.project)
        return discover_in_file(file, document, self.user, target.addresses)

    def _enabled(self, target: InstallTarget, document: Document) -> list[ImportCandidate]:
        return [
            named_by_owner(one)
            for one in self._discover(target, document).candidates
            if one.source.scope == target.location.scope and definition_view.is_enabled(one.definition)
        ]

    def reason_to_leave(self, server: str) -> str:
        """Return why mcpd cannot serve a server now, so that the editor's entry stays on; empty if it can.

        On the first call, waits for the servers that are still starting.
        """
        if self._reasons is None:
            self.cli.may_start = self.may_start
            try:
                self._reasons = self._ask_daemon()
            except CtlError:
                self._reasons = dict.fromkeys(self.visible, "" if self.is_preview else "mcpd is not running")
                if self.is_preview:
                    note = "note: mcpd would be started; entries of servers that do not connect would stay on"
                    self.cli.out.message(note)
        return self._reasons.get(server, "mcpd has not loaded it")

    def without_failed(self, redundant: Mapping[str, str]) -> list[str]:
        """Return the entries whose servers mcpd does not fail to serve now, as far as is known at once."""
        self.cli.may_start = False
        with suppress(CtlError):
            listed = self.cli.call("mcpd/status").value["servers"]
            failed = {one["name"] for one in listed if one["status"] != "disabled" and self._reason(one)}
            starting = {one["name"] for one in listed if not (_is_settled(one) or one.get("last_error"))}
            return sorted(entry for entry, server in redundant.items() if server not in failed - starting)
        return sorted(redundant)

    def _ask_daemon(self) -> dict[str, str]:
        """Return a reason, which may be empty, by server. Raises CtlError."""
        listed = self.cli.call("mcpd/status").value["servers"]
        starting = [one for one in listed if not _is_settled(one) and one["name"] in self.visible]
        if starting and self.may_start:
            with suppress(TimedOut):  # its entry is left on
                wait_for_each(self.cli, starting, _is_settled, timeout=SETTLE_TIMEOUT, show=False)
            listed = self.cli.call("mcpd/status").value["servers"]
        return {each["name"]: self._reason(each) for each in listed}

    def _reason(self, status: ServerStatus) -> str:
        """Return why mcpd cannot serve a server in this state, with the next step; empty if it can."""
        name, state, failure = status["name"], status["status"], status.get("last_error")
        if state in READY:
            return ""
        if state == "needs-auth":
            if needs_login(self.visible.get(name, {})):
                return f"it needs a login in mcpd (mcpctl login {name})"
            return f"it rejects mcpd's credentials (mcpctl why {name})"
        if state == "pending" and not failure:
            return "it is still starting in mcpd"
        if state == "disabled":
            return f"it is disabled in mcpd (mcpctl enable {name})"
        cause = failure_summary(failure) if failure else status.get("reason", "")
        return f"it has failed in mcpd: {cause} (mcpctl why {name})"


def _is_settled(status: ServerStatus) -> bool:
    return status["status"] != "pending"


# ---- the profile of `install --own` ---------------------------------------------------------------------


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
        document = read_document(target.path, foreign=True)
        found |= set(everything.find(target, document).values())
    except (OSError, BadSpec):  # `install` reports it
        pass
    if (record := backups.load(target.path)) is not None:
        found |= {each.server or each.name for each in record.disabled}
    return [name for name, fields in everything.visible.items() if name in found and is_enabled(fields)]


def has_servers(everything: TakeOver, target: InstallTarget) -> bool:
    """Return whether the editor has enabled entries that mcpd does not provide."""
    try:
        document = read_document(target.path, foreign=True)
    except (OSError, BadSpec):
        return False
    return bool(everything.others(target, document))


def add_own_profile(
    cli: CliContext,
    active: ImportTarget,
    editor: EditorSpec,
    servers: Sequence[str],
    backups: EditorBackups,
    *,
    dry_run: bool,
) -> OwnProfile:
    """Add a profile with the name of the editor to mcpd's configuration, and reload the daemon; an existing
    profile is used unchanged.

    `servers` are what `own_servers` returns. Raises NotFound if the editor had no server that mcpd has, and
    BadSpec, CannotWrite or DaemonError if the file cannot be changed.
    """
    name = editor.name
    if name in active.profiles:
        fields = mapping(active.profiles[name])
        return OwnProfile(name, tuple(active.visible_servers(None, name)), fields, False)
    if not servers:
        hint = f"mcpctl import {name}, or omit --own to provide all servers"
        raise NotFound(f"{editor.title} has no servers that are in mcpd", hint=hint)
    profile = {"servers": [*servers]}
    if not dry_run:
        put_profile(active.path, name, profile)
        backups.keep_profile(name, KeptProfile(active.path, profile))
        if active.running:
            errors = objects(cli.call("mcpd/reload").value.get("errors"))
            if errors:
                data = {"code": "bad_spec", "exit": 2, "problems": errors}
                raise DaemonError({"message": f"{active.path} is invalid", "data": data})
    return OwnProfile(name, tuple(servers), profile, True)


def remove_own_profile(
    editor: str, files: Collection[Path], backups: EditorBackups, *, dry_run: bool
) -> bool | None:
    """Remove the profile that `install --own` added for an editor; a running daemon notices the change.

    mcpd's entries have been removed from `files` unless it is a `dry_run`. Return whether it was removed;
    None if there is none, or if another file uses it. False: it stays because it was changed, or because
    another setting refers to it. Raises BadSpec and CannotWrite.
    """
    kept = backups.kept_profile(editor)
    using = [*backups.other_files(files), *([] if dry_run else files)]
    if kept is None or any(_may_use(path, editor) for path in using):
        return None
    removed = dry_run or (kept.config.exists() and remove_profile(kept.config, editor, kept.profile))
    if not dry_run:
        backups.forget_profile(editor)
    return removed


def _may_use(path: Path, profile: str) -> bool:
    """Return whether an editor's file may refer to a profile, as an argument or in a URL."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return False
    return re.search(rf"(?:--profile\W+|#/mcp/){re.escape(profile)}(?![\w.-])", text) is not None
