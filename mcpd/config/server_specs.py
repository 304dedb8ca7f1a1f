"""Definitions of servers → the specs that they become. Every problem is collected, with a fix for each."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import msgspec

from mcpd.config.definition import (
    CANONICAL_NAMES,
    FIELDS,
    IGNORED_FIELDS,
    REPLACEMENTS,
    SIDES,
    TRANSPORT_TYPES,
    Definition,
    RemoteKind,
    TransportKind,
    WrittenOverride,
    is_comment,
)
from mcpd.config.masking import PASSED_FIELDS, secret_values
from mcpd.config.oauth import read_oauth
from mcpd.config.settings import (
    Settings,
    effective_restart,
    effective_timeouts,
)
from mcpd.config.structuring import (
    read,
    set_members,
)
from mcpd.config.variables import ExpansionResult, expand, expand_home, misplaced_reference, size_problem
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.json_path import closest_match, join_path, type_name
from mcpd.model.record import Record
from mcpd.model.server_spec import (
    ArgumentOverride,
    Concurrency,
    FetchedSecrets,
    RemoteSpec,
    ResolvedDefinition,
    SecretReference,
    ServerSpec,
    Share,
    StdioSpec,
    ToolOverride,
)
from mcpd.model.text import shorten

MAX_NAME_LENGTH = 64


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
    person: str = ""

    def for_person(self, name: str) -> _DefinitionWithSecrets:
        return attrs.evolve(self, person=name if "share" in self.definition else "")

    def resolve(self, fetched: FetchedSecrets) -> ResolvedDefinition:
        parser = _SpecParser(self.environ, self.settings, self.base_dir, fetched, self.person)
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
    parser = _SpecParser(environ, settings, base_dir, {})
    for name, definition, path in servers:
        parser.parse(name, definition, path)
    parsed = ParsedServers(parser.specs, frozenset(parser.secrets), tuple(parser.warnings))
    return parsed, parser.problems


class _SpecParser(msgspec.Struct, eq=False):
    """Parses definitions one by one, and collects the results."""

    environ: Mapping[str, str]
    settings: Settings
    base_dir: Path
    fetched: FetchedSecrets
    person: str = ""
    problems: list[Problem] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    specs: dict[str, ServerSpec] = msgspec.field(default_factory=dict)
    secrets: set[str] = msgspec.field(default_factory=set)
    unresolved: list[SecretReference] = msgspec.field(default_factory=list)

    def parse(self, name: object, definition: object, path: str) -> None:
        problems = self.problems
        if not check_name(name, path, problems):
            return
        assert isinstance(name, str)
        if problem := self._unusable(name, definition, path):
            problems.append(problem)
            return
        assert isinstance(definition, Mapping)
        definition = self._with_shared_environment(definition)
        start = len(problems)
        expanded = expand(
            definition,
            self.environ,
            path,
            base_dir=self.base_dir,
            fetched=self.fetched,
            person=self.person,
        )
        problems += expanded.problems
        assert isinstance(expanded.value, dict)
        unresolved = self._check_references(expanded.unresolved, path)
        before = len(problems)
        members = self._known_members(expanded.value, name, path)
        present = frozenset(CANONICAL_NAMES[key] for key in members)
        builder = _SpecBuilder(
            name=name,
            written=read(members, Definition, path, problems),
            present=present,
            unresolved=unresolved,
            settings=self.settings,
            base_dir=self.base_dir,
            environ=self.environ,
            path=path,
            problems=problems,
            warnings=self.warnings,
        )
        spec = builder.build()
        # A variable that is not set leaves an empty string; a second problem about it would be misleading.
        reported = {problem.path for problem in expanded.problems}
        problems[before:] = [problem for problem in problems[before:] if problem.path not in reported]
        if spec is not None and len(problems) == start:
            if expanded.unresolved:
                again = _DefinitionWithSecrets(
                    name, definition, path, self.environ, self.settings, self.base_dir
                )
                spec = attrs.evolve(spec, unresolved=again)
            self.specs[name] = spec
        self._note_secrets({CANONICAL_NAMES[key]: each for key, each in members.items()}, expanded, path)

    def _with_shared_environment(self, definition: Mapping[str, object]) -> Mapping[str, object]:
        """Return the definition with the variables in `settings.env`, which its own override."""
        by_name = {CANONICAL_NAMES.get(key): key for key in definition}
        own = definition.get(key := by_name.get("env", "env")) or {}
        if not self.settings.env or "command" not in by_name or not isinstance(own, Mapping):
            return definition
        return {**definition, key: {**self.settings.env, **own}}

    def _note_secrets(self, definition: Mapping[str, object], expanded: ExpansionResult, path: str) -> None:
        passed = [item for item in expanded.substitutions if _is_passed_to_server(item.path, path)]
        self.secrets |= secret_values(definition, passed)

    def _unusable(self, name: str, definition: object, path: str) -> Problem | None:
        """Return why a definition is not even looked at."""
        if name in self.specs:
            return Problem(path, f"server '{name}' is defined twice", "rename one of them")
        if not isinstance(definition, Mapping) or not all(isinstance(key, str) for key in definition):
            message = f"the definition of '{name}' must be an object, not {type_name(definition)}"
            return Problem(path, message, 'write {"command": "…"} or {"url": "https://…"}')
        excess, fix = size_problem(definition)
        return Problem(path, f"the definition of '{name}' {excess}", fix) if excess else None

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

    def _known_members(self, values: Mapping[str, object], name: str, path: str) -> dict[str, object]:
        """Return the members that mcpd uses, without null. The others are warnings or problems."""
        members = {key: each for key, each in values.items() if key in CANONICAL_NAMES and each is not None}
        present = {CANONICAL_NAMES[key] for key in members}
        for key, value in values.items():
            if key in CANONICAL_NAMES or is_comment(key) or (key == "name" and value == name):
                continue
            place = join_path(path, key)
            if key in IGNORED_FIELDS:
                note = f" ({IGNORED_FIELDS[key]})" if IGNORED_FIELDS[key] else ""
                self.warnings.append(f"{place}: '{key}' is not used by mcpd and was ignored{note}")
                continue
            match = closest_match(key, list(FIELDS))
            fix = REPLACEMENTS.get(key) or (f"did you mean '{match}'?" if match else "remove it")
            message = f"unknown field '{shorten(key, 64)}' in server '{name}'"
            self.problems.append(Problem(place, message, fix))
            if match in {"command", "url", "type"} - present:
                members[match] = value  # do not report 'command' as missing, too
        return members


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


def _is_passed_to_server(path: str, definition_path: str) -> bool:
    """Return whether the field at `path` is passed to the server, and so may contain a secret."""
    return CANONICAL_NAMES.get(_field_at(path, definition_path)) in PASSED_FIELDS


def _field_at(path: str, definition_path: str) -> str:
    """Return the top-level key of the definition in which `path` is, as written."""
    key = re.match(r"[A-Za-z_]*", path[len(definition_path) + 1 :])
    return key[0] if key else ""


# ── specs ───────────────────────────────────────────────────────────────────────────────────────

_SPECIAL = {"enabled", "cache", "timeouts", "restart"}
_COPIED = {each.name for each in attrs.fields(ServerSpec)} - _SPECIAL
"""Attributes that a spec has as they are written."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SCHEMES: Mapping[str, tuple[str, ...]] = {
    "http": ("http", "https"),
    "sse": ("http", "https"),
    "ws": ("ws", "wss"),
}


def _override(written: WrittenOverride) -> ToolOverride:
    arguments = {
        name: ArgumentOverride(value=each.value)
        for name, each in (written.arguments or {}).items()
        if each.hide is not False or each.value is not None
    }
    return ToolOverride(**set_members(written) | {"arguments": arguments})


class _SpecBuilder(msgspec.Struct, kw_only=True, eq=False):
    """Makes the spec of one definition, and checks what concerns several of its fields."""

    name: str
    written: Definition
    present: frozenset[str]
    """The names of the fields that are written, also of those with errors."""
    unresolved: frozenset[str]
    """Fields that contain a secret that is not fetched yet, so their text cannot be checked."""
    settings: Settings
    base_dir: Path
    environ: Mapping[str, str]
    path: str
    problems: list[Problem]
    warnings: list[str]

    def build(self) -> ServerSpec | None:
        """Return the spec; None if a problem was added that leaves it incomplete."""
        common = self._common()
        kind = self._transport_kind()
        if kind is None:
            return None
        side = "stdio" if kind == "stdio" else "remote"
        for name, only in SIDES.items():
            if name in self.present and only != side and name not in ("command", "url"):
                place = join_path(self.path, name)
                self.warnings.append(f"{place}: '{name}' has no effect for {kind} servers")
        return self._stdio(common) if kind == "stdio" else self._remote(kind, common)

    def problem(self, key: str, message: str, fix: str, *inner: str) -> None:
        path = self.path
        for step in (key, *inner):
            path = join_path(path, step) if step else path
        self.problems.append(Problem(path, message, fix))

    def _common(self) -> dict[str, object]:
        """Return the fields that do not depend on the transport."""
        written, settings = self.written, self.settings
        members = {name: each for name, each in set_members(written).items() if name in _COPIED}
        if isinstance(written.tools, tuple):
            members.setdefault("include_tools", written.tools)
        elif isinstance(written.tools, dict):
            members["tool_overrides"] = {name: _override(each) for name, each in written.tools.items()}
        if members.get("include_tools") == ():
            self.warnings.append(f"{self.path}: 'includeTools' is empty, so the server provides no tools")
        if written.enabled is not None and written.enabled == written.disabled:
            self.problem("disabled", "'enabled' and 'disabled' contradict each other", "keep one")
        enabled = not written.disabled if written.enabled is None else written.enabled
        timeouts = effective_timeouts(
            settings.timeouts,
            written.timeouts,
            call=written.timeout,
            connect=written.connect_timeout,
            call_max=written.max_timeout,
            tools=written.tool_timeouts,
            path=self.path,
            problems=self.problems,
            warnings=self.warnings,
        )
        return {
            "debug": settings.debug,
            "validate": settings.validate,
            "result_limit": settings.result_limit,
            **members,
            "name": self.name,
            "enabled": enabled,
            "cache": None if isinstance(written.cache, bool) else written.cache or {},
            "timeouts": timeouts,
            "restart": effective_restart(settings.restart, written.restart),
            "is_single_process": not self.present.isdisjoint(("share", "concurrency")),
        }

    def _transport_kind(self) -> TransportKind | None:
        has_url = "url" in self.present
        if "command" in self.present and has_url:
            message = f"server '{self.name}' has both 'command' and a URL"
            self.problem("", message, "keep 'command' for a program, or 'url' for a remote server")
            return None
        if self.written.type is not None:
            return TRANSPORT_TYPES[self.written.type]
        if "command" in self.present:
            return "stdio"
        if has_url:
            return "ws" if (self.written.url or "").startswith(("ws://", "wss://")) else "http"
        if "type" not in self.present:  # an invalid one is a problem already
            message = f"Missing 'command' or 'url' in server '{self.name}'"
            self.problem("", message, "add 'command' for a program, or 'url' for a remote server")
        return None

    def _stdio(self, common: dict[str, object]) -> StdioSpec | None:
        written = self.written
        for variable in written.env or ():
            if not variable or "=" in variable or "\0" in variable:
                message = "invalid name of an environment variable"
                self.problem("env", message, "write a name without '='", variable)
        if "command" not in self.present:
            fix = "add 'command': the program to start"
            if "url" in self.present:
                fix = "add 'command', or write 'type': 'http' for a server with a URL"
            self.problem("", f"Missing 'command' in stdio server '{self.name}'", fix)
        if written.command is None:
            return None
        program, *words = written.command
        args = (*words, *(written.args or ()))
        if not args and re.search(r"\S\s+\S", program) and not os.path.exists(program):
            self.warnings.append(
                f"{join_path(self.path, 'command')}: the whole string is used as the name of one program;"
                f" to run '{shorten(program.split()[0], 40)}', move the rest to 'args'"
            )
        found = set_members(written)
        own = {name: found[name] for name in ("env", "umask") if name in found}
        spec = StdioSpec(
            **common,  # type: ignore[arg-type]  # the names and types are those of ServerSpec
            **own,
            command=expand_home(program, self.environ),
            args=args,
            cwd=self._local_path(written.cwd),
        )
        return apply_traits(
            spec, has_share="share" in self.present, has_concurrency="concurrency" in self.present
        )

    def _remote(self, kind: RemoteKind, common: dict[str, object]) -> RemoteSpec | None:
        written = self.written
        self._check_headers(written.headers or {})
        oauth = read_oauth(written.oauth, join_path(self.path, "oauth"), self.problems, self.warnings)
        if "url" not in self.present:
            message = f"Missing 'url' in {kind} server '{self.name}'"
            self.problem("", message, "add 'url': the address of the server")
        if written.url is None:
            return None
        if "url" not in self.unresolved:
            self._check_url(kind, written.url)
        spec = RemoteSpec(
            **common,  # type: ignore[arg-type]  # the names and types are those of ServerSpec
            kind=kind,
            url=written.url,
            headers=written.headers or {},
            kind_is_explicit="type" in self.present,
            ca_file=self._local_path(written.ca_file),
            oauth=oauth,
        )
        has_people = self.settings.http is not None and self.settings.http.jwt is not None
        if has_people and "share" not in self.present and spec.may_log_in and oauth.grant == "code":
            spec = attrs.evolve(spec, share="person")  # nobody uses the login of another
        return spec

    def _local_path(self, path: str | None) -> str | None:
        return None if path is None else os.path.normpath(self.base_dir / expand_home(path, self.environ))

    def _check_headers(self, headers: Mapping[str, str]) -> None:
        for header, value in headers.items():
            if not _HEADER.fullmatch(header):
                self.problem("headers", "invalid header name", "use letters, digits and '-'", header)
            elif any((c < " " and c != "\t") or c == "\x7f" for c in value):
                message = "the header's value contains a line break or control character"
                self.problem("headers", message, "remove it; did it come from a variable?", header)
            elif not value.isascii():
                message = "the header's value contains a character that is not ASCII"
                self.problem("headers", message, "encode it as the server expects", header)

    def _check_url(self, kind: RemoteKind, url: str) -> None:
        """Add a problem if the URL is not valid. It is never quoted: it may contain a secret."""
        schemes = _SCHEMES[kind]
        fix = f"write {schemes[-1]}://HOST/PATH"
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
            (host or "").encode("idna")  # as to look it up; fails for an empty or too long label
        except ValueError as error:
            self.problem("url", f"'url' is not a valid URL: {shorten(str(error), 60)}", fix)
            return
        if parts.scheme not in schemes:
            message = f"'url' for {kind} servers must begin with {schemes[0]}: or {schemes[1]}:"
        elif not host:
            message = "'url' has no host"
        elif re.search(r"[\s\x00-\x1f]", url):
            message, fix = "'url' contains a space or control character", "write it as %20, or remove it"
        else:
            return
        self.problem("url", message, fix)


# ── known servers ────────────────────────────────────────────────────────────────────────────────
# Whether clients may share them, and which calls may overlap, by package. The definition takes precedence.


class ServerTraits(msgspec.Struct, frozen=True):
    """Defaults for one kind of server. None: the general default. With any of them, the server has no
    second process (`ServerSpec.is_single_process`)."""

    share: Share | None = None
    concurrency: Concurrency | None = None


_TABLE: tuple[tuple[str, ServerTraits], ...] = (
    # The process numbers thoughts consecutively, so two conversations would continue each other's.
    (r"server-sequential-thinking", ServerTraits(share="client")),
    # Pages and logins belong to the process. Without --isolated, a second process cannot open the profile.
    (r"(playwright/mcp|playwright-mcp)\b.*--isolated", ServerTraits(share="client")),
    (r"chrome-devtools-mcp\b.*--isolated", ServerTraits(share="client")),
    (r"server-puppeteer|mobile-mcp", ServerTraits(share="client")),
    (r"playwright/mcp|playwright-mcp|chrome-devtools-mcp", ServerTraits(share="all")),
    # The roots that clients declare replace the directories in its command, also after the clients have left.
    (r"server-filesystem|mcp/filesystem", ServerTraits(share="declared-root")),
    # The database file is locked by the process that opened it first.
    (r"server-motherduck|server-duckdb", ServerTraits(share="all")),
    # Reads its file, changes it and writes it back: 19 of 20 concurrent calls are lost (measured, 2026.1.26).
    (r"server-memory", ServerTraits(concurrency="writes")),
)
# A package `server-x` installs a program `mcp-server-x`.
_PATTERNS = tuple((re.compile(rf"(^|[\s/@])(mcp-)?({pattern})"), traits) for pattern, traits in _TABLE)


def find_traits(command: str, args: Sequence[str]) -> ServerTraits:
    """Return the traits of the server that this command line starts."""
    line = " ".join((command, *args))[:2000]
    return next((traits for pattern, traits in _PATTERNS if pattern.search(line)), ServerTraits())


def apply_traits(spec: StdioSpec, *, has_share: bool, has_concurrency: bool) -> StdioSpec:
    """Fill in `share` and `concurrency` where the definition does not set them, and rule out a second process
    of a server that is known."""
    traits = find_traits(spec.command, spec.args)
    share = spec.share if has_share else traits.share or spec.share
    concurrency = spec.concurrency if has_concurrency else traits.concurrency or spec.concurrency
    is_single_process = spec.is_single_process or traits != ServerTraits()
    return attrs.evolve(spec, share=share, concurrency=concurrency, is_single_process=is_single_process)
