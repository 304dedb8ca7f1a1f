"""Finds servers that are probably the same, although a variable, a header or a version differs."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import attrs

from ctl.editors.discovery import ImportCandidate, valid_server_name
from ctl.editors.inline_secrets import lift_secrets, masked_definition
from ctl.editors.merging import (
    UNKNOWN,
    Environ,
    Identity,
    MergedServer,
    comparable,
    fill_in_secrets,
    identity,
)
from mcpd.config.masking import MASK
from mcpd.model.package_runners import find_runner
from mcpd.model.server_spec import definition_parts

_PACKAGE_VERSION = re.compile(r"((?:@[\w.-]+/)?[\w.-]+)(?:@[\w.^~*-]+|==[\w.*]+)")
_OPTION_WITH_VALUE = re.compile(r"--[A-Za-z0-9][\w.-]*=.")
_NO_MEANING = frozenset({"-y", "--yes", "-q", "--quiet"})
"""Options that do not decide which server a package runner starts."""


@attrs.frozen
class SimilarServer:
    """A server that another one resembles."""

    name: str
    differs_in: tuple[str, ...]
    """The names of the parts that differ, such as `env.GITHUB_TOKEN`. The values may be secret."""
    is_in_mcpd: bool
    only_by_name: bool = False
    """Whether they have nothing in common but the name in the editors' files."""
    values: Mapping[str, str] = attrs.field(factory=dict)
    """How some of these parts differ, without secrets."""

    def describe(self) -> str:
        where = " (in mcpd)" if self.is_in_mcpd else ""
        parts = self.describe_parts()
        if self.only_by_name:
            return f"{self.name}{where}, which has the same name; different: {parts}"
        return f"{self.name}{where}, except for {parts}"

    def describe_parts(self) -> str:
        """Return what differs, as in `args (/src instead of /home)`."""
        shown = [(part, self.values.get(part)) for part in self.differs_in]
        return ", ".join(f"{part} ({value})" if value else part for part, value in shown)


@attrs.frozen
class KnownServer:
    """A server with which others are compared."""

    name: str
    definition: Mapping[str, object] = attrs.field(repr=False)
    is_in_mcpd: bool


def find_similar(
    servers: Sequence[MergedServer], ours: Mapping[str, Mapping[str, object]], environ: Environ
) -> dict[str, SimilarServer]:
    """Return, for each server to import, the one that it resembles: in mcpd, or else to be imported too.

    Two servers are similar if they run the same program with the same arguments, or have the same URL,
    regardless of versions of packages, spellings of options and paths, environment, headers, and directory.
    Otherwise, they are if a package runner starts the same package and one of them has all arguments of the
    other one, or if they have the same name, regardless of capital letters. A server of a project is compared
    with those of the user, and not the other way round, because it is the exception.
    """
    by_likeness: dict[Identity, list[KnownServer]] = {}
    by_package: dict[str, list[tuple[Counter[object], KnownServer]]] = {}
    by_name: dict[str, KnownServer] = {}
    for name, definition in ours.items():
        known = KnownServer(name, definition, True)
        by_name.setdefault(name.casefold(), known)
        if key := _likeness(definition, environ):
            by_likeness.setdefault(key, []).append(known)
            by_package.setdefault(_package(definition), []).append((Counter(key[2:]), known))
    found: dict[str, SimilarServer] = {}
    for server in sorted(servers, key=_is_of_project):
        key = _likeness(server.definition, environ)
        candidates = by_likeness.get(key, []) if key else []
        package, arguments = (_package(server.definition), Counter(key[2:])) if key else ("", Counter())
        if package and not candidates:
            others = by_package.get(package, [])
            candidates = [each for its, each in others if its <= arguments or arguments <= its]
        wanted = _name_in_file(server).casefold()
        namesake = by_name.get(wanted)
        if candidates:
            differing = {
                each.name: _differing_parts(server.definition, each.definition, environ)
                for each in candidates
            }
            best = min(
                candidates, key=lambda each: (len(differing[each.name]), each.name.casefold() != wanted)
            )
            found[server.name] = compare(server.definition, best, environ)
        elif namesake is not None and key is not None:
            similar = compare(server.definition, namesake, environ)
            found[server.name] = attrs.evolve(similar, only_by_name=True)
        if not candidates:
            known = KnownServer(server.name, server.definition, False)
            by_name.setdefault(wanted, known)
            if key:
                by_likeness[key] = [known]
                by_package.setdefault(package, []).append((arguments, known))
    return {server.name: found[server.name] for server in servers if server.name in found}


def why_not_in_mcpd(
    candidate: ImportCandidate, imported_as: str, ours: Mapping[str, Mapping[str, object]], environ: Environ
) -> str:
    """Return why an entry is none of mcpd's servers, and how it differs from the nearest one.

    `imported_as`: the server as which it was imported; empty if it was not.
    """
    definition = comparable(candidate)
    if imported_as in ours:
        similar = compare(definition, KnownServer(imported_as, ours[imported_as], True), environ)
    else:
        server = MergedServer(candidate.name, definition, (candidate.source,))
        nearest = find_similar([server], ours, environ).get(server.name)
        if nearest is None:
            return "mcpd does not have it"
        similar = nearest
        if similar.only_by_name and not {"command", "url"}.isdisjoint(similar.differs_in):
            return f"mcpd does not have it, and its {similar.name} is another server"
    return f"it differs from {similar.name} in mcpd: {similar.describe_parts()}"


def compare(definition: Mapping[str, object], known: KnownServer, environ: Environ) -> SimilarServer:
    """Return how a definition differs from that of a server."""
    parts = _differing_parts(definition, known.definition, environ) or ("the directory",)
    here, there = _shown(definition), _shown(known.definition)
    values = {part: _instead(here[part], there[part]) for part in parts if part in here and part in there}
    return SimilarServer(known.name, parts, known.is_in_mcpd, values=values)


def _shown(definition: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the parts whose values are shown, with secrets masked."""
    safe = masked_definition(lift_secrets("x", definition, {}))
    if "url" in safe:
        return {"url": [str(safe["url"])]}
    args = safe.get("args")
    words = [str(word) for word in args] if isinstance(args, list) else []
    return {"command": [str(safe.get("command"))], "args": [UNKNOWN.sub(MASK, word) for word in words]}


def _instead(here: Sequence[str], there: Sequence[str]) -> str:
    """Describe the words in which two lists differ, without those that they have in common at either end."""
    least = min(len(here), len(there))
    head = next((n for n in range(least) if here[n] != there[n]), least)
    tail = next((n for n in range(least - head) if here[-1 - n] != there[-1 - n]), least - head)
    ours, theirs = (shlex.join(words[head : len(words) - tail]) for words in (here, there))
    if not (ours and theirs):
        return f"with {ours}" if ours else f"without {theirs}" if theirs else "another secret"
    return f"{ours} instead of {theirs}"


def _is_of_project(server: MergedServer) -> bool:
    return bool(server.sources) and all(each.scope in ("project", "local") for each in server.sources)


def _name_in_file(server: MergedServer) -> str:
    """Return its name before it was changed because another server has it."""
    return valid_server_name(server.sources[0].name) if server.sources else server.name


def _likeness(definition: Mapping[str, object], environ: Environ) -> Identity | None:
    """Return what similar servers have in common; None if the definition is invalid."""
    match identity(definition, None, environ):
        case ("program", str(program), tuple(args), *_):
            return ("program", program, *map(_normal, _split_options(map(str, args))))
        case ("url", str(url), *_):
            parts = urlsplit(url)
            return ("url", parts.netloc.lower(), parts.path.rstrip("/"))
    return None


def _package(definition: Mapping[str, object]) -> str:
    """Return the package that a package runner starts, without its version; empty if there is none."""
    command, args = definition.get("command"), definition.get("args")
    words = [str(word) for word in args] if isinstance(args, list) else []
    runner = find_runner(command, words) if isinstance(command, str) else None
    return "" if runner is None or runner.container else _normal(runner.package)


def _split_options(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments without those that have no meaning, and `--x=y` as `--x y`."""
    for argument in arguments:
        if argument not in _NO_MEANING:
            yield from argument.split("=", 1) if _OPTION_WITH_VALUE.match(argument) else (argument,)


def _normal(argument: str) -> str:
    """Return an argument without the version of a package; a path without `~`, links and a final slash."""
    if argument.startswith(("/", "~", "./", "../")):
        return os.path.realpath(os.path.expanduser(argument))
    found = _PACKAGE_VERSION.fullmatch(argument)
    return found[1] if found else argument


def _differing_parts(
    one: Mapping[str, object], other: Mapping[str, object], environ: Environ
) -> tuple[str, ...]:
    here, there = (definition_parts(fill_in_secrets(each, environ)) for each in (one, other))
    names = dict.fromkeys([*here, *there])
    differing = [name for name in names if name != "enabled" and here.get(name) != there.get(name)]
    if "type" in differing and not ("type" in here and "type" in there):
        differing.remove("type")  # many editors leave it out
    return tuple(differing)
