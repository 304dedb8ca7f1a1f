"""Loads the configuration when the daemon starts: errors affect only the entries that contain them.

A running daemon refuses a file with errors and keeps the servers it has. A daemon that starts has none, so
refusing would leave every client without tools. Therefore each valid server is started, each invalid one
with its last valid definition, and those without one are listed as failed, with their errors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import attrs
import msgspec

from mcpd.config.check_document import (
    Document,
    DocumentLayout,
    LoadedConfig,
    assemble,
    check,
    check_settings,
)
from mcpd.config.json_path import closest_match, is_within, join_path, split_path
from mcpd.config.loader import MAX_FILE_SIZE, NO_FILE, candidate_paths, find_path, read_document
from mcpd.config.server_definition import check_name, parse_valid_servers
from mcpd.config.settings import Settings, parse_settings
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.policy import Decision, PolicyRule
from mcpd.model.server_spec import InvalidSpec, ServerSpec
from mcpd.support.atomic_files import write_atomically
from mcpd.support.regular_files import read_regular_file

log = logging.getLogger("mcpd.config")

_FILE_NAME = "last-valid-config.json"
_RULE_HOLDERS = ["settings", "mcp", "globalSettings", "policies"]
"""Keys above `policies` in a document."""
_MAX_SIZE = 64 << 20
"""Bytes. A larger file was not written by mcpd."""


class LastValidConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a configuration file when it last had no errors, as written. May contain secrets."""

    path: str
    servers: Mapping[str, Mapping[str, object]]
    settings: Mapping[str, object]
    enabled: bool


def load_at_start(flag: Path | None, environ: Mapping[str, str], state_dir: Path) -> LoadedConfig:
    """Return the configuration to start with, and the errors in it as `problems`.

    Invalid settings have their defaults, and `policies` the last valid rules. A document that is unusable as
    a whole is replaced by the last valid one. Raises BadSpec if there is none, and if a file that was named
    does not exist.
    """
    document = copy = None
    try:
        document = read_document(flag, environ)
        loaded = check(document, environ)
        return loaded if loaded.digest else _with_hint_of_copy(loaded, flag, environ, state_dir)
    except BadSpec as error:
        refused = error
    problems = tuple(refused.problems)
    if document is None:
        document = copy = _last_document(read_last_valid(state_dir, _find_existing(flag, environ, refused)))
        if document is None:
            raise refused
    elif _has_general_problem(document, problems):
        copy = _last_document(read_last_valid(state_dir, document.path))
        document = copy or document
        if not document.layout.servers:
            raise refused
    last = read_last_valid(state_dir, document.path) if document.source == str(document.path) else None
    loaded = _without_invalid_parts(document, environ, problems, last)
    return attrs.evolve(
        loaded, problems=problems, stored_copy=None if copy is None else last_valid_path(state_dir)
    )


def describe_tolerated(loaded: LoadedConfig) -> str:
    """Return what is in effect although the configuration file has errors."""
    if loaded.stored_copy is not None:
        return f"the configuration file is unusable; its last valid content is used ({loaded.stored_copy})"
    text = "the configuration has errors"
    if loaded.earlier:
        text += f"; the last valid definition is used for {', '.join(sorted(loaded.earlier))}"
    if failed := [name for name, spec in loaded.specs.items() if isinstance(spec, InvalidSpec)]:
        text += f"; not started: {', '.join(sorted(failed))}"
    return text


def _with_hint_of_copy(
    loaded: LoadedConfig, flag: Path | None, environ: Mapping[str, str], state_dir: Path
) -> LoadedConfig:
    """Return a configuration with a warning if its file is gone, but not the copy of it."""
    if loaded.source != NO_FILE:
        return loaded
    last = find_last_valid(state_dir, loaded.path, environ)
    if last is None or not last.servers:
        return loaded
    number = f"{len(last.servers)} server{'' if len(last.servers) == 1 else 's'}"
    warning = f"{last.path} is gone; its {number} can be restored from a copy; mcpctl config restore"
    return attrs.evolve(loaded, warnings=(warning,), was_deleted=True)


def last_valid_path(state_dir: Path) -> Path:
    """Return the file with the last valid configuration. Its time of change is when it became valid."""
    return state_dir / _FILE_NAME


def save_last_valid(loaded: LoadedConfig, state_dir: Path) -> None:
    """Store a configuration without errors for `load_at_start`, if it comes from a file. Never raises."""
    if loaded.source != str(loaded.path) or loaded.problems:
        return
    stored = LastValidConfig(
        path=loaded.source,
        servers=loaded.definitions,
        settings=loaded.written_settings,
        enabled=loaded.enabled,
    )
    file = last_valid_path(state_dir)
    try:
        data = msgspec.json.encode(stored)
        if not _contains(file, data):
            write_atomically(file, data, 0o600)
    except (OSError, TypeError, ValueError) as error:  # a full disk, or a value that JSON cannot express
        log.warning("cannot store the valid configuration for the next start: %s", error)


def _contains(file: Path, data: bytes) -> bool:
    try:
        return read_regular_file(file, _MAX_SIZE) == data
    except OSError:
        return False


def _find_existing(flag: Path | None, environ: Mapping[str, str], refused: BadSpec) -> Path:
    """Return the file with the errors `refused`. Raises them if no file is to blame."""
    if environ.get("MCPD_SERVERS", "").strip():
        raise refused
    path, _ = find_path(flag, environ)
    if not path.exists():
        raise refused
    return path


def find_last_valid(state_dir: Path, path: Path, environ: Mapping[str, str]) -> LastValidConfig | None:
    """Return the last valid content of a missing file. A default file may have had another suffix."""
    defaults = candidate_paths(None, environ)
    stored = (read_last_valid(state_dir, each) for each in (defaults if path in defaults else (path,)))
    return next((each for each in stored if each is not None), None)


def read_last_valid(state_dir: Path, path: Path) -> LastValidConfig | None:
    """Return the last valid content of the file `path`, or None."""
    file = last_valid_path(state_dir)
    try:
        stored = msgspec.json.decode(read_regular_file(file, _MAX_SIZE), type=LastValidConfig)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError is no MsgspecError
        log.warning("cannot read the last valid configuration %s: %s", file, error)
        return None
    return stored if stored.path == str(path) else None


def _last_document(last: LastValidConfig | None) -> Document | None:
    if last is None:
        return None
    path = Path(last.path)
    servers = [(name, value, join_path("$.mcpServers", name)) for name, value in last.servers.items()]
    try:
        digest = sha256(read_regular_file(path, MAX_FILE_SIZE)).hexdigest()
    except OSError:
        digest = ""
    return Document(
        layout=DocumentLayout(servers, last.settings, enabled=last.enabled),  # type: ignore[arg-type] # list
        problems=[],
        warnings=[],
        source=last.path,
        path=path,
        base_dir=path.parent,
        digest=digest,
    )


def _has_general_problem(document: Document, problems: tuple[Problem, ...]) -> bool:
    """Return whether an error is neither in a server nor in the settings."""
    parts = [document.layout.settings_path, *(path for _, _, path in document.layout.servers)]
    return any(not any(is_within(problem.path, part) for part in parts) for problem in problems)


def _without_invalid_parts(
    document: Document,
    environ: Mapping[str, str],
    problems: tuple[Problem, ...],
    last: LastValidConfig | None,
) -> LoadedConfig:
    """Replace invalid definitions by the last valid ones, or else by an InvalidSpec."""
    warnings = list(document.warnings)
    settings = check_settings(document, environ, [], warnings)
    settings = attrs.evolve(settings, policies=_policies(document, settings, environ, problems, last))

    named = [entry for entry in document.layout.servers if check_name(entry[0], entry[2], [])]
    errors = {str(name): tuple(p for p in problems if is_within(p.path, path)) for name, _, path in named}
    replaced: set[object] = set()
    chosen: list[tuple[object, object, str]] = []
    for name, definition, path in named:
        replacement = None if last is None else last.servers.get(str(name))
        if errors[str(name)] and replacement is not None:
            definition = replacement
            replaced.add(name)
        chosen.append((name, definition, path))
    parsed, remaining = parse_valid_servers(
        chosen, environ=environ, settings=settings, base_dir=document.base_dir
    )
    specs: dict[str, ServerSpec] = {}
    for name, definition, path in chosen:
        own = errors[str(name)] or tuple(p for p in remaining if is_within(p.path, path))
        usable = parsed.specs.get(str(name)) if name in replaced or not own else None
        specs[str(name)] = usable or _invalid_spec(str(name), definition, own)
    definitions = {str(name): value if isinstance(value, Mapping) else {} for name, value, _ in chosen}
    loaded = assemble(document, settings, attrs.evolve(parsed, specs=specs), definitions, warnings)
    kept = (str(name) for name in replaced if not isinstance(specs[str(name)], InvalidSpec))
    return attrs.evolve(loaded, earlier=frozenset(kept))


def _policies(
    document: Document,
    settings: Settings,
    environ: Mapping[str, str],
    problems: tuple[Problem, ...],
    last: LastValidConfig | None,
) -> tuple[PolicyRule, ...]:
    """Return the rules of invalid settings: the last valid ones. Without them, everything is denied if the
    errors may conceal rules, because leaving rules out would allow what they deny."""
    path = document.layout.settings_path
    errors = [each for each in problems if is_within(each.path, path) or _may_conceal_rules(each.path, path)]
    if not errors:
        return settings.policies
    if last is not None:
        stored = parse_settings(last.settings, environ=environ, path=path, problems=[], warnings=[])
        return stored.policies
    if any(_may_conceal_rules(problem.path, path) for problem in errors):
        where = join_path(path, "policies")
        return (PolicyRule(decision=Decision.DENY, place=where, reason="the rules have errors"),)
    return settings.policies


def _may_conceal_rules(place: str, settings_path: str) -> bool:
    """Return whether rules may be missing because of an error at this place: in `policies`, in the settings
    as a whole, or in a key that may be a misspelling of either."""
    parent, key = split_path(place)
    if parent == settings_path:
        return closest_match(key, ["policies"]) is not None
    return is_within(place, join_path(settings_path, "policies")) or (
        parent in ("$", "$.mcp") and closest_match(key, _RULE_HOLDERS) is not None
    )


def _invalid_spec(name: str, definition: object, problems: tuple[Problem, ...]) -> InvalidSpec:
    written = definition if isinstance(definition, Mapping) else {}
    is_off = written.get("enabled") is False or written.get("disabled") is True
    return InvalidSpec(name=name, enabled=not is_off, problems=problems)
