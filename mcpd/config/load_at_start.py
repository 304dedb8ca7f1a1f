"""Loads the configuration when the daemon starts: errors affect only the entries that contain them.

A running daemon refuses a file with new errors and keeps the servers it has. A daemon that starts has none,
so refusing would leave every client without tools. Therefore each valid server is started, and each invalid
one is listed as failed, with its errors. A file that is unusable as a whole is replaced by its last valid
content, of which a copy is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import attrs
import msgspec

from mcpd.config.check_document import ConfigDocument, LoadedConfig, check_parts
from mcpd.config.loader import MAX_FILE_SIZE, find_path, parse_document, read_document
from mcpd.files.atomic import write_atomically
from mcpd.files.regular import read_regular_file
from mcpd.model.errors import BadSpec, Problem
from mcpd.model.json_path import is_within
from mcpd.model.server_spec import InvalidSpec

log = logging.getLogger("mcpd.config")

_FILE_NAME = "last-valid-config.json"
_MAX_SIZE = 64 << 20
"""Bytes. A larger file was not written by mcpd."""


class LastValidConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file as it was when it last had no errors. May contain secrets."""

    path: str
    text: str


def load_at_start(flag: Path | None, environ: Mapping[str, str], state_dir: Path) -> LoadedConfig:
    """Return the configuration to start with (see `check_parts`).

    A document that is unusable as a whole is replaced by the last valid one. Raises BadSpec if there is none,
    and if a file that was named does not exist.
    """
    loaded = None
    try:
        document = read_document(flag, environ)
        loaded = check_parts(document, environ)
        if not _has_general_problem(document, loaded.problems):
            return loaded
        refused = BadSpec(list(loaded.problems), loaded.source)
    except BadSpec as error:
        refused = error
    if environ.get("MCPD_SERVERS", "").strip() or not (path := find_path(flag, environ)[0]).exists():
        raise refused  # no file is to blame
    if (copy := _last_document(state_dir, path)) is not None:
        last, problems = check_parts(copy, environ), tuple(refused.problems)
        return attrs.evolve(last, problems=problems, stored_copy=state_dir / _FILE_NAME)
    if loaded is None or not loaded.definitions:
        raise refused
    return loaded


def describe_tolerated(loaded: LoadedConfig) -> str:
    """Return what is in effect although the configuration file has errors."""
    if loaded.stored_copy is not None:
        return f"the configuration file is unusable; its last valid content is used ({loaded.stored_copy})"
    failed = sorted(name for name, spec in loaded.specs.items() if isinstance(spec, InvalidSpec))
    return f"the configuration has errors{'; not started: ' if failed else ''}{', '.join(failed)}"


def save_last_valid(loaded: LoadedConfig, state_dir: Path) -> None:
    """Store a configuration without errors for `load_at_start`, if it comes from a file. Never raises."""
    if loaded.source != str(loaded.path) or loaded.problems:
        return
    file = state_dir / _FILE_NAME
    try:
        data = msgspec.json.encode(LastValidConfig(path=loaded.source, text=loaded.text))
        if not _contains(file, data):
            write_atomically(file, data, 0o600)
    except (OSError, ValueError) as error:  # a full disk
        log.warning("cannot store the valid configuration for the next start: %s", error)


def _contains(file: Path, data: bytes) -> bool:
    try:
        return read_regular_file(file, _MAX_SIZE) == data
    except OSError:
        return False


def _last_document(state_dir: Path, path: Path) -> ConfigDocument | None:
    """Return the last valid content of the file `path`, or None. Its digest is that of the file now."""
    file = state_dir / _FILE_NAME
    try:
        last = msgspec.json.decode(read_regular_file(file, _MAX_SIZE), type=LastValidConfig)
        document = parse_document(path, last.text.encode()) if last.path == str(path) else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, BadSpec) as error:
        log.warning("cannot read the last valid configuration %s: %s", file, error)
        return None
    try:
        digest = sha256(read_regular_file(path, MAX_FILE_SIZE)).hexdigest()
    except OSError:
        digest = ""
    return None if document is None else msgspec.structs.replace(document, digest=digest)


def _has_general_problem(document: ConfigDocument, problems: tuple[Problem, ...]) -> bool:
    """Return whether an error is neither in a server nor in the settings."""
    parts = [document.layout.settings_path, *(path for _, _, path in document.layout.servers)]
    return any(not any(is_within(problem.path, part) for part in parts) for problem in problems)
