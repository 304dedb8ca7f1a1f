"""Which entries of an editor mcpd makes redundant, which it can take over, and what the editor then sees."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs

from ctl.editors.discovery import ImportCandidate, discover_in_file
from ctl.editors.editor_paths import EditorFile, UserContext
from ctl.editors.import_history import ImportHistory
from ctl.editors.import_target import ImportTarget
from ctl.editors.mcpd_entry import InstallTarget
from ctl.editors.merging import matching_server, server_identities
from ctl.editors.tool_filters import NO_FILTERS, ToolFilters, unlike_ours
from ctl.errors import CtlError, TimedOut
from ctl.invocation import CliContext
from ctl.json_values import mapping, strings
from ctl.server_progress import wait_for_each
from ctl.status_view import READY, failure_summary
from ctl.terminal_text import count
from mcpd.config import definition_view
from mcpd.config.in_place_edits.document import Document

if TYPE_CHECKING:
    from ctl.api_types import ServerStatus

SETTLE_TIMEOUT = 60.0
"""Seconds to wait for servers that are still starting."""
_BYTES_PER_TOKEN = 4
"""A rough average for JSON and English."""
_MANY_TOOLS = 40
"""Tools from which on a profile is suggested. Some editors use no more than that many."""


@attrs.frozen
class Redundant:
    """An enabled entry in an editor's file, and the server in mcpd that it means."""

    entry: str
    server: str
    filters: ToolFilters = NO_FILTERS
    """Which tools of the server the editor uses, as far as the definition in mcpd does not say the same."""


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
    _reasons: dict[str, str] | None = None

    @property
    def profiles(self) -> Collection[str]:
        """The names of the profiles in mcpd's configuration."""
        return self.target.profiles.keys() if self.target is not None else ()

    def only(self, servers: Collection[str]) -> TakeOver:
        """Return the same for an entry that provides only these servers."""
        visible = {name: fields for name, fields in self.visible.items() if name in servers}
        return TakeOver(self.cli, self.user, self.target, visible, self.may_start, self._reasons)

    def find(self, target: InstallTarget, document: Document) -> list[Redundant]:
        """Return the enabled entries for servers that are enabled in mcpd and provided by the new entry."""
        project = self.user.project if target.location.scope == "project" else None
        discovered = discover_in_file(
            EditorFile(target.editor, target.location, target.path, project), document, self.user
        )
        server_of = self.matcher()
        found = [
            Redundant(candidate.source.name, server, unlike_ours(candidate.definition, self.visible[server]))
            for candidate in discovered.candidates
            if candidate.source.scope == target.location.scope
            and definition_view.is_enabled(candidate.definition)
            and (server := server_of(candidate)) is not None
        ]
        return list(dict.fromkeys(found))

    def matcher(self) -> Callable[[ImportCandidate], str | None]:
        """Return a function that returns the server that an entry means, if the new entry provides it."""
        enabled = {
            name: fields for name, fields in self.visible.items() if definition_view.is_enabled(fields)
        }
        provided = server_identities(enabled, os.environ)
        history = ImportHistory(os.environ, self.target.path) if self.target is not None else None

        def server_of(candidate: ImportCandidate) -> str | None:
            named = history.same_server(candidate) if history is not None else None
            return named if named in enabled else matching_server(candidate, provided, os.environ)

        return server_of

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
        return {each["name"]: _reason(each) for each in listed}

    def summary(self, title: str, editor: str, profile: str | None, own: Collection[str] = ()) -> str:
        """Return what the editor will see and what that costs it, in one line; empty if it is not known.

        `own`: the servers that the editor had before.
        """
        self.cli.may_start = False
        try:
            tools = self.cli.call("mcpd/tools", timeout=10.0).value["tools"]
        except CtlError:
            return ""
        chosen = mapping(self.target.profiles.get(profile)) if self.target and profile else {}
        seen = [tool for tool in tools if tool.get("server") in self.visible and _selected(tool, chosen)]
        if not seen:
            return ""
        shown = [{key: tool.get(key) for key in ("name", "description", "inputSchema")} for tool in seen]
        size = len(json.dumps(shown, ensure_ascii=False).encode())
        servers = {str(tool.get("server")) for tool in seen}
        tokens = max(100, round(size // _BYTES_PER_TOKEN, -2))
        text = (
            f"{title} will see {count(len(seen), 'tool')} of {count(len(servers), 'server')}, "
            f"about {tokens:,} tokens in each conversation"
        )
        if profile:
            return text
        if own and servers.difference(own):
            its_own = count(len(own), "server")
            return f"{text}; for only the {its_own} that it had: mcpctl install {editor} --own"
        if len(seen) < _MANY_TOOLS:
            return text
        return f"{text}; for fewer, define a profile and run: mcpctl install {editor} --profile NAME"


def _is_settled(status: ServerStatus) -> bool:
    return status["status"] != "pending"


def _reason(status: ServerStatus) -> str:
    state, failure = status["status"], status.get("last_error")
    if state in READY:
        return ""
    if state == "needs-auth":
        return "it needs a login in mcpd"
    if state == "pending":
        return "it is still starting in mcpd"
    if state == "disabled":
        return "it is disabled in mcpd"
    return f"it has failed in mcpd: {failure_summary(failure) if failure else status.get('reason', '')}"


def _selected(tool: Mapping[str, object], profile: Mapping[str, object]) -> bool:
    """Return whether a profile selects a tool, by the patterns `tool` and `tool@server`."""
    name, full = str(tool.get("name")), f"{tool.get('name')}@{tool.get('server')}"

    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(full if "@" in each else name, each) for each in patterns)

    include = profile.get("includeTools")
    return (include is None or matches(strings(include))) and not matches(
        strings(profile.get("excludeTools"))
    )
