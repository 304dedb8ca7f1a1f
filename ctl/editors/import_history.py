"""Remembers imported entries (as digests, without secrets)."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs
import msgspec

from ctl.editors.discovery import EntrySource
from ctl.editors.import_rules import RuleAtom
from mcpd.model.server_spec import definition_parts
from mcpd.support.atomic_files import write_atomically
from mcpd.support.paths import UnusablePath, private_directory, state_dir

Digests = Mapping[str, str]
"""Part of a definition → digest of its value."""

EntryKey = tuple[str, str, str, str]
"""Path, scope, project and name of an entry."""


@attrs.frozen
class ImportedEntry:
    """An editor's entry and the server in mcpd, as they were when they last matched."""

    server: str
    editor: str
    theirs: Digests
    """The editor's entry, mapped to a definition."""
    ours: Digests
    """The definition in mcpd."""
    unfolded: bool = False
    """Whether it was imported without its `mcp-remote`."""
    same: bool = False
    """Whether the definitions differ, but the user has said that they mean the same server."""
    written: Digests = attrs.field(factory=dict)
    """The definition in mcpd with its references to secrets, whose values may change. Former versions did not
    remember it."""


class _StoredEntry(msgspec.Struct):
    """How the file spells an entry."""

    where: EntryKey
    server: str
    editor: str
    theirs: dict[str, str]
    ours: dict[str, str]
    unfolded: bool
    same: bool = False
    written: dict[str, str] = msgspec.field(default_factory=dict)


class ImportHistory:
    """The imports into one configuration file. An unreadable history counts as empty."""

    def __init__(self, environ: Mapping[str, str], config: Path) -> None:
        self.path = Path(state_dir(environ)) / "imports.json"
        self.entries: dict[EntryKey, ImportedEntry] = {}
        self._config = str(config)
        self._salt = secrets.token_hex(16)
        self.rules: set[RuleAtom] = set()
        """The parts of the rules that were imported."""
        self.secrets: dict[str, str] = {}
        """Where the secrets that imports have stored come from (see `NeededSecret.origin`) → their names."""
        self._other_configs: list[object] = []
        self._other_rules: list[object] = []
        try:
            data = json.loads(self.path.read_bytes())
            self._salt = msgspec.convert(data["salt"], str)
            for one in data["entries"]:
                if one["config"] == self._config:
                    stored = msgspec.convert(one, _StoredEntry)
                    self.entries[stored.where] = ImportedEntry(
                        stored.server,
                        stored.editor,
                        stored.theirs,
                        stored.ours,
                        stored.unfolded,
                        stored.same,
                        stored.written,
                    )
                else:
                    self._other_configs.append(one)
            for one in data.get("rules", ()):
                if one["config"] == self._config:
                    self.rules.add(msgspec.convert(one["rule"], RuleAtom))
                else:
                    self._other_rules.append(one)
            self.secrets = msgspec.convert(data.get("secrets", {}), dict[str, str])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self.entries.clear()
            self.rules.clear()
            self.secrets.clear()

    def get(self, source: EntrySource) -> ImportedEntry | None:
        """Return what is remembered about an entry."""
        return self.entries.get(entry_key(source))

    def forget_servers(self, names: Collection[str]) -> None:
        """Forget which servers entries were imported as, for servers of these names that were removed since.

        Others have these names now. That the entries were imported is still known.
        """
        for key, one in self.entries.items():
            if one.server in names:
                self.entries[key] = attrs.evolve(one, server="")

    def digests(self, definition: Mapping[str, object]) -> dict[str, str]:
        """Return a digest of each part, salted because short secrets could be guessed otherwise."""
        return {
            part: hashlib.sha256(
                f"{self._salt} {part} {json.dumps(value, sort_keys=True, default=str)}".encode(
                    "utf-8", "surrogatepass"
                )
            ).hexdigest()[:32]
            for part, value in definition_parts(definition).items()
        }

    def save(self) -> str:
        """Write the history. Return a warning if that failed: the import itself is done by then."""
        mine = [
            {"config": self._config, "where": list(key), **attrs.asdict(one)}
            for key, one in self.entries.items()
        ]
        rules = [{"config": self._config, "rule": atom} for atom in sorted(self.rules)]
        stored = {"salt": self._salt, "entries": [*self._other_configs, *mine], "secrets": self.secrets}
        text = json.dumps(stored | {"rules": [*self._other_rules, *rules]}, indent=1)
        try:
            private_directory(str(self.path.parent))
            write_atomically(self.path, text.encode("utf-8", "surrogatepass"), 0o600)
        except (OSError, UnusablePath) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            return f"cannot write {self.path}: {reason}; the next import will show these servers as new"
        return ""


def entry_key(source: EntrySource) -> EntryKey:
    return str(source.path), source.scope, str(source.project or ""), source.name
