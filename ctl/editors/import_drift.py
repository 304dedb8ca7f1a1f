"""Compares the entries of the editors with the import history: what changed in the editors since."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs

from ctl.editors.discovery import DiscoveredEntries, EntrySource, ImportCandidate
from ctl.editors.editor_catalog import BY_NAME
from ctl.editors.import_history import ImportedEntry, ImportHistory, entry_key
from ctl.editors.inline_secrets import LiftedDefinition, lift_secrets
from ctl.editors.merging import (
    Environ,
    MergedServer,
    comparable,
    fill_in_secrets,
    matching_server,
    server_identities,
)
from ctl.editors.server_of_entry import ServerMatcher, as_written
from ctl.editors.variables import secret_reference
from mcpd.model.server_spec import definition_parts

Definition = Mapping[str, object]
_ENABLED = "enabled"


@attrs.frozen
class ServerUpdate:
    """A server in mcpd with the changes from an editor applied."""

    server: MergedServer
    current: Definition = attrs.field(repr=False)
    parts: tuple[str, ...] = ()
    """What changed in the editor and differs from mcpd, such as `args` or `env.TOKEN`."""
    changed_here: tuple[str, ...] = ()
    """The parts that were also changed in mcpd, to a different value."""
    unchanged_in: tuple[str, ...] = ()
    """The titles of other editors in which the entry has not changed."""
    differs_in: tuple[str, ...] = ()
    """The titles of other editors in which the entry was changed differently."""

    @property
    def conflicts(self) -> list[str]:
        """Return why the user must confirm the update."""
        return [
            f"{text} {', '.join(names)}"
            for text, names in (
                ("the definition was changed both in mcpd and in the editor:", self.changed_here),
                ("the entry was changed differently in", self.differs_in),
                ("the entry has not changed in", self.unchanged_in),
            )
            if names
        ]


@attrs.define
class ImportDrift:
    """The entries of the editors, compared with the import history."""

    updates: list[ServerUpdate] = attrs.field(factory=list)
    known: list[tuple[str, EntrySource]] = attrs.field(factory=list)
    """Name of the server in mcpd, and an entry that has not changed since its import."""
    changed_here: set[EntrySource] = attrs.field(factory=set)
    """Entries in `known` whose server has changed in mcpd."""
    removed: set[EntrySource] = attrs.field(factory=set)
    """Entries whose server was removed from mcpd."""
    ambiguous: set[EntrySource] = attrs.field(factory=set)
    """Entries that share their name with another one in a list, so a later import could mix them up."""
    definitions: dict[EntrySource, Definition] = attrs.field(factory=dict, repr=False)
    """The definition of each entry, see `as_written`."""
    remaining: list[ImportCandidate] = attrs.field(factory=list)
    """Entries to match by their definition: new ones, and those whose server was removed."""


def compare_with_history(
    discovered: DiscoveredEntries,
    history: ImportHistory,
    ours: Mapping[str, Definition],
    environ: Environ,
    disabled_by_us: Callable[[EntrySource], bool],
) -> ImportDrift:
    """Sort the candidates. `disabled_by_us` tells whether `mcpctl install --take-over` disabled an entry."""
    result = ImportDrift()
    matcher = ServerMatcher(ours, environ, history)
    here = server_identities(ours, environ)
    changed: dict[str, list[tuple[ImportCandidate, tuple[str, ...]]]] = {}
    times = Counter(one.source for one in discovered.candidates)
    result.ambiguous = {source for source, number in times.items() if number > 1}
    result.definitions = {
        one.source: as_written(one, disabled_by_us(one.source)) for one in discovered.candidates
    }
    for one in discovered.candidates:
        imported = history.get(one.source) if one.source not in result.ambiguous else None
        name = "" if imported is None else matcher.current_name(imported) or imported.server
        if imported is None or name not in ours:
            if imported is not None and ours:
                result.removed.add(one.source)
            result.remaining.append(one)
            continue
        parts = _changed_parts(one, result.definitions[one.source], history, imported, ours[name], environ)
        if not parts:
            result.known.append((name, one.source))
            if history.digests(fill_in_secrets(ours[name], environ)) != imported.ours:
                result.changed_here.add(one.source)
        elif matching_server(one, here, environ) not in (None, name):
            result.remaining.append(one)  # it was changed into another server that mcpd has
        else:
            changed.setdefault(name, []).append((one, parts))
    for name, found in changed.items():
        unchanged_in = _unchanged_editors(
            name, history, discovered, {one.source for one, _ in found}, disabled_by_us
        )
        result.updates.append(_make_update(name, ours[name], found, history, environ, unchanged_in))
    return result


def lift_update_secrets(change: ServerUpdate, secret_names: dict[str, str]) -> LiftedDefinition:
    """Lift the secrets out of the parts that come from the editor; see `lift_secrets`."""
    new = lift_secrets(
        change.server.name, apply_parts({}, change.server.definition, change.parts), secret_names
    )
    return LiftedDefinition(apply_parts(change.server.definition, new.definition, change.parts), new.secrets)


def _changed_parts(
    one: ImportCandidate,
    theirs: Definition,
    history: ImportHistory,
    imported: ImportedEntry,
    ours: Definition,
    environ: Environ,
) -> tuple[str, ...]:
    """Return the parts that changed in the editor and differ from mcpd."""
    now = history.digests(theirs)
    here = definition_parts(fill_in_secrets(ours, environ))
    there = {part: value for part, value in definition_parts(comparable(one)).items() if part in now}
    return tuple(
        part
        for part in dict.fromkeys([*now, *imported.theirs])
        if now.get(part) != imported.theirs.get(part)
        and (part not in here or part not in there or here[part] != there[part])
        and (part in here or part in there)
        and not (part == "trust" and part not in now)  # former versions imported it; now it is a rule
        and not (part == _ENABLED and here.get(part, True) == there.get(part, True))
    )


def _make_update(
    name: str,
    ours: Definition,
    found: Sequence[tuple[ImportCandidate, tuple[str, ...]]],
    history: ImportHistory,
    environ: Environ,
    unchanged_in: tuple[str, ...],
) -> ServerUpdate:
    """Make one update from all entries that agree on it. The first entry, of the nearest scope, wins."""
    best, parts = found[0]
    definition = apply_parts(ours, best.definition, parts)
    agreeing = [one for one, its in found if apply_parts(ours, one.definition, its) == definition]
    differs_in = tuple(dict.fromkeys(one.source.title for one, _ in found if one not in agreeing))
    imported = history.get(best.source)
    assert imported is not None, "the entry is in the history"
    now = history.digests(fill_in_secrets(ours, environ))
    changed_here = tuple(part for part in parts if now.get(part) != imported.ours.get(part))
    text = str(definition)
    needed = tuple(one for one in best.needed_secrets if secret_reference(one.name) in text)
    sources = tuple(one.source for one in agreeing)
    server = MergedServer(name, definition, sources, best.notes, needed)
    return ServerUpdate(server, ours, parts, changed_here, unchanged_in, differs_in)


def apply_parts(ours: Definition, theirs: Definition, parts: Sequence[str]) -> dict[str, object]:
    """Return `ours` with `parts` copied from `theirs`."""
    result = dict(ours)
    there = definition_parts(theirs)
    for part in parts:
        key, dot, name = part.partition(".")
        if not dot:
            _copy_part(result, key, there, part)
            continue
        inner = result.get(key)
        below = dict(inner) if isinstance(inner, Mapping) else {}
        _copy_part(below, name, there, part)
        result[key] = below
        if not below:
            del result[key]
    if "url" in result:
        result.pop("cwd", None)  # the working directory of a program does not apply to a URL
    return result


def _copy_part(target: dict[str, object], key: str, there: Mapping[str, object], part: str) -> None:
    if part in there:
        target[key] = there[part]
    else:
        target.pop(key, None)


def _unchanged_editors(
    name: str,
    history: ImportHistory,
    discovered: DiscoveredEntries,
    changed: set[EntrySource],
    taken: Callable[[EntrySource], bool],
) -> tuple[str, ...]:
    """Return the titles of the editors in which the server has not changed, as far as known."""
    changed_keys = {entry_key(source) for source in changed}
    there = {entry_key(one.source) for one in discovered.candidates if not taken(one.source)}
    read = {str(path) for path in discovered.files}
    titles: dict[str, None] = {}
    for place, imported in history.entries.items():
        if imported.server != name or place in changed_keys:
            continue
        if place in there or (place[0] not in read and os.path.lexists(place[0])):
            titles[BY_NAME[imported.editor].title if imported.editor in BY_NAME else place[0]] = None
    return tuple(titles)
