"""What was imported, from where, and what it said then: as digests, so that no secret is in there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from ctl.editors.discovery import DiscoveredEntries, EntrySource, ImportCandidate
from ctl.editors.editor_catalog import BY_NAME
from ctl.editors.inline_secrets import LiftedDefinition, lift_secrets
from ctl.editors.merging import (
    Environ,
    MergedServer,
    fill_in_secrets,
    matching_server,
    replace_text,
    server_identities,
)
from ctl.editors.variables import secret_reference
from mcpd.model.server_spec import definition_parts
from mcpd.support.atomic_files import write_atomically
from mcpd.support.paths import UnusablePath, private_directory, state_dir

Digests = Mapping[str, str]
"""Part of a definition → digest of its value."""

EntryKey = tuple[str, str, str, str]
"""An entry's place: path, scope, project, name."""


@attrs.frozen
class ImportedEntry:
    """One entry of an editor's file, when a server of ours was last in step with it."""

    server: str
    editor: str
    theirs: Digests
    """As the editor had it, in our words."""
    ours: Digests
    """As we had it."""
    unfolded: bool = False
    """Whether it was taken over without its `mcp-remote`."""


class ImportHistory:
    """What is remembered of the imports into one configuration file. Reads once, tolerantly: what cannot be
    read was never imported."""

    def __init__(self, environ: Mapping[str, str], config: Path) -> None:
        self.path = Path(state_dir(environ)) / "imports.json"
        self.entries: dict[EntryKey, ImportedEntry] = {}
        self._config = str(config)
        self._salt = secrets.token_hex(16)
        self._other_configs: list[object] = []
        try:
            data = json.loads(self.path.read_bytes())
            self._salt = str(data["salt"])
            for one in data["entries"]:
                if one["config"] == self._config:
                    path, scope, project, name = one["where"]
                    self.entries[path, scope, project, name] = ImportedEntry(
                        one["server"], one["editor"], dict(one["theirs"]), dict(one["ours"]), one["unfolded"]
                    )
                else:
                    self._other_configs.append(one)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self.entries.clear()

    def get(self, source: EntrySource) -> ImportedEntry | None:
        """What is remembered of an entry."""
        return self.entries.get(entry_key(source))

    def digests(self, definition: Mapping[str, object]) -> dict[str, str]:
        """Of each part, salted: short secrets could be guessed from bare ones."""
        return {
            part: hashlib.sha256(
                f"{self._salt} {part} {json.dumps(value, sort_keys=True, default=str)}".encode()
            ).hexdigest()[:32]
            for part, value in definition_parts(definition).items()
        }

    def save(self) -> None:
        """Write it down. Raises OSError or UnusablePath."""
        mine = [
            {"config": self._config, "where": list(place), **attrs.asdict(one)}
            for place, one in self.entries.items()
        ]
        private_directory(str(self.path.parent))
        text = json.dumps({"salt": self._salt, "entries": [*self._other_configs, *mine]}, indent=1)
        write_atomically(self.path, text.encode("utf-8", "surrogatepass"), 0o600)


def entry_key(source: EntrySource) -> EntryKey:
    """The place of an entry, however it was found."""
    return str(source.path), source.scope, str(source.project or ""), source.name


def save_history(memory: ImportHistory) -> str:
    """Keep it; what went wrong, for people: an import is done by then, and counts."""
    try:
        memory.save()
    except (OSError, UnusablePath) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"cannot write {os.fspath(memory.path)}: {reason}; what changes later will look new"
    return ""


Definition = Mapping[str, object]
_ENABLED = "enabled"


@attrs.frozen
class ServerUpdate:
    """A server of ours with what changed in an editor taken over."""

    server: MergedServer
    current: Definition = attrs.field(repr=False)
    parts: tuple[str, ...] = ()
    """What changed there, and is not the same here: `args`, `env.TOKEN`."""
    changed_here: tuple[str, ...] = ()
    """Those of them that were changed here, otherwise."""
    unchanged_in: tuple[str, ...] = ()
    """Where else it stands as it was, for people."""
    differs_in: tuple[str, ...] = ()
    """Where it has changed, too, in another way."""

    @property
    def conflicts(self) -> list[str]:
        """What makes this more than keeping up, for people: so it is not done unasked."""
        doubts = [f"{', '.join(self.changed_here)} changed here, too"] if self.changed_here else []
        if self.differs_in:
            doubts.append(f"it has changed in another way in {', '.join(self.differs_in)}")
        return doubts + ([f"it is as it was in {', '.join(self.unchanged_in)}"] if self.unchanged_in else [])


@attrs.define
class ImportDrift:
    """The entries that were imported once, by what has become of them."""

    updates: list[ServerUpdate] = attrs.field(factory=list)
    known: list[tuple[str, EntrySource]] = attrs.field(factory=list)
    """Our server's name, and an entry that says what it said."""
    changed_here: set[EntrySource] = attrs.field(factory=set)
    """Those of the known whose server is not what it was."""
    removed: set[EntrySource] = attrs.field(factory=set)
    """Whose server is gone from mcpd."""
    ambiguous: set[EntrySource] = attrs.field(factory=set)
    """Of which there are two with one name in a list: which is which cannot be told the next time."""
    definitions: dict[EntrySource, Definition] = attrs.field(factory=dict, repr=False)
    """What each entry says, see `as_written`."""
    remaining: list[ImportCandidate] = attrs.field(factory=list)
    """All that has to be looked at by what it says, those whose server is gone among them."""


def compare_with_history(
    discovered: DiscoveredEntries,
    history: ImportHistory,
    ours: Mapping[str, Definition],
    environ: Environ,
    disabled_by_us: Callable[[EntrySource], bool],
) -> ImportDrift:
    """Sort the candidates. `taken`: whether an entry is off because mcpd has it (`install --take-over`)."""
    result = ImportDrift()
    here = server_identities(ours, environ)
    moved: dict[str, list[tuple[ImportCandidate, tuple[str, ...]]]] = {}
    times = Counter(one.source for one in discovered.candidates)
    result.ambiguous = {source for source, number in times.items() if number > 1}
    result.definitions = {
        one.source: as_written(one, disabled_by_us(one.source)) for one in discovered.candidates
    }
    for one in discovered.candidates:
        then = history.get(one.source) if one.source not in result.ambiguous else None
        if then is None or then.server not in ours:
            if then is not None and ours:
                result.removed.add(one.source)
            result.remaining.append(one)
            continue
        parts = _changed_parts(result.definitions[one.source], history, then, ours[then.server], environ)
        if not parts:
            result.known.append((then.server, one.source))
            if history.digests(fill_in_secrets(ours[then.server], environ)) != then.ours:
                result.changed_here.add(one.source)
        elif matching_server(one, here, environ) not in (None, then.server):
            result.remaining.append(one)  # it has become another one that we have
        else:
            moved.setdefault(then.server, []).append((one, parts))
    for name, found in moved.items():
        still = _unchanged_editors(
            name, history, discovered, {one.source for one, _ in found}, disabled_by_us
        )
        result.updates.append(_make_update(name, ours[name], found, history, environ, still))
    return result


def as_written(one: ImportCandidate, taken: bool) -> dict[str, object]:
    """Its definition with the values that come from other files, to notice when those change; and without
    what `install --take-over` did to it."""
    definition = {key: value for key, value in one.definition.items() if not (taken and key == _ENABLED)}
    for need in one.needed_secrets:
        if need.value is not None:
            definition = replace_text(definition, secret_reference(need.name), need.value)
    return definition


def lift_update_secrets(change: ServerUpdate, secret_names: dict[str, str]) -> LiftedDefinition:
    """Its definition with the secrets lifted out of what comes from the editor; see `lifted`."""
    new = lift_secrets(
        change.server.name, _apply_parts({}, change.server.definition, change.parts), secret_names
    )
    return LiftedDefinition(_apply_parts(change.server.definition, new.definition, change.parts), new.secrets)


def _changed_parts(
    theirs: Definition, memory: ImportHistory, then: ImportedEntry, ours: Definition, environ: Environ
) -> tuple[str, ...]:
    """The parts that are not what they were there, nor what they are here."""
    now = memory.digests(theirs)
    here = definition_parts(fill_in_secrets(ours, environ))
    there = definition_parts(fill_in_secrets(theirs, environ))
    return tuple(
        part
        for part in dict.fromkeys([*now, *then.theirs])
        if now.get(part) != then.theirs.get(part)
        and (part not in here or part not in there or here[part] != there[part])
        and (part in here or part in there)
        and not (part == _ENABLED and here.get(part, True) == there.get(part, True))
    )


def _make_update(
    name: str,
    ours: Definition,
    found: Sequence[tuple[ImportCandidate, tuple[str, ...]]],
    memory: ImportHistory,
    environ: Environ,
    still: tuple[str, ...],
) -> ServerUpdate:
    """One change for a server, from all entries that agree on it; the nearest scope comes first."""
    best, parts = found[0]
    definition = _apply_parts(ours, best.definition, parts)
    agreeing = [one for one, its in found if _apply_parts(ours, one.definition, its) == definition]
    otherwise = tuple(dict.fromkeys(one.source.title for one, _ in found if one not in agreeing))
    then = memory.get(best.source)
    assert then is not None, "it was found by what is remembered"
    now = memory.digests(fill_in_secrets(ours, environ))
    here_too = tuple(part for part in parts if now.get(part) != then.ours.get(part))
    text = str(definition)
    needed = tuple(one for one in best.needed_secrets if secret_reference(one.name) in text)
    sources = tuple(one.source for one in agreeing)
    server = MergedServer(name, definition, sources, best.notes, needed)
    return ServerUpdate(server, ours, parts, here_too, still, otherwise)


def _apply_parts(ours: Definition, theirs: Definition, parts: Sequence[str]) -> dict[str, object]:
    """`ours` with these parts as they are in `theirs`."""
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
        result.pop("cwd", None)  # where a program ran, which the editor did not say
    return result


def _copy_part(target: dict[str, object], key: str, there: Mapping[str, object], part: str) -> None:
    if part in there:
        target[key] = there[part]
    else:
        target.pop(key, None)


def _unchanged_editors(
    name: str,
    memory: ImportHistory,
    seen: DiscoveredEntries,
    moved: set[EntrySource],
    taken: Callable[[EntrySource], bool],
) -> tuple[str, ...]:
    """The editors in which the server stands as it was, for all that we know."""
    gone = {entry_key(source) for source in moved}
    there = {entry_key(one.source) for one in seen.candidates if not taken(one.source)}
    read = {str(path) for path in seen.files}
    titles: dict[str, None] = {}
    for place, then in memory.entries.items():
        if then.server != name or place in gone:
            continue
        if place in there or (place[0] not in read and os.path.lexists(place[0])):
            titles[BY_NAME[then.editor].title if then.editor in BY_NAME else place[0]] = None
    return tuple(titles)
