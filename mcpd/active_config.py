"""Which set of servers is wished for, and where it came from: the file, a variable, or the API."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpd.config.definition import ParsedServers, parse_servers
from mcpd.config.edit_file import add_server, prepare, remove_server
from mcpd.config.loader import Loaded, candidates, load
from mcpd.config.masking import masked
from mcpd.config.settings import Settings
from mcpd.model.definitions import ApplyResult, ConfigStatus, ConfigView
from mcpd.model.errors import BadSpec, Conflict, Problem, UnknownServer
from mcpd.model.events import Event, EventKind
from mcpd.model.spec_diff import ServersDiff, changed_parts
from mcpd.model.status import rfc3339
from mcpd.state_file import AppliedSet, Store
from mcpd.supervision.supervisor import Supervisor
from mcpd.support.async_value import AsyncValue
from mcpd.support.redact import Redactor

log = logging.getLogger("mcpd.active_config")


class Configuration:
    """The one way a set of servers comes into force. A bad one never replaces a good one.

    Reading and writing the user's file blocks for a moment: it is small, and it happens at start
    and on request.
    """

    def __init__(
        self,
        first: Loaded,
        flag: Path | None,
        environ: Mapping[str, str],
        supervisor: Supervisor,
        store: Store,
        redactor: Redactor,
    ) -> None:
        self.loaded = first
        prepare(first.path)  # what is installed in our place later may be of another version
        self._flag = flag
        self._environ = environ
        self._supervisor = supervisor
        self._store = store
        self._redactor = redactor
        self._source = first.source
        self._definitions: Mapping[str, Mapping[str, object]] = first.definitions
        self._loaded_at = time.time()
        self._problems: tuple[Problem, ...] = ()
        self._at_start = first.settings
        self.is_watched = AsyncValue(False)
        """Whether a change of the file is to be noticed."""
        self._bring_into_force(first)
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
        shown = masked(self._definitions.get(name, {}))
        # What is secret in one place may be written out in another, such as a shell's command.
        return {key: self._redactor.mask_within(value) for key, value in shown.items()}

    # ── changing it ─────────────────────────────────────────────────────────────────────────────

    def reload(self) -> ApplyResult:
        """Read the configuration again and apply it. Raises BadSpec, and then nothing has changed
        but `status().problems`."""
        try:
            fresh = load(self._flag, self._environ)
        except BadSpec as error:
            self._refuse(error)
            raise
        self._store.apply(None)
        return self._bring_into_force(fresh)

    def places(self) -> tuple[Path, ...]:
        """Every file that `load` might read, there or not."""
        return candidates(self._flag, self._environ)

    def look(self) -> None:
        """The file may have been changed: if it was, as `reload`, but a refusal is only told, and a file
        that is gone is refused too. Most often somebody is about to put another in its place."""
        try:
            fresh = load(self._flag, self._environ)
            if self.loaded.digest and not fresh.digest:
                fix = "put it back, or `mcpctl reload` to go on without servers"
                raise BadSpec([Problem("$", f"{self.loaded.path} is gone", fix)])
        except BadSpec as error:
            if tuple(error.problems) != self._problems:
                self._refuse(error)
            return
        if fresh.digest != self.loaded.digest:
            self._store.apply(None)
            self._bring_into_force(fresh)
        elif self._problems:
            self._problems = ()
            self._tell("good again, as it was before")

    def _refuse(self, error: BadSpec) -> None:
        self._problems = tuple(error.problems)
        log.error("the configuration was refused, the last good one stays in force: %s", error)
        self._tell(f"refused: {error}")

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
        self._store.apply(AppliedSet(servers=servers, config_digest=self.loaded.digest))
        return self._force(parsed, servers)

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
            self._must_be_a_file()
            add_server(self.loaded.path, name, definition, replace=True)
            saved = str(self.loaded.path)
        return self._changed_by_hand(parsed, {**self._definitions, name: definition}, saved)

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
                self._must_be_a_file()
            # Out of the file whatever set is in force, or it would be back after the next start.
            if not self.loaded.source.startswith("$") and remove_server(self.loaded.path, name):
                saved = str(self.loaded.path)
        self._store.forget(name)
        return self._changed_by_hand(parsed, rest, saved)

    # ── how ─────────────────────────────────────────────────────────────────────────────────────

    def _bring_into_force(self, fresh: Loaded) -> ApplyResult:
        late = [written for field, written in _ONCE if _differ(fresh.settings, self._at_start, field)]
        if late:
            words = f"{', '.join(late)}: read when the daemon starts; mcpctl daemon restart"
            fresh = attrs.evolve(fresh, warnings=(*fresh.warnings, words))
        self.loaded, self._source = fresh, fresh.source
        self.is_watched.set(fresh.settings.watch and not fresh.source.startswith("$"))
        self._problems = ()
        self._loaded_at = time.time()
        for warning in fresh.warnings:
            log.warning("%s", warning)
        return self._force(
            ParsedServers(fresh.specs, fresh.secrets, fresh.warnings, ()), fresh.definitions, fresh.source
        )

    def _restore_applied(self) -> None:
        """A set that came through the API outlives the daemon until the configuration changes."""
        applied = self._store.lasting.applied
        if applied is None:
            return
        if applied.config_digest != self.loaded.digest:
            log.warning(
                "the configuration has changed since a set was applied through the API: the file wins"
            )
            self._store.apply(None)
            return
        try:
            self._force(self._parse(applied.servers), applied.servers)
        except BadSpec as error:
            log.error("the set applied through the API cannot be used any more, the file wins: %s", error)
            self._store.apply(None)

    def _changed_by_hand(
        self, parsed: ParsedServers, definitions: Mapping[str, Mapping[str, object]], saved: str | None
    ) -> ApplyResult:
        if saved is not None:
            fresh = load(self._flag, self._environ)
            if self._source != "api":
                return attrs.evolve(self._bring_into_force(fresh), saved=saved)
            self.loaded = fresh  # the set from the API stays in force, on top of the file as it now is
        self._store.apply(AppliedSet(servers=definitions, config_digest=self.loaded.digest))
        return attrs.evolve(self._force(parsed, definitions), saved=saved)

    def _force(
        self, parsed: ParsedServers, definitions: Mapping[str, Mapping[str, object]], source: str = "api"
    ) -> ApplyResult:
        self._redactor.add(parsed.secrets)
        before = self._definitions
        self._definitions, self._source = definitions, source
        generation, plan = self._supervisor.wish(parsed.specs)
        changes = [f"{sign}{name}" for sign, names in _signed(plan) for name in names]
        self._tell(f"generation {generation} from {source}: {' '.join(changes) or 'nothing changed'}")
        for name in plan.changed:
            parts = ", ".join(changed_parts(before.get(name, {}), definitions[name])) or "what it refers to"
            self._tell(f"its definition changed: {parts} (generation {generation})", name)
        return ApplyResult.plan(plan, generation)

    def _parse(self, servers: Mapping[str, Mapping[str, object]]) -> ParsedServers:
        return parse_servers(
            servers,
            environ=self._environ,
            settings=self.loaded.settings,
            base_dir=self.loaded.path.parent,
            place="$.servers",
        )

    def _check_generation(self, expected: int | None) -> None:
        if expected is not None and expected != self._supervisor.generation:
            raise Conflict(expected, self._supervisor.generation)

    def _must_be_a_file(self) -> None:
        if self.loaded.source.startswith("$"):
            fix = "change the variable, or use --no-save for a change that lasts until the next reload"
            raise BadSpec([Problem("$", f"the servers come from {self.loaded.source}, not from a file", fix)])

    def _tell(self, message: str, server: str | None = None) -> None:
        event = Event(kind=EventKind.CONFIG, at=rfc3339(time.time()), server=server, message=message)
        self._supervisor.announce(event)


_ONCE = (("http", "http"), ("max_starts", "maxStarts"), ("log_level", "logLevel"))
"""Settings that a new configuration does not change any more, and how they are written."""


def _differ(one: Settings, other: Settings, field: str) -> bool:
    return bool(getattr(one, field) != getattr(other, field))


def _signed(plan: ServersDiff) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("+", plan.added), ("-", plan.removed), ("~", plan.changed))
