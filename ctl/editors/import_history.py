"""What was imported, from where, and what it said then: as digests, so that no secret is in there."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import attrs

from ctl.editors.discovery import EntrySource
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
