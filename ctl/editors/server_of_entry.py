"""Decides which server in mcpd an editor's entry is."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ctl.editors.discovery import ImportCandidate, unwrap_candidate
from ctl.editors.import_history import Digests, ImportedEntry, ImportHistory
from ctl.editors.merging import (
    Environ,
    Identity,
    fill_in_secrets,
    matching_server,
    replace_text,
    server_identities,
)
from ctl.editors.variables import secret_reference

_CREDENTIALS = frozenset({"env", "headers", "url"})
_PROGRAM = frozenset({"command", "args", "url"})
_IDENTIFYING = _CREDENTIALS | {"command", "args", "cwd"}
"""The fields of a definition that decide which server it is, and with which credentials."""


@attrs.define
class ServerMatcher:
    """Finds the servers of entries: by where a server was imported from, or else by the definitions.

    Names never decide. Two editors may have different servers with the same name, or with secrets of the same
    name, and an editor must not get the credentials of another one. A server that was renamed in mcpd is
    recognized by its definition, and one that has replaced another under its name is not that other one.

    An entry that `mcpctl install --take-over` replaced by a server remains that server while either its
    program or its credentials are the same, because the user may have changed the rest in mcpd.
    """

    servers: Mapping[str, Mapping[str, object]] = attrs.field(repr=False)
    """The servers in mcpd, by name, that are considered."""
    environ: Environ = attrs.field(repr=False)
    history: ImportHistory | None
    taken_over: Mapping[str, str] = attrs.field(factory=dict)
    """The names of the entries that were replaced, in the file that they are from → the server; empty if a
    former version replaced them."""
    _identities: dict[Identity, str] | None = attrs.field(default=None, init=False, repr=False)
    _digests: dict[str, tuple[Digests, Digests]] = attrs.field(factory=dict, init=False, repr=False)

    def server_of(self, one: ImportCandidate) -> str | None:
        """Return the name of the server that an entry is, if any."""
        imported = self.history.get(one.source) if self.history is not None else None
        if imported is not None:
            one = unwrap_candidate(one) if imported.unfolded else one
            name = self.current_name(imported) if self._is_as_imported(one, imported) else None
            if name is not None:
                return name
        if self._identities is None:
            self._identities = server_identities(self.servers, self.environ)
        return matching_server(one, self._identities, self.environ) or self._replacement(one, imported)

    def _replacement(self, one: ImportCandidate, imported: ImportedEntry | None) -> str | None:
        """Return the server that has replaced an entry, if it is still recognizable."""
        if one.source.name not in self.taken_over or self.history is None:
            return None
        if imported is not None and not imported.server:
            return None  # it was removed, and an import has used its name for another one
        name = self.taken_over[one.source.name] or (imported.server if imported is not None else "")
        if name not in self.servers:
            return None
        written, filled = self._digests_of(name)
        pairs: list[tuple[Digests, Digests]] = [(filled, self.history.digests(as_written(one, False)))]
        if imported is not None and imported.server == name and self._is_as_imported(one, imported):
            pairs += [(filled, imported.ours), (written, imported.written)]
        return name if any(_have_common_origin(now, then) for now, then in pairs if then) else None

    def current_name(self, imported: ImportedEntry) -> str | None:
        """Return the name of the server that was made from an entry, if it still has that definition.

        Secrets in it may have new values. Where the user has said that an entry means a server with another
        definition, the command may have changed in mcpd too.
        """
        for name in dict.fromkeys([imported.server, *self.servers]):
            if name in self.servers:
                written, filled = self._digests_of(name)
                if imported.written and _parts(written) == _parts(imported.written):
                    return name
                if _parts(filled) == _parts(imported.ours):
                    return name
        if imported.same and imported.server in self.servers:
            written, filled = self._digests_of(imported.server)
            now, then = (written, imported.written) if imported.written else (filled, imported.ours)
            if _parts(now, _CREDENTIALS) == _parts(then, _CREDENTIALS):
                return imported.server
        return None

    def _is_as_imported(self, one: ImportCandidate, imported: ImportedEntry) -> bool:
        assert self.history is not None, "the entry is in it"
        return _parts(self.history.digests(as_written(one, False))) == _parts(imported.theirs)

    def _digests_of(self, name: str) -> tuple[Digests, Digests]:
        """Return the digests of a server's definition as written, and with the values of its secrets."""
        if name not in self._digests:
            assert self.history is not None, "only imported entries are compared"
            definition = self.servers[name]
            filled = fill_in_secrets(definition, self.environ)
            self._digests[name] = self.history.digests(definition), self.history.digests(filled)
        return self._digests[name]


def as_written(one: ImportCandidate, taken: bool) -> dict[str, object]:
    """Return the definition to remember: with values from other files, without `install --take-over`."""
    definition = {key: value for key, value in one.definition.items() if not (taken and key == "enabled")}
    for secret in one.needed_secrets:
        if secret.value is not None:
            definition = replace_text(definition, secret_reference(secret.name), secret.value)
    return definition


def _have_common_origin(now: Digests, then: Digests) -> bool:
    """Return whether two definitions have the same program, URL, or credentials."""
    program = _parts(now, _PROGRAM)
    return bool(program and program == _parts(then, _PROGRAM)) or (
        _parts(now, _CREDENTIALS) == _parts(then, _CREDENTIALS)
    )


def _parts(digests: Digests, fields: frozenset[str] = _IDENTIFYING) -> dict[str, str]:
    return {part: value for part, value in digests.items() if part.partition(".")[0] in fields}
