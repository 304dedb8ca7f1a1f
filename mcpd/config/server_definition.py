"""Parses definitions of servers into specs. Collects every problem, with a fix for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from mcpd.config.definition_size import size_problem
from mcpd.config.field_names import CANONICAL_NAMES, FIELDS, IGNORED_FIELDS, REPLACEMENTS, is_comment
from mcpd.config.json_path import closest_match, join_path, type_name
from mcpd.config.json_schema import json_schema
from mcpd.config.known_servers import apply_traits
from mcpd.config.masking import PASSED_FIELDS, mask_definition, secret_values
from mcpd.config.section_reader import Section
from mcpd.config.server_definition_fields import parse_common_fields, parse_transport_fields
from mcpd.config.settings import Settings
from mcpd.config.variables import expand, misplaced_reference
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.record import Record
from mcpd.model.server_spec import FetchedSecrets, ResolvedDefinition, SecretReference, ServerSpec, StdioSpec
from mcpd.model.text import shorten

__all__ = ["ParsedServers", "json_schema", "mask_definition", "parse_servers"]

MAX_NAME_LENGTH = 64
_MAX_SUGGESTIONS = 100
"""Unknown fields of a definition for which similar ones are looked up, which takes 0.1 ms each."""


@attrs.frozen(eq=False, repr=False)
class ParsedServers(Record):
    """The result of parsing a set of definitions."""

    specs: dict[str, ServerSpec]
    secrets: frozenset[str] = attrs.field(repr=False)
    """Values to mask wherever something is shown or logged."""
    warnings: tuple[str, ...]


@attrs.frozen(eq=False, repr=False)
class _DefinitionWithSecrets(Record):
    """An UnresolvedDefinition: parses the definition again with the secrets that were fetched."""

    name: str
    definition: Mapping[str, object] = attrs.field(repr=False)
    path: str
    environ: Mapping[str, str] = attrs.field(repr=False)
    settings: Settings
    base_dir: Path

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        parser = _Parser(self.environ, self.settings, self.base_dir, fetched)
        parser.parse(self.name, self.definition, self.path)
        if parser.problems:
            raise BadSpec(parser.problems)
        return ResolvedDefinition(
            parser.specs[self.name], tuple(parser.unresolved), frozenset(parser.secrets)
        )


def parse_servers(
    servers: Mapping[str, object],
    *,
    environ: Mapping[str, str],
    settings: Settings,
    base_dir: Path,
    path: str,
) -> ParsedServers:
    """Parse `servers` (name → definition) in their order.

    Relative directories are resolved against `base_dir`; `path` is the JSON path of `servers`. Either all
    definitions are valid, or this raises BadSpec (without a source) with every problem of all of them.
    """
    located: list[tuple[object, object, str]] = [
        (name, definition, join_path(path, str(name))) for name, definition in servers.items()
    ]
    parsed, problems = parse_valid_servers(located, environ=environ, settings=settings, base_dir=base_dir)
    if problems:
        raise BadSpec(problems)
    return parsed


def parse_valid_servers(
    servers: list[tuple[object, object, str]],
    *,
    environ: Mapping[str, str],
    settings: Settings,
    base_dir: Path,
) -> tuple[ParsedServers, list[Problem]]:
    """Return the valid ones of `servers` (name, definition, JSON path), and the problems of the others."""
    parser = _Parser(environ, settings, base_dir, {})
    for name, definition, path in servers:
        before = len(parser.problems)
        known = name in parser.specs if isinstance(name, str) else False
        parser.parse(name, definition, path)
        if len(parser.problems) > before and isinstance(name, str) and not known:
            parser.specs.pop(name, None)
    parsed = ParsedServers(parser.specs, frozenset(parser.secrets), tuple(parser.warnings))
    return parsed, parser.problems


class _Parser(msgspec.Struct, eq=False):
    """Parses definitions one by one, and collects the results."""

    environ: Mapping[str, str]
    settings: Settings
    base_dir: Path
    fetched: FetchedSecrets
    problems: list[Problem] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    specs: dict[str, ServerSpec] = msgspec.field(default_factory=dict)
    secrets: set[str] = msgspec.field(default_factory=set)
    unresolved: list[SecretReference] = msgspec.field(default_factory=list)

    def parse(self, name: object, definition: object, path: str) -> None:
        problems, warnings = self.problems, self.warnings
        if not check_name(name, path, problems):
            return
        assert isinstance(name, str)
        if name in self.specs:
            problems.append(Problem(path, f"server '{name}' is defined twice", "rename one of them"))
            return
        if not isinstance(definition, Mapping) or not all(isinstance(key, str) for key in definition):
            message = f"the definition of '{name}' must be an object, not {type_name(definition)}"
            problems.append(Problem(path, message, 'write {"command": "…"} or {"url": "https://…"}'))
            return
        excess, fix = size_problem(definition)
        if excess:
            problems.append(Problem(path, f"the definition of '{name}' {excess}", fix))
            return
        expanded = expand(definition, self.environ, path, base_dir=self.base_dir, fetched=self.fetched)
        problems += expanded.problems
        assert isinstance(expanded.value, dict)
        unresolved_fields = self._check_references(expanded.unresolved, path)
        section = _canonical_fields(expanded.value, path, name, problems, warnings)
        section.unresolved = unresolved_fields
        before = len(problems)
        common = parse_common_fields(name, section, self.settings, warnings)
        spec = parse_transport_fields(section, common, self.base_dir, self.environ, warnings)
        if isinstance(spec, StdioSpec):
            spec = apply_traits(spec, section)
        # A variable that is not set leaves an empty string; a second problem about it would be misleading.
        reported = {problem.path for problem in expanded.problems}
        problems[before:] = [problem for problem in problems[before:] if problem.path not in reported]
        if spec is not None:
            if expanded.unresolved:
                unresolved = _DefinitionWithSecrets(
                    name, definition, path, self.environ, self.settings, self.base_dir
                )
                spec = attrs.evolve(spec, unresolved=unresolved)
            self.specs[name] = spec
        passed = [item for item in expanded.substitutions if _is_passed_to_server(item.path, path)]
        self.secrets |= secret_values(section.values, passed)

    def _check_references(
        self, references: tuple[tuple[str, SecretReference], ...], definition_path: str
    ) -> frozenset[str]:
        """Return the fields whose text is not known until the server starts."""
        for path, reference in references:
            if not _is_passed_to_server(path, definition_path):
                self.problems.append(misplaced_reference(path, reference))
            elif reference.kind == "cmd" and not self.settings.allow_commands:
                message = "${cmd:…} runs a program, and your settings do not allow that"
                self.problems.append(Problem(path, message, 'write "settings": {"allowCommands": true}'))
        self.unresolved += dict.fromkeys(reference for _, reference in references)
        return frozenset(CANONICAL_NAMES.get(_field_at(path, definition_path), "") for path, _ in references)


def check_name(name: object, path: str, problems: list[Problem]) -> bool:
    """Return whether `name` is a valid name of a server; if not, add the reason to `problems`."""
    if not isinstance(name, str):
        message = f"a server's name must be a string, not {type_name(name)}"
        problems.append(Problem(path, message, "put it in quotes"))
        return False
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) and len(name) <= MAX_NAME_LENGTH:
        return True
    suggestion = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")[:MAX_NAME_LENGTH] or "my-server"
    reason = "is empty" if not name else "is not valid"
    if len(name) > MAX_NAME_LENGTH:
        reason = f"has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed"
    fix = f"rename it to '{suggestion}': letters, digits, '_', '-' and '.', not starting with '.'"
    problems.append(Problem(path, f"the server name '{shorten(name, 80)}' {reason}", fix))
    return False


def _canonical_fields(
    values: Mapping[str, object], path: str, name: str, problems: list[Problem], warnings: list[str]
) -> Section:
    """Return the definition with mcpd's names of the fields. Unknown fields are warnings or problems."""
    fields: dict[str, object] = {}
    section = Section(fields, path, problems)
    spelling: dict[str, str] = {}
    misspelled: dict[str, object] = {}
    known = [field.name for field in FIELDS]
    suggested = 0
    for key, value in values.items():
        canonical = CANONICAL_NAMES.get(key)
        if canonical is None:
            if key == "name" and value == name:
                continue
            if key in IGNORED_FIELDS:
                note = f" ({IGNORED_FIELDS[key]})" if IGNORED_FIELDS[key] else ""
                warnings.append(f"{join_path(path, key)}: '{key}' is not used by mcpd and was ignored{note}")
            elif not is_comment(key):
                suggested += 1
                match = closest_match(key, known) if suggested <= _MAX_SUGGESTIONS else None
                fix = REPLACEMENTS.get(key) or (f"did you mean '{match}'?" if match else "remove it")
                section.add_problem(key, f"unknown field '{shorten(key, 64)}' in server '{name}'", fix)
                if match in ("command", "url", "type"):
                    misspelled[match] = value
        elif value is not None and canonical in fields:
            section.add_problem(key, f"'{spelling[canonical]}' and '{key}' mean the same", "keep one")
        elif value is not None:
            fields[canonical] = value
            spelling[canonical] = key
    # `comand` has been reported; do not report 'command' as missing, too.
    for key, value in misspelled.items():
        fields.setdefault(key, value)
    return section


def _is_passed_to_server(path: str, definition_path: str) -> bool:
    """Return whether the field at `path` is passed to the server, and so may contain a secret."""
    return CANONICAL_NAMES.get(_field_at(path, definition_path)) in PASSED_FIELDS


def _field_at(path: str, definition_path: str) -> str:
    """Return the top-level key of the definition in which `path` is, as written."""
    key = re.match(r"[A-Za-z_]*", path[len(definition_path) + 1 :])
    return key[0] if key else ""
