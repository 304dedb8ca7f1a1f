"""Chooses the names of the secrets that entries need, so that none gets the value of another one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from ctl.editors.import_drift import ServerUpdate, apply_parts
from ctl.editors.inline_secrets import free_secret_name
from ctl.editors.merging import MergedServer, replace_text
from ctl.editors.variables import NeededSecret, secret_name, secret_reference

_REFERENCE = re.compile(r"\$\{secret:([A-Za-z_]\w*)")


@attrs.define
class SecretNames:
    """The names for one import.

    A stored secret is used for an entry if it is the answer to the same question, or if the user has stored
    it under the name that the entry asks for. One that an import stored for another entry, or that a server
    in mcpd uses, is left to that one.
    """

    taken: dict[str, str] = attrs.field(repr=False)
    """The names in use and their values. The names of secrets that are needed are added to it."""
    answered: Mapping[str, str]
    """Where secrets that imports have stored come from → their names."""
    used: frozenset[str]
    """The names to which the servers in mcpd refer."""
    _stored: frozenset[str] = attrs.field(init=False)
    _chosen: dict[str, str] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._stored = frozenset(self.taken)

    def in_server(self, server: MergedServer) -> MergedServer:
        """Return a new server that refers to its secrets by the chosen names."""
        definition, needed = self._rename(server.name, server.definition, server.needed_secrets)
        return attrs.evolve(server, definition=definition, needed_secrets=needed)

    def in_update(self, update: ServerUpdate) -> ServerUpdate:
        """Return the same for an update. References of the server in mcpd stay as they are."""
        server = update.server
        new = apply_parts({}, server.definition, update.parts)
        needed = tuple(one for one in server.needed_secrets if secret_reference(one.name) in str(new))
        new, needed = self._rename(server.name, new, needed)
        definition = apply_parts(server.definition, new, update.parts)
        server = attrs.evolve(server, definition=definition, needed_secrets=needed)
        return attrs.evolve(update, server=server)

    def _rename(
        self, server: str, definition: dict[str, object], needed: tuple[NeededSecret, ...]
    ) -> tuple[dict[str, object], tuple[NeededSecret, ...]]:
        renamed = tuple(attrs.evolve(one, name=self._name(server, one)) for one in needed)
        for one in needed:  # by way of names that nothing has, because one may be the former name of another
            definition = replace_text(definition, secret_reference(one.name), f"\0{one.name}\0")
        for one, now in zip(needed, renamed, strict=True):
            definition = replace_text(definition, f"\0{one.name}\0", secret_reference(now.name))
        return definition, renamed

    def _name(self, server: str, one: NeededSecret) -> str:
        if one.value is not None:
            name = free_secret_name(one.name, server, one.value, self.taken)
            self.taken[name] = one.value
            return name
        if one.origin not in self._chosen:
            before = self.answered.get(one.origin)
            fuller = secret_name(f"{server}_{one.name}")
            names = (one.name, fuller, *(f"{fuller}_{number}" for number in range(2, 1000)))
            name = before if before in self._stored else next(name for name in names if self._is_free(name))
            self._chosen[one.origin] = name
            self.taken.setdefault(name, f"\0{one.origin}")  # no value is like this
        return self._chosen[one.origin]

    def _is_free(self, name: str) -> bool:
        by_the_user = name in self._stored and name not in self.answered.values() and name not in self.used
        return name not in self._chosen.values() and (name not in self.taken or by_the_user)


def names_used(servers: Iterable[Mapping[str, object]]) -> frozenset[str]:
    """Return the names of the stored secrets to which definitions refer."""
    return frozenset(name for one in servers for name in _REFERENCE.findall(str(one)))
