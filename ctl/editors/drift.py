"""What has become of an entry since it was imported: as it is in the editor, as it was then, as it is here.

Only what changed in the editor is taken over, so what somebody changed here stays.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs

from ctl.editors.discovery import Candidate, Source, Survey
from ctl.editors.editor_catalog import BY_NAME
from ctl.editors.import_history import Memory, Remembered, where
from ctl.editors.inline_secrets import Lifted, lifted
from ctl.editors.merging import Lookup, Server, keys_of, known_as, replaced, with_secrets
from ctl.editors.variables import secret_reference
from mcpd.model.server_spec import definition_parts

Definition = Mapping[str, object]
_SWITCH = "enabled"


@attrs.frozen
class Change:
    """A server of ours with what changed in an editor taken over."""

    server: Server
    here: Definition = attrs.field(repr=False)
    parts: tuple[str, ...] = ()
    """What changed there, and is not the same here: `args`, `env.TOKEN`."""
    here_too: tuple[str, ...] = ()
    """Those of them that were changed here, otherwise."""
    still: tuple[str, ...] = ()
    """Where else it stands as it was, for people."""
    otherwise: tuple[str, ...] = ()
    """Where it has changed, too, in another way."""

    @property
    def doubts(self) -> list[str]:
        """What makes this more than keeping up, for people: so it is not done unasked."""
        doubts = [f"{', '.join(self.here_too)} changed here, too"] if self.here_too else []
        if self.otherwise:
            doubts.append(f"it has changed in another way in {', '.join(self.otherwise)}")
        return doubts + ([f"it is as it was in {', '.join(self.still)}"] if self.still else [])


@attrs.define
class Drift:
    """The entries that were imported once, by what has become of them."""

    changes: list[Change] = attrs.field(factory=list)
    known: list[tuple[str, Source]] = attrs.field(factory=list)
    """Our server's name, and an entry that says what it said."""
    changed_here: set[Source] = attrs.field(factory=set)
    """Those of the known whose server is not what it was."""
    removed: set[Source] = attrs.field(factory=set)
    """Whose server is gone from mcpd."""
    ambiguous: set[Source] = attrs.field(factory=set)
    """Of which there are two with one name in a list: which is which cannot be told the next time."""
    theirs: dict[Source, Definition] = attrs.field(factory=dict, repr=False)
    """What each entry says, see `as_written`."""
    rest: list[Candidate] = attrs.field(factory=list)
    """All that has to be looked at by what it says, those whose server is gone among them."""


def drift(
    seen: Survey,
    memory: Memory,
    ours: Mapping[str, Definition],
    environ: Lookup,
    taken: Callable[[Source], bool],
) -> Drift:
    """Sort the candidates. `taken`: whether an entry is off because mcpd has it (`install --take-over`)."""
    result = Drift()
    here = keys_of(ours, environ)
    moved: dict[str, list[tuple[Candidate, tuple[str, ...]]]] = {}
    times = Counter(one.source for one in seen.candidates)
    result.ambiguous = {source for source, number in times.items() if number > 1}
    result.theirs = {one.source: as_written(one, taken(one.source)) for one in seen.candidates}
    for one in seen.candidates:
        then = memory.of(one.source) if one.source not in result.ambiguous else None
        if then is None or then.server not in ours:
            if then is not None and ours:
                result.removed.add(one.source)
            result.rest.append(one)
            continue
        parts = _moved(result.theirs[one.source], memory, then, ours[then.server], environ)
        if not parts:
            result.known.append((then.server, one.source))
            if memory.digests(with_secrets(ours[then.server], environ)) != then.ours:
                result.changed_here.add(one.source)
        elif known_as(one, here, environ) not in (None, then.server):
            result.rest.append(one)  # it has become another one that we have
        else:
            moved.setdefault(then.server, []).append((one, parts))
    for name, found in moved.items():
        still = _still(name, memory, seen, {one.source for one, _ in found}, taken)
        result.changes.append(_change(name, ours[name], found, memory, environ, still))
    return result


def as_written(one: Candidate, taken: bool) -> dict[str, object]:
    """Its definition with the values that come from other files, to notice when those change; and without
    what `install --take-over` did to it."""
    definition = {key: value for key, value in one.definition.items() if not (taken and key == _SWITCH)}
    for need in one.needed:
        if need.value is not None:
            definition = replaced(definition, secret_reference(need.name), need.value)
    return definition


def safely(change: Change, taken: dict[str, str]) -> Lifted:
    """Its definition with the secrets lifted out of what comes from the editor; see `lifted`."""
    new = lifted(change.server.name, _with({}, change.server.definition, change.parts), taken)
    return Lifted(_with(change.server.definition, new.definition, change.parts), new.literals)


def _moved(
    theirs: Definition, memory: Memory, then: Remembered, ours: Definition, environ: Lookup
) -> tuple[str, ...]:
    """The parts that are not what they were there, nor what they are here."""
    now = memory.digests(theirs)
    here = definition_parts(with_secrets(ours, environ))
    there = definition_parts(with_secrets(theirs, environ))
    return tuple(
        part
        for part in dict.fromkeys([*now, *then.theirs])
        if now.get(part) != then.theirs.get(part)
        and (part not in here or part not in there or here[part] != there[part])
        and (part in here or part in there)
        and not (part == _SWITCH and here.get(part, True) == there.get(part, True))
    )


def _change(
    name: str,
    ours: Definition,
    found: Sequence[tuple[Candidate, tuple[str, ...]]],
    memory: Memory,
    environ: Lookup,
    still: tuple[str, ...],
) -> Change:
    """One change for a server, from all entries that agree on it; the nearest scope comes first."""
    best, parts = found[0]
    definition = _with(ours, best.definition, parts)
    agreeing = [one for one, its in found if _with(ours, one.definition, its) == definition]
    otherwise = tuple(dict.fromkeys(one.source.title for one, _ in found if one not in agreeing))
    then = memory.of(best.source)
    assert then is not None, "it was found by what is remembered"
    now = memory.digests(with_secrets(ours, environ))
    here_too = tuple(part for part in parts if now.get(part) != then.ours.get(part))
    text = str(definition)
    needed = tuple(one for one in best.needed if secret_reference(one.name) in text)
    sources = tuple(one.source for one in agreeing)
    server = Server(name, definition, sources, best.notes, needed)
    return Change(server, ours, parts, here_too, still, otherwise)


def _with(ours: Definition, theirs: Definition, parts: Sequence[str]) -> dict[str, object]:
    """`ours` with these parts as they are in `theirs`."""
    result = dict(ours)
    there = definition_parts(theirs)
    for part in parts:
        key, dot, name = part.partition(".")
        if not dot:
            _put(result, key, there, part)
            continue
        inner = result.get(key)
        below = dict(inner) if isinstance(inner, Mapping) else {}
        _put(below, name, there, part)
        result[key] = below
        if not below:
            del result[key]
    if "url" in result:
        result.pop("cwd", None)  # where a program ran, which the editor did not say
    return result


def _put(target: dict[str, object], key: str, there: Mapping[str, object], part: str) -> None:
    if part in there:
        target[key] = there[part]
    else:
        target.pop(key, None)


def _still(
    name: str, memory: Memory, seen: Survey, moved: set[Source], taken: Callable[[Source], bool]
) -> tuple[str, ...]:
    """The editors in which the server stands as it was, for all that we know."""
    gone = {where(source) for source in moved}
    there = {where(one.source) for one in seen.candidates if not taken(one.source)}
    read = {str(path) for path in seen.files}
    titles: dict[str, None] = {}
    for place, then in memory.entries.items():
        if then.server != name or place in gone:
            continue
        if place in there or (place[0] not in read and os.path.lexists(place[0])):
            titles[BY_NAME[then.editor].title if then.editor in BY_NAME else place[0]] = None
    return tuple(titles)
