"""The active set of servers and its source: the file, an environment variable, or the API."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs
import trio

from mcpd.config.check_document import LoadedConfig
from mcpd.config.edit_config_file import add_server, insert_rule, remove_server
from mcpd.config.http import HttpSettings
from mcpd.config.load_at_start import describe_tolerated
from mcpd.config.masking import MASK, mask_definition
from mcpd.config.server_specs import ParsedServers, parse_valid_servers
from mcpd.files.watcher import watch_files
from mcpd.io.broadcast import AsyncValue
from mcpd.model.config_api import ApplyResult, ConfigStatus, ConfigView
from mcpd.model.errors import BadSpec, Conflict, Problem, UnknownServer
from mcpd.model.events import Event, EventKind
from mcpd.model.json_path import is_too_large, is_within, join_path, merge_patch
from mcpd.model.server_spec import InvalidSpec, ServersDiff, ServerSpec, changed_parts
from mcpd.model.status import rfc3339
from mcpd.privacy.redact import Redactor
from mcpd.state.config_file import ConfigFile, deleted
from mcpd.state.history import acting_for
from mcpd.state.state_file import AppliedSet, StateFile

log = logging.getLogger("mcpd.state.active_config")

Definitions = Mapping[str, Mapping[str, object]]
"""Name → definition as written."""
_SERVERS = "$.mcpServers"
"""Where errors in an edited set are located: in the file, not in the request."""
_STARTUP_ONLY = (
    ("http", "http"),
    ("max_starts", "maxStarts"),
    ("log_level", "logLevel"),
    ("login_storage", "loginStorage"),
)
"""Settings that are read only at start, and their names in the configuration."""


class ManagedSet(Protocol):
    """The servers that are supervised."""

    @property
    def generation(self) -> int: ...

    @property
    def desired(self) -> Mapping[str, ServerSpec]: ...

    def plan(self, specs: Mapping[str, ServerSpec]) -> ServersDiff: ...

    def set_desired(self, specs: Mapping[str, ServerSpec]) -> tuple[int, ServersDiff]: ...

    def get(self, name: str) -> object:
        """Raises UnknownServer, with similar names."""
        ...

    def announce(self, event: Event) -> None: ...


class ActiveConfig:
    """Applies sets of servers, one after another. An invalid set never replaces a valid one. `first`, which
    was loaded at the start of the daemon, may lack the servers that have errors.
    """

    def __init__(
        self,
        first: LoadedConfig,
        flag: Path | None,
        environ: Mapping[str, str],
        supervisor: ManagedSet,
        store: StateFile,
        redactor: Redactor,
        state_dir: Path,
        http_problem: str = "",
        open_http: Callable[[HttpSettings], str] = lambda _: "",
    ) -> None:
        """`http_problem`: why the port in the settings of `first` is not open; empty if it is.
        `open_http` opens one later, and returns why that failed, or nothing."""
        self.loaded = first
        self.file = ConfigFile(flag, environ, state_dir, first)
        self._changing = trio.Lock()
        self._environ = environ
        self._supervisor = supervisor
        self._state_file = store
        self._redactor = redactor
        self._source = first.source
        self._definitions: Definitions = first.definitions
        self._loaded_at = time.time()
        self._problems: tuple[Problem, ...] = ()
        self._rejected = False
        """Whether the file with `_problems` is not used at all."""
        self._startup_settings = first.settings
        self._http_problem = http_problem
        self._open_http: Callable[[HttpSettings], str] = lambda _: http_problem  # it was tried already
        self.watch_enabled = AsyncValue(False)
        """Whether changes of the file are applied automatically."""
        self._activate(first)
        self._open_http = open_http
        self._restore_applied()

    def status(self) -> ConfigStatus:
        return ConfigStatus(
            source=self._source,
            path=str(self.loaded.path),
            generation=self._supervisor.generation,
            loaded_at=rfc3339(self._loaded_at),
            problems=self._problems,
            rejected=self._rejected,
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
        """Return a definition as written, with secrets masked; empty for a removed server."""
        visible = mask_definition(self._definitions.get(name, {}))
        # A value that is secret in one field may also appear in another, for example in a command.
        return {key: self._redactor.mask_within(value) for key, value in visible.items()}

    async def reload(self) -> ApplyResult:
        """Reload the configuration and apply it, with warnings about errors that are tolerated. If it has
        others, raises BadSpec and changes only `status().problems`."""
        async with self._changing:
            try:
                loaded = await self.file.load(self.loaded)
            except BadSpec as error:
                self._reject(error)
                raise
            self._state_file.set_applied(None)
            applied = self._activate(loaded)
            return attrs.evolve(applied, warnings=(*applied.warnings, *map(str, loaded.problems)))

    async def reload_if_changed(self) -> None:
        """Reload the configuration if the file changed. Errors are reported as events and in the log.

        A missing file is an error too: most often, an editor is about to replace it.
        """
        async with self._changing:
            try:
                loaded = await self.file.load(self.loaded)
                if self.loaded.digest and not loaded.digest:
                    raise deleted(self.loaded.path)
            except BadSpec as error:
                if tuple(error.problems) != self._problems:
                    self._reject(error)
                return
            if loaded.digest != self.loaded.digest:
                self._state_file.set_applied(None)
                self._activate(loaded)
            elif self._problems != loaded.problems:
                self._problems, self._rejected = loaded.problems, loaded.stored_copy is not None
                self._announce("unchanged again" if loaded.problems else "valid again and unchanged")

    def _reject(self, error: BadSpec) -> None:
        self._problems, self._rejected = tuple(error.problems), True
        log.error("the configuration has errors, the last valid one stays active: %s", error)
        self._announce(f"rejected: {error}")

    async def set_servers(
        self,
        servers: Definitions,
        *,
        dry_run: bool = False,
        if_generation: int | None = None,
    ) -> ApplyResult:
        """Replace the set of servers atomically. Raises Conflict; reports an invalid set in `errors`."""
        async with self._changing:
            generation = self._supervisor.generation
            if if_generation not in (None, generation):
                raise Conflict(if_generation, generation)
            try:
                parsed = await self.file.thread.run(self._parse, servers, "$.servers")
            except BadSpec as error:
                return ApplyResult.refused(error.problems, generation, dry_run=dry_run)
            if dry_run:
                return ApplyResult.plan(self._supervisor.plan(parsed.specs), generation, dry_run=True)
            self._state_file.set_applied(AppliedSet(servers=servers, config_digest=self.loaded.digest))
            return self._set_servers(parsed, servers)

    async def add(
        self, name: str, definition: Mapping[str, object], *, save: bool, replace: bool = False
    ) -> ApplyResult:
        """Add one server. Raises BadSpec or CannotWrite before anything is changed."""
        async with self._changing:
            if name in self._definitions and not replace:
                fix = f"replace it with `mcpctl add --replace`, or run `mcpctl remove {name}` first"
                message = f"a server named {name!r} already exists"
                raise BadSpec([Problem(join_path(_SERVERS, name), message, fix)])
            return await self._put(name, definition, save=save)

    async def edit(self, name: str, changes: Mapping[str, object]) -> ApplyResult:
        """Change members of a definition, and save it. `changes`: a JSON Merge Patch (RFC 7396).

        Raises UnknownServer, BadSpec or CannotWrite before anything is changed.
        """
        async with self._changing:
            self._require_defined(name)
            if is_too_large(changes):
                message = "the changes are nested too deeply, or have too many values"
                raise BadSpec([Problem(join_path(_SERVERS, name), message, "flatten them")])
            if MASK in json.dumps(changes):
                fix = "write the value, or leave the member out to keep it"
                raise BadSpec([Problem(join_path(_SERVERS, name), f"a value contains the mask {MASK}", fix)])
            return await self._put(name, merge_patch(self._definitions[name], changes), save=True)

    async def _put(self, name: str, definition: Mapping[str, object], *, save: bool) -> ApplyResult:
        servers = {**self._definitions, name: definition}
        parsed = await self._parse_edited(servers)
        fresh = None
        if save:
            self._require_file()
            fresh = await self.file.edit(self.loaded, lambda: add_server(self.loaded.path, name, definition))
        return self._apply_edit(parsed, servers, fresh)

    async def remove(self, name: str, *, save: bool) -> ApplyResult:
        """Remove one server. Raises UnknownServer, BadSpec, or CannotWrite; then nothing is changed."""
        async with self._changing:
            self._require_defined(name)
            rest = {known: each for known, each in self._definitions.items() if known != name}
            parsed = await self._parse_edited(rest)
            fresh = None
            if save:
                if self._source != "api":
                    self._require_file()
                # Remove it from the file even if a set from the API is active; the next start would restore
                # it.
                if not self.loaded.source.startswith("$"):
                    fresh = await self.file.edit(self.loaded, lambda: remove_server(self.loaded.path, name))
            self._state_file.clear_toggle(name)
            return self._apply_edit(parsed, rest, fresh)

    async def insert_rule(self, before: int, rule: Mapping[str, object]) -> None:
        """Write a rule into the file, before the one with the index `before`, and apply it.

        Raises BadSpec, also if the file does not contain the rules in force, and CannotWrite.
        """
        async with self._changing:
            if self.loaded.source != str(self.loaded.path):
                message = f"the configuration comes from {self.loaded.source}, not from a file"
                fix = "change it there, or allow the call until the client disconnects"
                raise BadSpec([Problem("$", message, fix)])
            path, expected = self.loaded.path, self.loaded.written_settings.get("policies")
            fresh = await self.file.edit(self.loaded, lambda: insert_rule(path, before, rule, expected))
            assert fresh is not None
            if self._source != "api":
                self._activate(fresh)
            else:  # the set from the API stays active
                self.loaded = fresh
                self._announce("a rule was added to settings.policies")

    def _activate(self, loaded: LoadedConfig) -> ApplyResult:
        started, http = self._startup_settings, loaded.settings.http
        if started.http is None or self._http_problem:  # no port is open, so that none has to be closed
            self._http_problem = "" if http is None else self._open_http(http)
            started = self._startup_settings = attrs.evolve(started, http=http)
        if self._http_problem:
            loaded = attrs.evolve(loaded, warnings=(*loaded.warnings, self._http_problem))
        ignored = tuple(
            written
            for field, written in _STARTUP_ONLY
            if getattr(loaded.settings, field) != getattr(started, field)
        )
        changed = _changed_settings(self.loaded, loaded)
        if ignored:
            warning_text = f"{', '.join(ignored)}: read only when the daemon starts; mcpctl daemon restart"
            loaded = attrs.evolve(loaded, warnings=(*loaded.warnings, warning_text))
        self.loaded = loaded
        self._source = self._file_source
        self.watch_enabled.set(loaded.settings.watch and not loaded.source.startswith("$"))
        self._problems, self._rejected = loaded.problems, loaded.stored_copy is not None
        self._loaded_at = time.time()
        for warning in loaded.warnings:
            log.warning("%s", warning)
        applied = self._set_servers(
            ParsedServers(loaded.specs, loaded.secrets, loaded.warnings),
            loaded.definitions,
            self._source,
            changed_settings=changed,
        )
        if loaded.problems:
            error = BadSpec(list(loaded.problems), str(loaded.path))
            log.error("%s: %s", describe_tolerated(loaded), error)
            self._announce(f"applied with errors: {error}")
        return attrs.evolve(applied, settings_changed=changed, restart_needed=ignored)

    @property
    def _file_source(self) -> str:
        """The source of the servers while they are those of the file, or of the copy that replaces it."""
        return str(self.loaded.stored_copy or self.loaded.source)

    def _restore_applied(self) -> None:
        """Apply the set from the API again, unless the configuration has changed since."""
        applied = self._state_file.state.applied
        if applied is None:
            return
        if applied.config_digest != self.loaded.digest and not self._problems:
            log.warning("the configuration changed after a set was applied through the API: using the file")
            self._state_file.set_applied(None)
            return
        try:
            self._set_servers(self._parse(applied.servers, "$.servers"), applied.servers)
        except BadSpec as error:
            log.error("the set applied through the API is no longer valid, using the file: %s", error)
            self._state_file.set_applied(None)

    def _apply_edit(
        self,
        parsed: ParsedServers,
        definitions: Definitions,
        fresh: LoadedConfig | None,
    ) -> ApplyResult:
        """Apply an edit. `fresh`: what is in the file, if the edit was saved."""
        saved = None if fresh is None else str(fresh.path)
        if fresh is not None:
            if self._source != "api":
                return attrs.evolve(self._activate(fresh), saved=saved)
            changed = _changed_settings(self.loaded, fresh)
            self.loaded = fresh  # the set from the API stays active, now based on the changed file
        elif definitions == self.loaded.definitions:  # such as at the end of `mcpctl try`
            self._state_file.set_applied(None)
            return self._set_servers(parsed, definitions, self._file_source)
        else:
            changed = ()
        self._state_file.set_applied(AppliedSet(servers=definitions, config_digest=self.loaded.digest))
        applied = self._set_servers(parsed, definitions, changed_settings=changed)
        return attrs.evolve(applied, saved=saved, settings_changed=changed)

    def _set_servers(
        self,
        parsed: ParsedServers,
        definitions: Definitions,
        source: str = "api",
        *,
        changed_settings: Sequence[str] = (),
    ) -> ApplyResult:
        self._redactor.add(parsed.secrets)
        previous = self._definitions
        self._definitions, self._source = definitions, source
        generation, plan = self._supervisor.set_desired(parsed.specs)
        signed = (("+", plan.added), ("-", plan.removed), ("~", plan.changed))
        changes = [f"{sign}{name}" for sign, names in signed for name in names]
        differences = [" ".join(changes)] if changes else []
        if changed_settings:
            differences.append(f"settings changed: {', '.join(changed_settings)}")
        origin = "a command, not the file" if source == "api" else source
        summary = "; ".join(differences) or "nothing changed"
        self._announce(f"generation {generation} from {origin}: {summary}")
        unseen = "a default in the settings" if changed_settings else "a referenced value"
        for name in plan.changed:
            parts = ", ".join(changed_parts(previous.get(name, {}), definitions[name])) or unseen
            self._announce(f"definition changed: {parts} (generation {generation})", name)
        return ApplyResult.plan(plan, generation)

    def _parse(self, servers: Definitions, place: str, *, edited: bool = False) -> ParsedServers:
        """Parse a set. Raises BadSpec, but if it is `edited` not for unchanged servers that were invalid."""
        parsed, problems = parse_valid_servers(
            [(name, definition, join_path(place, name)) for name, definition in servers.items()],
            environ=self._environ,
            settings=self.loaded.settings,
            base_dir=self.loaded.path.parent,
        )
        known = {
            name: spec
            for name, spec in self._supervisor.desired.items()
            if edited and isinstance(spec, InvalidSpec) and servers.get(name) == self._definitions.get(name)
        }
        paths = [join_path(place, name) for name in known]
        if new := [each for each in problems if not any(is_within(each.path, path) for path in paths)]:
            raise BadSpec(new)
        specs = {name: parsed.specs.get(name) or known[name] for name in servers}
        return attrs.evolve(parsed, specs=specs)

    async def _parse_edited(self, servers: Definitions) -> ParsedServers:
        return await self.file.thread.run(partial(self._parse, servers, _SERVERS, edited=True))

    def _require_defined(self, name: str) -> None:
        if name not in self._definitions:
            self._supervisor.get(name)  # raises UnknownServer with similar names
            raise UnknownServer(f"no server named {name!r} in the configuration", server=name)

    def _require_file(self) -> None:
        if self.loaded.source.startswith("$"):
            fix = "change the variable, or use --no-save for a change until the next reload"
            raise BadSpec([Problem("$", f"the servers come from {self.loaded.source}, not from a file", fix)])

    def _announce(self, message: str, server: str | None = None) -> None:
        event = Event(kind=EventKind.CONFIG, at=rfc3339(time.time()), server=server, message=message)
        self._supervisor.announce(event)


def _changed_settings(before: LoadedConfig, after: LoadedConfig) -> tuple[str, ...]:
    """Return the names of the settings that are written differently in two configurations, sorted."""
    old, new = before.written_settings, after.written_settings
    return tuple(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


async def watch_config(configuration: ActiveConfig) -> None:
    """Apply every change of the file while the setting `watch` is on. Runs until cancelled."""
    while True:
        await configuration.watch_enabled.wait_until(bool)
        try:
            with watch_files(map(str, configuration.file.candidate_paths())) as changes:
                while configuration.watch_enabled.value:
                    # Also before the first change: it may have changed since it was loaded.
                    await _reload_if_changed(configuration)
                    await changes.next_change()
        except OSError as error:
            log.warning(
                "cannot watch the configuration file (%s); run `mcpctl config reload` after changes", error
            )
            await configuration.watch_enabled.wait_until(lambda watched: not watched)


async def _reload_if_changed(configuration: ActiveConfig) -> None:
    try:
        with acting_for(lambda: "a change of the file"):
            await configuration.reload_if_changed()
    except Exception:
        log.exception("reloading the configuration failed; nothing was changed")
