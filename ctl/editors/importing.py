"""An import thought through and carried out: what can be taken over, with which secrets, and the writing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import attrs

from ctl.editors.home import Home, troubles
from ctl.editors.literals import Lifted, free_name, lifted
from ctl.editors.merging import Merged, Server, merged, replaced
from ctl.editors.survey import Survey
from ctl.editors.variables import Needed, secret_reference
from ctl.errors import Refused
from ctl.session import Session
from ctl.views import objects
from mcpd.config.edit import add_servers
from mcpd.config.secrets import change_secrets, read_secrets
from mcpd.model.errors import BadSpec
from mcpd.support.atomic import write_atomically

Definition = dict[str, object]


@attrs.frozen
class Plan:
    """What there is, before anybody has decided."""

    merged: Merged
    safe: Mapping[str, Lifted]
    """Server → its definition with literal secrets lifted out."""
    trouble: Mapping[str, str]
    """Server → why it cannot be taken over now."""
    stored: Mapping[str, str] = attrs.field(repr=False)
    """The secrets that are in the store already."""

    @property
    def possible(self) -> list[Server]:
        return [server for server in self.merged.servers if server.name not in self.trouble]

    def unknown(self, server: Server) -> list[Needed]:
        """The secrets that it needs and nothing here knows."""
        return [one for one in server.needed if one.value is None and one.name not in self.stored]


@attrs.define
class Outcome:
    """What is to be written."""

    definitions: dict[str, Definition] = attrs.field(factory=dict)
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False)


def plan(session: Session, home: Home, seen: Survey, *, disabled: bool, can_ask: bool) -> Plan:
    """Think it through. `can_ask`: what only a person knows is no obstacle. Raises Refused."""
    try:
        stored = read_secrets(os.environ)
    except BadSpec as error:
        raise Refused({"message": f"{error.source} cannot be used", "data": error.data()}) from None
    whole = merged(
        seen.candidates, home.servers, os.environ, lambda one: len(lifted("x", one.definition, {}).literals)
    )
    if disabled:
        off = [attrs.evolve(one, definition={**one.definition, "enabled": False}) for one in whole.servers]
        whole = attrs.evolve(whole, servers=tuple(off))
    taken = dict(stored)
    safe = {server.name: lifted(server.name, server.definition, taken) for server in whole.servers}
    trouble = troubles(session, home, {server.name: _provisional(server) for server in whole.servers})
    result = Plan(whole, safe, trouble, stored)
    for server in whole.servers:
        names = [one.name for one in result.unknown(server)]
        if names and not can_ask:
            words = f"it needs a secret that only you know: {', '.join(names)}"
            trouble.setdefault(
                server.name, f"{words}; mcpctl import without --yes, at a terminal, asks for it"
            )
    return result


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
    result.secrets = {name: value for name, value in result.secrets.items() if name not in made.stored}
    return result


def write(session: Session, home: Home, result: Outcome) -> bool:
    """Secrets and servers into their files, and the running daemon told, if one runs: whether one does.

    Raises Refused when it will not have them, or a file cannot be written; then both are as they were.
    """
    before = home.path.read_bytes() if home.path.exists() else None
    stored: Mapping[str, str] = {}
    try:
        if result.secrets:
            change_secrets(os.environ, result.secrets)
            stored = result.secrets
        add_servers(home.path, result.definitions)
        if home.running:
            reply = session.call("mcpd/reload")
            problems = objects(reply.value.get("errors"))
            if problems:
                raise Refused({"message": "", "data": {"code": "bad_spec", "exit": 2, "problems": problems}})
    except (BadSpec, Refused) as error:
        _undo(home, before, stored)
        data = (
            error.data()
            if isinstance(error, BadSpec)
            else {**error.facts, "code": error.code, "exit": error.exit}
        )
        raise Refused({"message": "nothing was imported: this cannot be used", "data": data}) from None
    return home.running


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
