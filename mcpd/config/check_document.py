"""A configuration document and its check: settings and definitions are parsed, or every error is named."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs
import msgspec

from mcpd.config.policies import rule_for_errors
from mcpd.config.server_specs import check_name, parse_valid_servers
from mcpd.config.settings import Settings, parse_settings
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.json_path import closest_match, is_within, join_path, split_path
from mcpd.model.policy import all_tags
from mcpd.model.record import Record
from mcpd.model.server_spec import InvalidSpec, ServerSpec
from mcpd.model.text import shorten

VARIABLE_SOURCE = "$MCPD_SERVERS"


@attrs.frozen(eq=False, repr=False)
class LoadedConfig(Record):
    """A complete configuration."""

    specs: dict[str, ServerSpec]
    definitions: dict[str, Mapping[str, object]]
    """The definitions as written. References are not replaced, so they contain no value of a variable."""
    settings: Settings
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""
    source: str
    """The file's path, `$MCPD_SERVERS`, or `none`."""
    path: Path
    """The file that a reload reads and `mcpctl add` writes. It may not exist yet."""
    warnings: tuple[str, ...]
    digest: str
    """SHA-256 of the bytes read, in hex; empty if nothing was read."""
    written_settings: Mapping[str, object] = attrs.field(factory=dict)
    """The settings as written."""
    text: str = attrs.field(default="", repr=False)
    """The content of the file."""
    problems: tuple[Problem, ...] = ()
    """What `check_parts` tolerated. Empty for `check`, which raises BadSpec instead."""
    stored_copy: Path | None = None
    """The copy of the last valid content that `load_at_start` used instead of the file; None for the file."""


class DocumentLayout(msgspec.Struct, frozen=True):
    """The parts of a document, not checked yet."""

    servers: list[tuple[object, object, str]] = msgspec.field(default_factory=list)
    """Name, definition and JSON path of each server."""
    settings: Mapping[str, object] = msgspec.field(default_factory=dict)
    settings_path: str = "$.settings"
    enabled: bool = True


class ConfigDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that could be parsed, from a file or from `$MCPD_SERVERS`."""

    source: str
    path: Path
    base_dir: Path
    """Relative directories are resolved against it."""
    layout: DocumentLayout = DocumentLayout()
    problems: list[Problem] = msgspec.field(default_factory=list)
    """What is wrong with its layout. The servers and the settings are not checked yet."""
    warnings: list[str] = msgspec.field(default_factory=list)
    digest: str = ""
    text: str = ""


def check(document: ConfigDocument, environ: Mapping[str, str]) -> LoadedConfig:
    """Parse settings and servers. Raises BadSpec with all problems, those of the layout first."""
    loaded = check_parts(document, environ)
    if loaded.problems:
        raise BadSpec(list(loaded.problems), document.source)
    return loaded


def check_parts(document: ConfigDocument, environ: Mapping[str, str]) -> LoadedConfig:
    """Parse settings and servers. Errors affect only the entries that contain them, and are in `problems`.

    Invalid settings have their defaults, invalid `policies` deny everything, and an invalid server is an
    InvalidSpec.
    """
    layout, problems, warnings = document.layout, list(document.problems), list(document.warnings)
    settings = _check_settings(document, environ, problems, warnings)
    parsed, invalid = parse_valid_servers(
        layout.servers, environ=environ, settings=settings, base_dir=document.base_dir
    )
    problems = list(dict.fromkeys([*problems, *invalid]))
    if any(_may_conceal_rules(problem.path, layout.settings_path) for problem in problems):
        denied = rule_for_errors(join_path(layout.settings_path, "policies"))
        settings = attrs.evolve(settings, policies=(denied,))
    specs: dict[str, ServerSpec] = {}
    definitions: dict[str, Mapping[str, object]] = {}
    for name, definition, place in layout.servers:
        if not isinstance(name, str) or not check_name(name, place, []):
            continue
        definitions[name] = definition if isinstance(definition, Mapping) else {}
        is_off = definitions[name].get("enabled") is False or definitions[name].get("disabled") is True
        errors = tuple(each for each in problems if is_within(each.path, place))
        spec = InvalidSpec(name=name, enabled=not is_off, problems=errors) if errors else parsed.specs[name]
        specs[name] = spec if layout.enabled else attrs.evolve(spec, enabled=False)
    if not layout.enabled:
        warnings.append("$.mcp.enabled: all servers are disabled")
    warnings += parsed.warnings
    if definitions:  # otherwise the servers come from elsewhere
        warnings += _unknown_references(settings, specs, definitions, layout.settings_path)
    return LoadedConfig(
        specs,
        definitions,
        settings,
        parsed.secrets,
        document.source,
        document.path,
        tuple(warnings),
        document.digest,
        layout.settings,
        document.text,
        tuple(problems),
    )


def _check_settings(
    document: ConfigDocument, environ: Mapping[str, str], problems: list[Problem], warnings: list[str]
) -> Settings:
    """Return the settings. Errors are added to `problems`, and the defaults are used instead."""
    layout, path = document.layout, document.path
    settings = parse_settings(
        layout.settings, environ=environ, path=layout.settings_path, problems=problems, warnings=warnings
    )
    if settings.allow_commands and document.source != VARIABLE_SOURCE and _is_writable_by_others(path):
        message = f"other users can write to {path}, so it must not allow commands"
        where = join_path(layout.settings_path, "allowCommands")
        problems.append(Problem(where, message, f"chmod go-w {path}"))
        settings = attrs.evolve(settings, allow_commands=False)
    return settings


_RULE_HOLDERS = ["settings", "mcp", "globalSettings", "policies"]
"""Keys above `policies` in a document."""


def _may_conceal_rules(place: str, settings_path: str) -> bool:
    """Return whether rules may be missing because of an error at this place: in `policies`, in the settings
    as a whole, or in a key that may be a misspelling of either."""
    parent, key = split_path(place)
    if parent == settings_path:
        return closest_match(key, ["policies"]) is not None
    return is_within(place, join_path(settings_path, "policies")) or (
        parent in ("$", "$.mcp") and closest_match(key, _RULE_HOLDERS) is not None
    )


def _unknown_references(
    settings: Settings, specs: Mapping[str, ServerSpec], servers: Mapping[str, object], settings_path: str
) -> list[str]:
    no_server, no_tag = "there is no server", "no definition has the tag"
    profiles = join_path(settings_path, "profiles")
    warnings: list[str] = []
    for name, profile in settings.profiles.items():
        place = join_path(join_path(profiles, name), "servers")
        warnings += _unknown_names(profile.servers, servers, no_server, place)
    tags = frozenset[str]().union(*map(all_tags, specs.values()))
    for rule in settings.policies:
        warnings += _unknown_names(rule.servers, servers, no_server, join_path(rule.place, "servers"))
        warnings += _unknown_names(rule.tags, tags, no_tag, join_path(rule.place, "tags"))
    return warnings


def _unknown_names(
    patterns: tuple[str, ...] | None, known: Collection[str], what: str, where: str
) -> list[str]:
    """Warn about names that nothing in the file has."""
    warnings = []
    for pattern in patterns or ():
        if pattern not in known and not set("*?[") & set(pattern):
            match = closest_match(pattern, sorted(known))
            hint = f"; did you mean '{match}'?" if match else ""
            warnings.append(f"{where}: {what} '{shorten(pattern, 40)}'{hint}")
    return warnings


def _is_writable_by_others(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False  # mcpd is about to create it
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) or found.st_uid not in (os.getuid(), 0)
