"""Which entries of an editor mcpd makes redundant, and which it can take over."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from ctl.cli.errors import CtlError, TimedOut
from ctl.cli.invocation import CliContext
from ctl.editors.discovery import (
    IS_MCPD,
    DiscoveredEntries,
    ImportCandidate,
    discover_in_file,
)
from ctl.editors.editor_paths import EditorFile, UserContext
from ctl.editors.import_target import ImportTarget
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.merge import KnownServers
from ctl.editors.secrets import named_by_owner
from ctl.show.progress import hint_for, wait_for_each
from ctl.show.status import READY, failure_summary
from mcpd.config import definition_view
from mcpd.config.in_place_edits.document import Document
from mcpd.config.next_step import needs_login

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus

SETTLE_TIMEOUT = 60.0
"""Seconds to wait for servers that are still starting."""

_EXACT_STEPS = ("mcpctl login ", "mcpctl secret set ", "mcpctl enable ", "mcpctl connect ")
"""Commands that need no explanation."""


@attrs.frozen
class Redundant:
    """An enabled entry in an editor's file, and the server in mcpd that it means."""

    entry: str
    server: str


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
    known: KnownServers = attrs.field(init=False)
    """All servers in mcpd."""
    provided: KnownServers = attrs.field(init=False)
    """The enabled ones that the new entry provides."""
    _reasons: dict[str, str] | None = None
    _reasons_now: dict[str, str] | None = None

    def __attrs_post_init__(self) -> None:
        self.known = KnownServers(self.target.servers if self.target is not None else {}, os.environ)
        enabled = {name: one for name, one in self.visible.items() if definition_view.is_enabled(one)}
        self.provided = KnownServers(enabled, os.environ)

    @property
    def profiles(self) -> Mapping[str, object]:
        """The profiles in mcpd's configuration, by name."""
        return self.target.profiles if self.target is not None else {}

    def only(self, servers: Collection[str], what: str) -> TakeOver:
        """Return the same for an entry that provides only these servers."""
        visible = {name: fields for name, fields in self.visible.items() if name in servers}
        return TakeOver(self.cli, self.user, self.target, visible, self.may_start, what)

    def find(self, target: InstallTarget, document: Document) -> list[Redundant]:
        """Return the enabled entries for servers that are enabled in mcpd and provided by the new entry."""
        found = (
            Redundant(one.source.name, server)
            for one in self._enabled_entries(target, document)
            if (server := self.provided.find(one)) is not None
        )
        return list(dict.fromkeys(found))

    def others(self, target: InstallTarget, document: Document) -> dict[str, str]:
        """Return the enabled entries that `find` does not return, and why they cannot be taken over."""
        if self.target is None:
            return {}
        found = {
            one.source.name: one.reason.partition(";")[0]  # what follows is for `import`
            for one in self._discover(target, document).skipped
            if one.is_used and one.reason != IS_MCPD and one.source.scope == target.location.scope
        }
        for one in self._enabled_entries(target, document):
            if self.provided.find(one) is None:
                found[one.source.name] = self.reason_not_provided(one)
        return found

    def reason_not_provided(self, one: ImportCandidate) -> str:
        """Return why the new entry does not provide the server of an entry."""
        if self.target is None:
            return "mcpd does not have it"
        server = self.known.find(one)
        if server is None:
            similar = self.known.similar_to(one)
            if similar is None:
                return "mcpd does not have it"
            return f"it differs from {similar.server} in mcpd: {', '.join(similar.differs_in)}"
        if not definition_view.is_enabled(self.target.servers[server]):
            return "it is disabled in mcpd"
        return f"{self.what} does not include it"

    def _enabled_entries(self, target: InstallTarget, document: Document) -> list[ImportCandidate]:
        return [
            named_by_owner(one)
            for one in self._discover(target, document).candidates
            if one.source.scope == target.location.scope and definition_view.is_enabled(one.definition)
        ]

    def _discover(self, target: InstallTarget, document: Document) -> DiscoveredEntries:
        file = EditorFile(target.editor, target.location, target.path, target.project)
        return discover_in_file(file, document, self.user, target.addresses)

    def reason_to_leave(self, server: str) -> str:
        """Return why mcpd cannot serve a server now, so that the editor's entry stays on; empty if it can.

        On the first call, waits for the servers that are still starting.
        """
        if self._reasons is None:
            self._reasons = self._ask_daemon()
        if self._reasons.get("") is not None:
            return self._reasons[""]
        return self._reasons.get(server, "mcpd has not loaded it")

    def _ask_daemon(self) -> dict[str, str]:
        """Return a reason, which may be empty, by server; under an empty name, one that applies to all."""
        cli = self.cli
        cli.may_start = self.may_start
        try:
            listed = cli.call("mcpd/status").value["servers"]
            starting = [
                each for each in listed if each["status"] == "pending" and each["name"] in self.visible
            ]
            if starting and self.may_start:
                with suppress(TimedOut):  # its entry is left on
                    wait_for_each(cli, starting, _is_settled, timeout=SETTLE_TIMEOUT, show=False)
                listed = cli.call("mcpd/status").value["servers"]
        except CtlError:
            return {"": "mcpd is not running"}
        return {each["name"]: self._reason(each) for each in listed}

    def reason_now(self, server: str) -> str:
        """Return the same without starting mcpd or waiting; empty if it is not known yet."""
        if self._reasons_now is None:
            self.cli.may_start = False
            try:
                listed = self.cli.call("mcpd/status").value["servers"]
            except CtlError:
                listed = []
            self._reasons_now = {each["name"]: self._reason(each) for each in listed if _is_settled(each)}
        return self._reasons_now.get(server, "")

    def first_step(self, server: str) -> str:
        """Return the command to run before a server that mcpd cannot serve now can be taken over."""
        command = hint_for(self.cli, server).partition("   (")[0]
        return command if command.startswith(_EXACT_STEPS) else f"mcpctl why {server}"

    def _reason(self, status: ServerStatus) -> str:
        """Return why mcpd cannot serve a server in this state; empty if it can."""
        state, failure = status["status"], status.get("last_error")
        if state in READY:
            return ""
        if state == "needs-auth":
            definition = self.visible.get(status["name"], {})
            return "it needs a login in mcpd" if needs_login(definition) else "it rejects mcpd's credentials"
        if state == "pending":
            return "it is still starting in mcpd"
        if state == "disabled":
            return "it is disabled in mcpd"
        return f"it has failed in mcpd: {failure_summary(failure) if failure else status.get('reason', '')}"


def _is_settled(status: ServerStatus) -> bool:
    return status["status"] != "pending"
