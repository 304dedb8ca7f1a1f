"""Merges the entries of several files: equal ones become one server, and similar ones are left out."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from ctl.editors.convert_entry import is_proxy, unwrap_proxy
from ctl.editors.read_entries import EntrySource, ImportCandidate
from ctl.editors.secrets import extract_secrets, replace_text
from ctl.editors.variables import NeededSecret, secret_reference
from mcpd.config.definition_view import is_enabled
from mcpd.config.secret_store import read_secrets
from mcpd.config.server_specs import MAX_NAME_LENGTH, parse_servers
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec
from mcpd.model.package_runners import find_runner
from mcpd.model.server_spec import RemoteSpec, ServerSpec, StdioSpec, definition_parts

Definition = Mapping[str, object]
Environ = Mapping[str, str]
Identity = tuple[object, ...]

_LIMITS = ("timeout", "connectTimeout", "includeTools", "excludeTools")
"""Members with which a definition provides less than mcpd's defaults, or something else."""
_SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts", ".jar", ".rb", ".sh")
_PACKAGE_VERSION = re.compile(r"((?:@[\w.-]+/)?[\w./-]+?)(?:(?:@|==|:)[\w.^~*-]+)?")


@attrs.frozen
class MergedServer:
    """One server to import, from one or several files."""

    name: str
    definition: dict[str, object] = attrs.field(repr=False)
    sources: tuple[EntrySource, ...]
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()


@attrs.frozen
class KnownEntry:
    """An entry for a server that mcpd has, or that is imported from another file."""

    source: EntrySource
    server: str
    differs_in: tuple[str, ...] = ()
    """The parts in which a similar server differs, such as `env.TOKEN`. Empty if it is the same server."""


@attrs.frozen
class MergeResult:
    """Servers to import, and entries for servers that there are already."""

    servers: tuple[MergedServer, ...]
    known: tuple[KnownEntry, ...]
    """Entries for servers that mcpd has."""
    similar: tuple[KnownEntry, ...]
    """Entries that are not imported, because another server has the same package, URL or name."""


@attrs.frozen
class KnownServers:
    """Finds the servers in mcpd that entries mean.

    A name never decides: two editors may have different servers, or different credentials, under one name.
    """

    servers: Mapping[str, Definition] = attrs.field(repr=False)
    environ: Environ = attrs.field(repr=False)

    @cached_property
    def _identities(self) -> dict[Identity, str]:
        """The names by identity; of equal servers, the first that is enabled."""
        found: dict[Identity, str] = {}
        for name, definition in sorted(self.servers.items(), key=lambda each: not is_enabled(each[1])):
            found.setdefault(identity(definition, None, self.environ), name)
        return found

    def find(self, one: ImportCandidate) -> str | None:
        """Return the name of the server with the definition of a candidate, if any.

        An import may have replaced `mcp-remote` by the URL behind it.
        """
        definition = filled(one)
        behind = unwrap_proxy(definition)
        keys = [
            identity(each, cwd, self.environ)
            for each in (definition, *([] if behind is None else [behind]))
            for cwd in (_effective_cwd(one), _cwd(one))
        ]
        return next((self._identities[key] for key in keys if key in self._identities), None)

    def similar_to(self, one: ImportCandidate) -> KnownEntry | None:
        """Return the server with the same package or URL as a candidate, or else with the same name."""
        wanted, definition = likeness(filled(one), self.environ), filled(one)
        alike = [name for name, its in self._likenesses.items() if wanted is not None and its == wanted]
        if not alike:
            alike = [name for name in self.servers if name.casefold() == one.name.casefold()]
        found = [(name, differing_parts(definition, self.servers[name], self.environ)) for name in alike]
        found.sort(key=lambda each: (each[0].casefold() != one.name.casefold(), len(each[1])))
        return KnownEntry(one.source, *found[0]) if found else None

    @cached_property
    def _likenesses(self) -> dict[str, Identity | None]:
        return {name: likeness(each, self.environ) for name, each in self.servers.items()}


def merge_candidates(
    candidates: Iterable[ImportCandidate],
    ours: Mapping[str, Definition],
    environ: Environ,
    named: Collection[str] = (),
    reserved: Iterable[str] = (),
    unusable: Collection[EntrySource] = (),
) -> MergeResult:
    """Group candidates by the identity of their server, and name each group.

    Entries of a project come last, because they are the exception. An entry with the package or URL of a
    server in mcpd, or of one from another file, is left out unless it is `named`, and so is one with only the
    name of a server in mcpd. Two similar entries in one file are meant to differ. A file of a project, which
    may come from anywhere, gets no name of the user's own entries, nor one that is `reserved`. An entry
    that is `unusable` does not cause another one to be left out.
    """
    mcpd = KnownServers(ours, environ)
    groups: dict[Identity, list[ImportCandidate]] = {}
    known: list[KnownEntry] = []
    for one in sorted(candidates, key=lambda one: one.source.scope in ("project", "local")):
        name = mcpd.find(one)
        if name is None:
            groups.setdefault(identity(filled(one), _effective_cwd(one), environ), []).append(one)
        else:
            known.append(KnownEntry(one.source, name))
    names, wanted = set(ours), frozenset(named)
    others = {name.casefold() for name in (*ours, *reserved)}
    """Names that a project may not use, whatever their case."""
    servers: list[MergedServer] = []
    usable: list[MergedServer] = []
    similar: list[KnownEntry] = []
    for group in sorted(groups.values(), key=lambda group: _rank(group, unusable)):
        group_names = {name for one in group for name in (one.name, one.source.name)}
        other = mcpd.similar_to(group[0]) or _similar_in_other_file(group, usable, environ)
        if other is not None and wanted.isdisjoint(group_names):
            similar += [attrs.evolve(other, source=one.source) for one in group]
            continue
        is_of_project = all(one.source.scope == "project" for one in group)
        servers.append(_merged(group, _free_name(group[0], names | others if is_of_project else names)))
        names.add(servers[-1].name)
        usable += [servers[-1]] if not any(one.source in unusable for one in group) else []
        others |= (
            {name.casefold() for name in (servers[-1].name, *group_names)} if not is_of_project else set()
        )
    return MergeResult(tuple(servers), tuple(known), tuple(similar))


def _rank(group: list[ImportCandidate], unusable: Collection[EntrySource]) -> tuple[bool, bool, int]:
    """Return a key that puts entries of a project last, and first those that are usable and whose secrets are
    known: of similar entries, the first one is imported."""
    unknown = (sum(secret.value is None for secret in one.needed_secrets) for one in group)
    is_unusable = any(one.source in unusable for one in group)
    return all(one.source.scope in ("project", "local") for one in group), is_unusable, min(unknown)


def _merged(group: list[ImportCandidate], name: str) -> MergedServer:
    """Merge a group, with the definition that has the fewest secrets, and the directory they all imply."""
    best = min(group, key=lambda one: len(extract_secrets("x", one.definition, {}).secrets))
    definition = for_all_editors(best.definition, [one.definition for one in group])
    implied = {one.implied_cwd for one in group}
    if "cwd" not in definition and len(implied) == 1 and best.implied_cwd is not None:
        definition["cwd"] = best.implied_cwd
    notes = [note for one in group for note in one.notes]
    if differing := _differing_limits([one.definition for one in group]):
        notes.append(f"its editors differ, so mcpd's defaults apply: {', '.join(differing)}")
    sources = tuple(one.source for one in group)
    return MergedServer(name, definition, sources, tuple(dict.fromkeys(notes)), best.needed_secrets)


def _similar_in_other_file(
    group: list[ImportCandidate], servers: list[MergedServer], environ: Environ
) -> KnownEntry | None:
    wanted, files = likeness(filled(group[0]), environ), {one.source.path for one in group}
    for server in servers if wanted is not None else ():
        elsewhere = files.isdisjoint(source.path for source in server.sources)
        if elsewhere and likeness(server.definition, environ) == wanted:
            differing = differing_parts(filled(group[0]), server.definition, environ)
            return KnownEntry(group[0].source, server.name, differing)
    return None


def filled(one: ImportCandidate) -> dict[str, object]:
    """Return the definition of a candidate with the values that other files contain."""
    definition = one.definition
    for secret in one.needed_secrets:
        if secret.value is not None:
            value = secret.value.replace("${", "$${")
            definition = replace_text(definition, secret_reference(secret.name), value)
    return definition


def identity(definition: Definition, cwd: str | None, environ: Environ) -> Identity:
    """Return what identifies a server: program, arguments, environment and directory, or URL and headers.

    `cwd` is the default directory. An unset variable or a missing secret is compared by its name.
    """
    spec = _parse(definition, environ)
    if isinstance(spec, StdioSpec):
        program = shutil.which(spec.command) or spec.command
        return ("program", program, spec.args, tuple(sorted(spec.env.items())), spec.cwd or cwd)
    if isinstance(spec, RemoteSpec):
        return ("url", spec.url, tuple(sorted(spec.headers.items())))
    return ("unread", json.dumps(definition, sort_keys=True, default=str), cwd)


def likeness(definition: Definition, environ: Environ) -> Identity | None:
    """Return the package or the URL of a server; None if it has neither.

    Versions of packages and the query of a URL do not matter. What a proxy runs is not known.
    """
    spec = _parse(unwrap_proxy(definition) or definition, environ)
    if isinstance(spec, RemoteSpec):
        parts = urlsplit(spec.url)
        return ("url", parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/"))
    if isinstance(spec, StdioSpec) and (runner := find_runner(spec.command, spec.args)):
        name = _PACKAGE_VERSION.fullmatch(runner.package)
        is_script = runner.package.startswith((".", "/")) or runner.package.endswith((".py", ".js", ".ts"))
        if name is not None and not is_script and not any(map(is_proxy, spec.args)):
            return ("package", name[1])
    return None


def program_of(definition: Definition, environ: Environ) -> Identity | None:
    """Return what servers have in common that are the same program with other options or credentials: the
    package, the URL or the script, or else the command line. None if it cannot be read.
    """
    spec, known = _parse(definition, environ), likeness(definition, environ)
    if known is not None and known[0] == "url":
        return (
            "url",
            *extract_secrets("x", {"url": f"https://{known[1]}{known[2]}"}, {}).definition.values(),
        )
    if known is not None or not isinstance(spec, StdioSpec):
        return known
    for option, word in zip(("", *spec.args), spec.args, strict=False):
        if option == "-m" or (os.path.isabs(word) and word.endswith(_SCRIPTS)):
            return ("program", os.path.realpath(word) if os.path.isabs(word) else word)
    command = os.path.realpath(shutil.which(spec.command) or spec.command)
    args = extract_secrets("x", {"args": [*spec.args]}, {}).definition["args"]
    is_relative = any(word.endswith(_SCRIPTS) for word in (spec.command, *spec.args))
    return ("program", command, str(args), spec.cwd if is_relative else None)


def differing_parts(one: Definition, other: Definition, environ: Environ) -> tuple[str, ...]:
    """Return the names of the parts in which two definitions differ; `the directory` if there are none."""
    here, there = (definition_parts(fill_in_secrets(each, environ)) for each in (one, other))
    names = dict.fromkeys([*here, *there])
    differing = [name for name in names if name != "enabled" and here.get(name) != there.get(name)]
    if "type" in differing and not ("type" in here and "type" in there):
        differing.remove("type")  # many editors leave it out
    return tuple(differing) or ("the directory",)


def _parse(definition: Definition, environ: Environ) -> ServerSpec | None:
    servers = {"x": fill_in_secrets(definition, environ)}
    for form in ("{}.unset", "http://{}.unset"):  # the second is for URLs that begin with a variable
        known = _EnvironWithPlaceholders(environ, form)
        try:
            parsed = parse_servers(servers, environ=known, settings=Settings(), base_dir=Path("/"), path="$")
        except BadSpec:
            continue
        return parsed.specs["x"]
    return None


def fill_in_secrets(definition: Definition, environ: Environ) -> dict[str, object]:
    """Replace references by the stored secrets, because an editor's file may contain the values."""
    if "${secret:" not in str(definition):
        return dict(definition)
    try:
        secrets = read_secrets(environ)
    except BadSpec:
        secrets = {}  # reported where the secrets are needed
    for name, value in secrets.items():
        definition = replace_text(definition, secret_reference(name), value.replace("${", "$${"))
    return replace_text(definition, "${secret:", "$${secret:")


class _EnvironWithPlaceholders(dict[str, str]):
    """An environment in which an unset variable has its own name as its value."""

    def __init__(self, environ: Environ, form: str) -> None:
        super().__init__(environ)
        self.form = form

    def get(self, name: str, default: object = None) -> str:
        value = super().get(name)
        return self.form.format(name) if value is None else value


def _cwd(one: ImportCandidate) -> str | None:
    written = one.definition.get("cwd")
    return written if isinstance(written, str) else one.implied_cwd


def _effective_cwd(one: ImportCandidate) -> str | None:
    """Return its directory if it matters: without relative paths in its arguments, it runs anywhere."""
    if "cwd" in one.definition or one.implied_cwd is None:
        return _cwd(one)
    args = one.definition.get("args")
    words = [one.definition.get("command"), *(args if isinstance(args, list) else [])]
    relative = any(
        isinstance(word, str)
        and not os.path.isabs(word)
        and ("/" in word or "." in word)
        and os.path.exists(os.path.join(one.implied_cwd, word))
        for word in words
    )
    return one.implied_cwd if relative else None


def for_all_editors(definition: Definition, group: Sequence[Definition]) -> dict[str, object]:
    """Return the definition of a server that stands for a group, so that no editor loses anything by the
    settings of another one: it is enabled if any of them is, and what they limit differently is left out.
    """
    shared = {key: value for key, value in definition.items() if key not in _differing_limits(group)}
    if any(is_enabled(one) for one in group):
        shared.pop("enabled", None)
    return shared


def _differing_limits(group: Sequence[Definition]) -> list[str]:
    return [key for key in _LIMITS if any(one.get(key) != group[0].get(key) for one in group)]


def _free_name(one: ImportCandidate, names: set[str]) -> str:
    ends = ["", f"-{one.source.editor}", *(f"-{one.source.editor}-{n}" for n in range(2, 1000))]
    return next(
        name
        for end in ends
        if (name := one.name[: MAX_NAME_LENGTH - len(end)] + end) not in names
        and name.casefold() not in names
    )
