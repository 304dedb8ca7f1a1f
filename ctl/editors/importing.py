"""An import thought through and carried out: what can be taken over, with which secrets, and the writing."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import attrs

from ctl.context import CliContext
from ctl.editors.backup import Backups
from ctl.editors.discovery import Source, Survey, unfolded
from ctl.editors.drift import Change, Drift, drift, safely
from ctl.editors.import_history import Memory, Remembered, where
from ctl.editors.import_target import Home, troubles, written_in
from ctl.editors.inline_secrets import Lifted, free_name, lifted
from ctl.editors.merging import Merged, Server, merged, replaced, with_secrets
from ctl.editors.variables import Needed, secret_reference
from ctl.errors import DaemonError
from ctl.status_view import objects
from mcpd.config.edit_file import put_servers
from mcpd.config.secret_store import change_secrets, read_secrets
from mcpd.model.errors import BadSpec
from mcpd.support.atomic_files import write_atomically

Definition = dict[str, object]
_REMOVED = "it was imported before, and removed from mcpd since"


@attrs.frozen
class Plan:
    """What there is, before anybody has decided."""

    merged: Merged
    drift: Drift
    safe: Mapping[str, Lifted]
    """Server → its definition with literal secrets lifted out."""
    trouble: Mapping[str, str]
    """Server → why it cannot be taken over now."""
    stored: Mapping[str, str] = attrs.field(repr=False)
    """The secrets that are in the store already."""

    seen: Survey
    unfolded: frozenset[Source] = frozenset()
    """Entries that are taken over without their `mcp-remote`."""

    @property
    def possible(self) -> list[Server]:
        """The new ones."""
        return [server for server in self.merged.servers if server.name not in self.trouble]

    @property
    def changes(self) -> list[Change]:
        """What can be brought up to date."""
        return [one for one in self.drift.changes if one.server.name not in self.trouble]

    def unknown(self, server: Server) -> list[Needed]:
        """The secrets that it needs and nothing here knows."""
        return [one for one in server.needed if one.value is None and one.name not in self.stored]


@attrs.define
class Outcome:
    """What is to be written."""

    definitions: dict[str, Definition] = attrs.field(factory=dict)
    before: dict[str, Mapping[str, object]] = attrs.field(factory=dict)
    """Those of them that are there already, as they are."""
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False)


def plan(
    session: CliContext,
    home: Home,
    seen: Survey,
    memory: Memory,
    *,
    disabled: bool,
    unfold: bool,
    can_ask: bool,
    named: Collection[str],
) -> Plan:
    """Think it through. `can_ask`: what only a person knows is no obstacle; nor is it, for the servers
    `named`, that it is more than keeping up. Raises Refused."""
    try:
        stored = read_secrets(os.environ)
    except BadSpec as error:
        raise DaemonError({"message": f"{error.source} cannot be used", "data": error.data()}) from None
    seen, without = _unfolded(seen, memory, unfold)
    drifted = drift(seen, memory, home.servers, os.environ, _taken(Backups(os.environ)))
    whole = merged(
        drifted.rest, home.servers, os.environ, lambda one: len(lifted("x", one.definition, {}).literals)
    )
    whole = attrs.evolve(whole, known=(*drifted.known, *whole.known))
    if disabled:
        off = [attrs.evolve(one, definition={**one.definition, "enabled": False}) for one in whole.servers]
        whole = attrs.evolve(whole, servers=tuple(off))
    taken = dict(stored)
    servers = [*whole.servers, *(one.server for one in drifted.changes)]
    safe = {server.name: lifted(server.name, server.definition, taken) for server in whole.servers}
    safe |= {one.server.name: safely(one, taken) for one in drifted.changes}
    trouble = troubles(session, home, {server.name: _provisional(server) for server in servers})
    result = Plan(whole, drifted, safe, trouble, stored, seen, without)
    if can_ask:
        return attrs.evolve(result, merged=_with_notes(whole, drifted))
    for server in servers:
        names = [one.name for one in result.unknown(server)]
        if names:
            words = f"it needs a secret that only you know: {', '.join(names)}"
            trouble.setdefault(
                server.name, f"{words}; mcpctl import without --yes, at a terminal, asks for it"
            )
    for name, reason in _doubts(result).items():
        if name not in named:
            trouble.setdefault(
                name, f"{reason}; mcpctl import --server {name} --yes takes it over all the same"
            )
    return result


def _with_notes(whole: Merged, drifted: Drift) -> Merged:
    servers = (
        attrs.evolve(one, notes=(*one.notes, _REMOVED)) if _was_removed(one, drifted) else one
        for one in whole.servers
    )
    return attrs.evolve(whole, servers=tuple(servers))


def _was_removed(server: Server, drifted: Drift) -> bool:
    return any(source in drifted.removed for source in server.sources)


def _unfolded(seen: Survey, memory: Memory, unfold: bool) -> tuple[Survey, frozenset[Source]]:
    """With those without their `mcp-remote` that are to be so, or were taken over so."""
    done: set[Source] = set()
    candidates = []
    for one in seen.candidates:
        then = memory.of(one.source)
        if unfold or (then is not None and then.unfolded):
            bare = unfolded(one)
            if bare is not one:
                done.add(one.source)
            one = bare
        candidates.append(one)
    return attrs.evolve(seen, candidates=candidates), frozenset(done)


def _taken(backups: Backups) -> Callable[[Source], bool]:
    @functools.cache
    def names(path: Path) -> frozenset[str]:
        record = backups.load(path)
        return frozenset(one.name for one in record.taken) if record is not None else frozenset()

    return lambda source: source.name in names(source.path)


def _doubts(made: Plan) -> dict[str, str]:
    """Server → why it is for a person to say: somebody here, or another editor, has decided otherwise."""
    doubts = {one.server.name: "; ".join(one.doubts) for one in made.drift.changes if one.doubts}
    return doubts | {one.name: _REMOVED for one in made.merged.servers if _was_removed(one, made.drift)}


def outcome(made: Plan, servers: Sequence[Server], answers: Mapping[str, str], *, keep: bool) -> Outcome:
    """The definitions of the servers that were chosen, and the secrets that go with them.

    `answers`: the values of what was asked for, by name. `keep`: secrets stay written out.
    """
    result = Outcome()
    taken = dict(made.stored)
    for server in servers:
        definition = server.definition
        if not keep:
            definition = made.safe[server.name].definition
            for literal in made.safe[server.name].literals:
                taken[literal.name] = result.secrets[literal.name] = literal.value
        for one in server.needed:
            value = answers.get(one.name) if one.value is None else one.value
            old = secret_reference(one.name)
            if value is None:
                continue  # the store has it
            if keep:
                definition = replaced(definition, old, value.replace("${", "$${"))
                continue
            name = free_name(one.name, server.name, value, taken)
            taken[name] = result.secrets[name] = value
            definition = replaced(definition, old, secret_reference(name))
        result.definitions[server.name] = definition
    here = {change.server.name: change.here for change in made.drift.changes}
    result.before = {name: here[name] for name in result.definitions if name in here}
    result.secrets = {name: value for name, value in result.secrets.items() if name not in made.stored}
    return result


def write(session: CliContext, home: Home, result: Outcome) -> bool:
    """Secrets and servers into their files, and the running daemon told, if one runs: whether one does.

    Raises Refused when it will not have them, or a file cannot be written; then both are as they were.
    """
    before = home.path.read_bytes() if home.path.exists() else None
    stored: Mapping[str, str] = {}
    try:
        if result.secrets:
            change_secrets(os.environ, result.secrets)
            stored = result.secrets
        put_servers(home.path, result.definitions, result.before)
        if home.running:
            reply = session.call("mcpd/reload")
            problems = objects(reply.value.get("errors"))
            if problems:
                raise DaemonError(
                    {"message": "", "data": {"code": "bad_spec", "exit": 2, "problems": problems}}
                )
    except (BadSpec, DaemonError) as error:
        _undo(home, before, stored)
        data = (
            error.data()
            if isinstance(error, BadSpec)
            else {**error.facts, "code": error.code, "exit": error.exit}
        )
        raise DaemonError({"message": "nothing was imported: this cannot be used", "data": data}) from None
    return home.running


def remember(memory: Memory, home: Home, made: Plan, result: Outcome) -> None:
    """What was written, as it stands in the files now, and what was found in step for the first time."""
    ours = written_in(home.path)
    now = {source: memory.digests(theirs) for source, theirs in made.drift.theirs.items()}
    servers = [*made.merged.servers, *(one.server for one in made.drift.changes)]
    written = [
        (one.name, source) for one in servers if one.name in result.definitions for source in one.sources
    ]
    for name, source in made.merged.known:
        then = memory.of(source)
        if then is None or (then.server, then.theirs) != (name, now[source]):
            written.append((name, source))
    for name, source in written:
        if name in ours and source not in made.drift.ambiguous:
            here = memory.digests(with_secrets(ours[name], os.environ))
            bare = source in made.unfolded
            memory.entries[where(source)] = Remembered(name, source.editor, now[source], here, bare)


def _undo(home: Home, before: bytes | None, stored: Mapping[str, str]) -> None:
    if before is None:
        home.path.unlink(missing_ok=True)
    elif home.path.read_bytes() != before:  # else there is nothing to undo, and perhaps no room to do it
        write_atomically(home.path, before)
    if stored:
        change_secrets(os.environ, dict.fromkeys(stored))


def _provisional(server: Server) -> Definition:
    """Its definition with something in the place of what it needs, to have the rest checked."""
    definition = server.definition
    for one in server.needed:
        definition = replaced(definition, secret_reference(one.name), "x")
    return definition
