"""Definitions as users write them → specs, with a fix for every complaint, all of them at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpd.config.definition_fields import parse_common_fields, parse_transport_fields
from mcpd.config.fields import CANONICAL_NAMES, FIELDS, IGNORED_FIELDS, REPLACEMENTS, is_comment
from mcpd.config.json_path import closest_match, is_too_large, join_path, type_name
from mcpd.config.json_schema import json_schema
from mcpd.config.known_servers import apply_traits
from mcpd.config.masking import PASSED_FIELDS, mask_definition, secret_values
from mcpd.config.section import Section
from mcpd.config.settings import Settings
from mcpd.config.variables import expand, misplaced_reference
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.server_spec import FetchedSecrets, ResolvedDefinition, SecretReference, ServerSpec, StdioSpec
from mcpd.model.text import shorten

__all__ = ["ParsedServers", "json_schema", "mask_definition", "parse_servers"]

MAX_NAME_LENGTH = 64


@attrs.frozen
class ParsedServers:
    """What a set of definitions means."""

    specs: dict[str, ServerSpec]
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""
    warnings: tuple[str, ...]
    variables: tuple[str, ...]
    """The environment variables that values were taken from, sorted."""


@attrs.frozen(eq=False)
class _DefinitionWithSecrets:
    """See `Late`: the definition is read once more, with what has been fetched by then."""

    name: str
    definition: Mapping[str, object] = attrs.field(repr=False)
    path: str
    environ: Mapping[str, str] = attrs.field(repr=False)
    settings: Settings
    base_dir: Path

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        reading = _Parser(self.environ, self.settings, self.base_dir, fetched)
        reading.parse(self.name, self.definition, self.path)
        if reading.problems:
            raise BadSpec(reading.problems)
        return ResolvedDefinition(
            reading.specs[self.name], tuple(reading.unresolved), frozenset(reading.secrets)
        )


def parse_servers(
    servers: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    settings: Settings,
    base_dir: Path,
    path: str,
) -> ParsedServers:
    """Check and translate `servers` (name → definition), in their order.

    Relative directories are meant from `base_dir`; `place` is where `servers` stands in its document.
    All or nothing: raises BadSpec (without a source) with every problem of every definition.
    """
    return parse_located_servers(
        [(name, definition, join_path(path, str(name))) for name, definition in servers.items()],
        environ=environ,
        settings=settings,
        base_dir=base_dir,
    )


def parse_located_servers(
    servers: list[tuple[object, object, str]],
    *,
    environ: Mapping[str, str],
    settings: Settings,
    base_dir: Path,
) -> ParsedServers:
    """The same for (name, definition, its place), for documents that hold a list of servers."""
    reading = _Parser(environ, settings, base_dir, {})
    for name, definition, place in servers:
        reading.parse(name, definition, place)
    if reading.problems:
        raise BadSpec(reading.problems)
    return ParsedServers(
        reading.specs,
        frozenset(reading.secrets),
        tuple(reading.warnings),
        tuple(sorted(reading.variables)),
    )


@attrs.define(eq=False)
class _Parser:
    """Definitions as they are read, one after the other."""

    environ: Mapping[str, str]
    settings: Settings
    base_dir: Path
    fetched: FetchedSecrets
    problems: list[Problem] = attrs.field(factory=list)
    warnings: list[str] = attrs.field(factory=list)
    specs: dict[str, ServerSpec] = attrs.field(factory=dict)
    secrets: set[str] = attrs.field(factory=set)
    variables: set[str] = attrs.field(factory=set)
    unresolved: list[SecretReference] = attrs.field(factory=list)

    def parse(self, name: object, definition: object, path: str) -> None:
        problems, warnings = self.problems, self.warnings
        if not _check_name(name, path, problems):
            return
        assert isinstance(name, str)
        if name in self.specs:
            problems.append(Problem(path, f"server '{name}' is defined twice", "rename one of them"))
            return
        if not isinstance(definition, Mapping) or not all(isinstance(key, str) for key in definition):
            message = f"the definition of '{name}' must be an object, not {type_name(definition)}"
            problems.append(Problem(path, message, 'write {"command": "…"} or {"url": "https://…"}'))
            return
        if is_too_large(definition):
            problems.append(Problem(path, f"the definition of '{name}' is nested too deeply", "flatten it"))
            return
        expanded = expand(definition, self.environ, path, base_dir=self.base_dir, fetched=self.fetched)
        problems += expanded.problems
        assert isinstance(expanded.value, dict)
        later = self._check_references(expanded.unresolved, path)
        section = _canonical_fields(expanded.value, path, name, problems, warnings)
        section.unresolved = later
        unset = {problem.path for problem in expanded.problems}
        before = len(problems)
        common = parse_common_fields(section, self.settings, warnings)
        spec = parse_transport_fields(name, section, common, self.base_dir, self.environ, warnings)
        if isinstance(spec, StdioSpec):
            spec = apply_traits(spec, section)
        # An unset variable leaves an empty text behind; complaining of that as well would mislead.
        problems[before:] = [problem for problem in problems[before:] if problem.path not in unset]
        if spec is not None:
            if expanded.unresolved:
                recipe = _DefinitionWithSecrets(
                    name, definition, path, self.environ, self.settings, self.base_dir
                )
                spec = attrs.evolve(spec, unresolved=recipe)
            self.specs[name] = spec
        taken = [item for item in expanded.substitutions if _is_passed_to_server(item.path, path)]
        self.secrets |= secret_values(section.values, taken)
        self.variables |= {item.variable for item in expanded.substitutions if ":" not in item.variable}

    def _check_references(
        self, wanted: tuple[tuple[str, SecretReference], ...], definition: str
    ) -> frozenset[str]:
        """The fields whose text is known only when the server starts."""
        for place, reference in wanted:
            if not _is_passed_to_server(place, definition):
                self.problems.append(misplaced_reference(place, reference))
            elif reference.kind == "cmd" and not self.settings.allow_commands:
                message = "${cmd:…} runs a program, and your settings do not allow that"
                self.problems.append(Problem(place, message, 'write "settings": {"allowCommands": true}'))
        self.unresolved += dict.fromkeys(reference for _, reference in wanted)
        return frozenset(CANONICAL_NAMES.get(_field_at(place, definition), "") for place, _ in wanted)


def _check_name(name: object, path: str, problems: list[Problem]) -> bool:
    if not isinstance(name, str):
        problems.append(
            Problem(path, f"a server's name must be a string, not {type_name(name)}", "put it in quotes")
        )
        return False
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) and len(name) <= MAX_NAME_LENGTH:
        return True
    better = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:MAX_NAME_LENGTH] or "my-server"
    reason = "is empty" if not name else "is not usable"
    if len(name) > MAX_NAME_LENGTH:
        reason = f"has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed"
    fix = f"rename it to '{better}': letters, digits, '_', '-' and '.', not starting with '.'"
    problems.append(Problem(path, f"the server name '{shorten(name, 80)}' {reason}", fix))
    return False


def _canonical_fields(
    values: Mapping[str, object], path: str, name: str, problems: list[Problem], warnings: list[str]
) -> Section:
    """The definition under our names for its fields; others are ignored, with a warning, or refused."""
    ours: dict[str, object] = {}
    section = Section(ours, path, problems)
    spelt: dict[str, str] = {}
    mistyped: dict[str, object] = {}
    known = [field.name for field in FIELDS]
    for key, value in values.items():
        canonical = CANONICAL_NAMES.get(key)
        if canonical is None:
            if key == "name" and value == name:
                continue
            if key in IGNORED_FIELDS:
                note = f" ({IGNORED_FIELDS[key]})" if IGNORED_FIELDS[key] else ""
                warnings.append(f"{join_path(path, key)}: '{key}' is not used by mcpd and was ignored{note}")
            elif not is_comment(key):
                meant = closest_match(key, known)
                fix = REPLACEMENTS.get(key) or (f"did you mean '{meant}'?" if meant else "remove it")
                section.add_problem(key, f"unknown field '{shorten(key, 64)}' in server '{name}'", fix)
                if meant in ("command", "url", "type"):
                    mistyped[meant] = value
        elif value is not None and canonical in ours:
            section.add_problem(key, f"'{spelt[canonical]}' and '{key}' mean the same", "keep one")
        elif value is not None:
            ours[canonical] = value
            spelt[canonical] = key
    # Who wrote `comand` has been told; that 'command' is missing as well would be one complaint too many.
    for key, value in mistyped.items():
        ours.setdefault(key, value)
    return section


def _is_passed_to_server(path: str, definition: str) -> bool:
    """Whether what stands at `place` inside a definition is handed to a server, and so may be secret."""
    return CANONICAL_NAMES.get(_field_at(path, definition)) in PASSED_FIELDS


def _field_at(path: str, definition: str) -> str:
    """The field of a definition that `place` is in, as it is spelt there."""
    key = re.match(r"[A-Za-z_]*", path[len(definition) + 1 :])
    return key[0] if key else ""
