"""Which set of servers is wished for, and where it came from: the file, a variable, or the API."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpd.config.definition import ParsedServers, parse_servers
from mcpd.config.edit_file import add_server, import_editor, remove_server
from mcpd.config.loader import LoadedConfig, candidate_paths, load
from mcpd.config.masking import mask_definition
from mcpd.config.settings import Settings
from mcpd.model.api import ApplyResult, ConfigStatus, ConfigView
from mcpd.model.errors import BadSpec, Conflict, Problem, UnknownServer
from mcpd.model.events import Event, EventKind
from mcpd.model.server_spec import ServersDiff, changed_parts
from mcpd.model.status import rfc3339
from mcpd.state_file import AppliedSet, StateFile
from mcpd.supervision.supervisor import Supervisor
from mcpd.support.async_value import AsyncValue
from mcpd.support.redact import Redactor

log = logging.getLogger("mcpd.active_config")


class ActiveConfig:
    """The one way a set of servers comes into force. A bad one never replaces a good one.

    Reading and writing the user's file blocks for a moment: it is small, and it happens at start
    and on request.
    """

    def __init__(
        self,
        first: LoadedConfig,
        flag: Path | None,
        environ: Mapping[str, str],
        supervisor: Supervisor,
        store: StateFile,
        redactor: Redactor,
    ) -> None:
        self.loaded = first
        import_editor(first.path)  # what is installed in our place later may be of another version
        self._config_path = flag
        self._environ = environ
        self._supervisor = supervisor
        self._state_file = store
        self._redactor = redactor
        self._source = first.source
        self._definitions: Mapping[str, Mapping[str, object]] = first.definitions
        self._loaded_at = time.time()
        self._problems: tuple[Problem, ...] = ()
        self._startup_settings = first.settings
        self.watch_enabled = AsyncValue(False)
        """Whether a change of the file is to be noticed."""
        self._activate(first)
        self._restore_applied()

    # ── reading it ──────────────────────────────────────────────────────────────────────────────

    def status(self) -> ConfigStatus:
        return ConfigStatus(
            source=self._source,
            path=str(self.loaded.path),
            generation=self._supervisor.generation,
            loaded_at=rfc3339(self._loaded_at),
            problems=self._problems,
            warnings=self.loaded.warnings,
        )

    def view(self) -> ConfigView:
        return ConfigView(
            source=self._source,
            path=str(self.loaded.path),
            generation=self._supervisor.generation,
            servers={name: self.definition(name) for name in self._definitions},
        )

    def definition(self, name: str) -> Mapping[str, object]:
        """As it was written, secrets masked; empty for a server that has just left the set."""
        visible = mask_definition(self._definitions.get(name, {}))
        # What is secret in one place may be written out in another, such as a shell's command.
        return {key: self._redactor.mask_within(value) for key, value in visible.items()}

    # ── changing it ─────────────────────────────────────────────────────────────────────────────

    def reload(self) -> ApplyResult:
        """Read the configuration again and apply it. Raises BadSpec, and then nothing has changed
        but `status().problems`."""
        try:
            loaded = load(self._config_path, self._environ)
        except BadSpec as error:
            self._reject(error)
            raise
        self._state_file.set_applied(None)
        return self._activate(loaded)

    def candidate_paths(self) -> tuple[Path, ...]:
        """Every file that `load` might read, there or not."""
        return candidate_paths(self._config_path, self._environ)

    def reload_if_changed(self) -> None:
        """The file may have been changed: if it was, as `reload`, but a refusal is only told, and a file
        that is gone is refused too. Most often somebody is about to put another in its place."""
        try:
            loaded = load(self._config_path, self._environ)
            if self.loaded.digest and not loaded.digest:
                fix = "put it back, or `mcpctl reload` to go on without servers"
                raise BadSpec([Problem("$", f"{self.loaded.path} is gone", fix)])
        except BadSpec as error:
            if tuple(error.problems) != self._problems:
                self._reject(error)
            return
        if loaded.digest != self.loaded.digest:
            self._state_file.set_applied(None)
            self._activate(loaded)
        elif self._problems:
            self._problems = ()
            self._announce("good again, as it was before")

    def _reject(self, error: BadSpec) -> None:
        self._problems = tuple(error.problems)
        log.error("the configuration was refused, the last good one stays in force: %s", error)
        self._announce(f"refused: {error}")

    def set_servers(
        self,
        servers: Mapping[str, Mapping[str, object]],
        *,
        dry_run: bool = False,
        if_generation: int | None = None,
    ) -> ApplyResult:
        """SetServers: all or nothing. Raises Conflict; an unusable set is an Applied with `errors`."""
        self._check_generation(if_generation)
        try:
            parsed = self._parse(servers)
        except BadSpec as error:
            return ApplyResult.refused(error.problems, self._supervisor.generation, dry_run=dry_run)
        if dry_run:
            plan = self._supervisor.plan(parsed.specs)
            return ApplyResult.plan(plan, self._supervisor.generation, dry_run=True)
        self._state_file.set_applied(AppliedSet(servers=servers, config_digest=self.loaded.digest))
        return self._set_servers(parsed, servers)

    def add(
        self, name: str, definition: Mapping[str, object], *, save: bool, replace: bool = False
    ) -> ApplyResult:
        """Add one server. Raises BadSpec, with nothing changed or written."""
        if name in self._definitions and not replace:
            fix = f"`mcpctl remove {name}` first, or replace it"
            raise BadSpec([Problem(f"$.servers.{name}", f"there is a server named {name!r} already", fix)])
        parsed = self._parse({**self._definitions, name: definition})
        saved = None
        if save:
            self._require_file()
            add_server(self.loaded.path, name, definition, replace=True)
            saved = str(self.loaded.path)
        return self._apply_edit(parsed, {**self._definitions, name: definition}, saved)

    def remove(self, name: str, *, save: bool) -> ApplyResult:
        """Take one server out of the set. Raises UnknownServer, BadSpec."""
        if name not in self._definitions:
            self._supervisor.get(name)  # raises, with the names that come near
            raise UnknownServer(f"no server named {name!r} in the configuration", server=name)
        rest = {known: definition for known, definition in self._definitions.items() if known != name}
        parsed = self._parse(rest)
        saved = None
        if save:
            if self._source != "api":
                self._require_file()
            # Out of the file whatever set is in force, or it would be back after the next start.
            if not self.loaded.source.startswith("$") and remove_server(self.loaded.path, name):
                saved = str(self.loaded.path)
        self._state_file.clear_toggle(name)
        return self._apply_edit(parsed, rest, saved)

    # ── how ─────────────────────────────────────────────────────────────────────────────────────

    def _activate(self, loaded: LoadedConfig) -> ApplyResult:
        ignored = [
            written
            for field, written in _STARTUP_ONLY
            if _differ(loaded.settings, self._startup_settings, field)
        ]
        if ignored:
            warning_text = f"{', '.join(ignored)}: read when the daemon starts; mcpctl daemon restart"
            loaded = attrs.evolve(loaded, warnings=(*loaded.warnings, warning_text))
        self.loaded, self._source = loaded, loaded.source
        self.watch_enabled.set(loaded.settings.watch and not loaded.source.startswith("$"))
        self._problems = ()
        self._loaded_at = time.time()
        for warning in loaded.warnings:
            log.warning("%s", warning)
        return self._set_servers(
            ParsedServers(loaded.specs, loaded.secrets, loaded.warnings, ()),
            loaded.definitions,
            loaded.source,
        )

    def _restore_applied(self) -> None:
        """A set that came through the API outlives the daemon until the configuration changes."""
        applied = self._state_file.state.applied
        if applied is None:
            return
        if applied.config_digest != self.loaded.digest:
            log.warning(
                "the configuration has changed since a set was applied through the API: the file wins"
            )
            self._state_file.set_applied(None)
            return
        try:
            self._set_servers(self._parse(applied.servers), applied.servers)
        except BadSpec as error:
            log.error("the set applied through the API cannot be used any more, the file wins: %s", error)
            self._state_file.set_applied(None)

    def _apply_edit(
        self, parsed: ParsedServers, definitions: Mapping[str, Mapping[str, object]], saved: str | None
    ) -> ApplyResult:
        if saved is not None:
            fresh = load(self._config_path, self._environ)
            if self._source != "api":
                return attrs.evolve(self._activate(fresh), saved=saved)
            self.loaded = fresh  # the set from the API stays in force, on top of the file as it now is
        self._state_file.set_applied(AppliedSet(servers=definitions, config_digest=self.loaded.digest))
        return attrs.evolve(self._set_servers(parsed, definitions), saved=saved)

    def _set_servers(
        self, parsed: ParsedServers, definitions: Mapping[str, Mapping[str, object]], source: str = "api"
    ) -> ApplyResult:
        self._redactor.add(parsed.secrets)
        previous = self._definitions
        self._definitions, self._source = definitions, source
        generation, plan = self._supervisor.set_desired(parsed.specs)
        changes = [f"{sign}{name}" for sign, names in _signed(plan) for name in names]
        self._announce(f"generation {generation} from {source}: {' '.join(changes) or 'nothing changed'}")
        for name in plan.changed:
            parts = ", ".join(changed_parts(previous.get(name, {}), definitions[name])) or "what it refers to"
            self._announce(f"its definition changed: {parts} (generation {generation})", name)
        return ApplyResult.plan(plan, generation)

    def _parse(self, servers: Mapping[str, Mapping[str, object]]) -> ParsedServers:
        return parse_servers(
            servers,
            environ=self._environ,
            settings=self.loaded.settings,
            base_dir=self.loaded.path.parent,
            path="$.servers",
        )

    def _check_generation(self, expected: int | None) -> None:
        if expected is not None and expected != self._supervisor.generation:
            raise Conflict(expected, self._supervisor.generation)

    def _require_file(self) -> None:
        if self.loaded.source.startswith("$"):
            fix = "change the variable, or use --no-save for a change that lasts until the next reload"
            raise BadSpec([Problem("$", f"the servers come from {self.loaded.source}, not from a file", fix)])

    def _announce(self, message: str, server: str | None = None) -> None:
        event = Event(kind=EventKind.CONFIG, at=rfc3339(time.time()), server=server, message=message)
        self._supervisor.announce(event)


_STARTUP_ONLY = (("http", "http"), ("max_starts", "maxStarts"), ("log_level", "logLevel"))
"""Settings that a new configuration does not change any more, and how they are written."""


def _differ(one: Settings, other: Settings, field: str) -> bool:
    return bool(getattr(one, field) != getattr(other, field))


def _signed(plan: ServersDiff) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("+", plan.added), ("-", plan.removed), ("~", plan.changed))
