"""Merges entries of several files that mean the same server, and gives different servers different names."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from ctl.editors.discovery import EntrySource, ImportCandidate
from ctl.editors.tool_filters import filters_of, note_about, without_filters
from ctl.editors.variables import NeededSecret, secret_reference
from mcpd.config.definition_view import is_enabled
from mcpd.config.secret_store import read_secrets
from mcpd.config.server_definition import MAX_NAME_LENGTH, parse_servers
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, StdioSpec, Timeouts

UNKNOWN = re.compile(r"unknown-[0-9a-f]{64}")
"""What stands for a value that only the user knows, see `comparable`."""

_TIMEOUTS = {"timeout": Timeouts().call * 1000, "connectTimeout": Timeouts().connect * 1000}
"""The timeouts that editors have, with mcpd's defaults, in milliseconds."""

Identity = tuple[object, ...]
Environ = Mapping[str, str]


@attrs.frozen
class MergedServer:
    """One server to import, from one or several files."""

    name: str
    definition: dict[str, object] = attrs.field(repr=False)
    sources: tuple[EntrySource, ...]
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()


@attrs.frozen
class MergeResult:
    """Servers to import, and entries for servers that mcpd has."""

    servers: tuple[MergedServer, ...]
    known: tuple[tuple[str, EntrySource], ...]
    """Name of the server in mcpd, and an entry for it."""


def merge_candidates(
    candidates: list[ImportCandidate],
    ours: Mapping[str, Mapping[str, object]],
    environ: Environ,
    secrets_in: Callable[[ImportCandidate], int],
) -> MergeResult:
    """Group candidates by the identity of their server, nearest scope first.

    Definitions with different credentials are different servers. Of equal ones, the one with the fewest
    inline secrets (`secrets_in`) is used.
    """
    here = server_identities(ours, environ)
    groups: dict[Identity, list[ImportCandidate]] = {}
    known: list[tuple[str, EntrySource]] = []
    for one in candidates:
        key = identity(comparable(one), _effective_cwd(one), environ)
        name = matching_server(one, here, environ)
        if name is None:
            groups.setdefault(key, []).append(one)
        else:
            known.append((name, one.source))
    names = set(ours)
    servers: list[MergedServer] = []
    for group in groups.values():
        best = min(group, key=secrets_in)
        name = _free_name(group[0], names)
        names.add(name)
        definition = _merged_definition(best, group)
        notes = [note for one in group for note in one.notes]
        notes += notes_about_filters((one.definition, one.source) for one in group)
        servers.append(
            MergedServer(
                name,
                definition,
                tuple(one.source for one in group),
                tuple(dict.fromkeys(filter(None, notes))),
                best.needed_secrets,
            )
        )
    return MergeResult(tuple(servers), tuple(known))


def server_identities(ours: Mapping[str, Mapping[str, object]], environ: Environ) -> dict[Identity, str]:
    """Return the identities of mcpd's servers and their names; of equal ones, the first that is enabled."""
    found: dict[Identity, str] = {}
    for name, definition in sorted(ours.items(), key=lambda each: not is_enabled(each[1])):
        found.setdefault(identity(definition, None, environ), name)
    return found


def comparable(one: ImportCandidate) -> dict[str, object]:
    """Return the definition of a candidate to compare with others.

    Values from other files are filled in. What only the user knows is replaced by a text that stands for the
    entry's own question: a stored secret of the same name may belong to another editor.
    """
    definition = one.definition
    for secret in one.needed_secrets:
        text = f"unknown-{hashlib.sha256(secret.origin.encode('utf-8', 'surrogatepass')).hexdigest()}"
        value = text if secret.value is None else secret.value.replace("${", "$${")
        definition = replace_text(definition, secret_reference(secret.name), value)
    return definition


def matching_server(one: ImportCandidate, ours: Mapping[Identity, str], environ: Environ) -> str | None:
    """Return the name of the server in mcpd that has the definition of a candidate, if any."""
    definition = comparable(one)
    keys = (identity(definition, cwd, environ) for cwd in (_effective_cwd(one), _cwd(one)))
    return next((ours[key] for key in keys if key in ours), None)


def identity(definition: Mapping[str, object], cwd: str | None, environ: Environ) -> Identity:
    """Return what identifies a server: program, arguments, environment and directory, or URL and headers.

    `cwd` is the default directory. An unset variable or a missing secret is compared by its name.
    """
    definition = fill_in_secrets(definition, environ)
    for form in ("{}.unset", "http://{}.unset"):  # the second is for URLs that begin with a variable
        try:
            filled = _UnsetFilled(environ, form)
            parsed = parse_servers(
                {"x": definition}, environ=filled, settings=Settings(), base_dir=Path("/"), path="$"
            )
        except BadSpec:
            continue
        spec = parsed.specs["x"]
        if isinstance(spec, StdioSpec):
            program = shutil.which(spec.command) or spec.command
            return ("program", program, spec.args, tuple(sorted(spec.env.items())), spec.cwd or cwd)
        assert isinstance(spec, RemoteSpec)
        return ("url", spec.url, tuple(sorted(spec.headers.items())))
    return ("unread", json.dumps(definition, sort_keys=True, default=str), cwd)


def fill_in_secrets(definition: Mapping[str, object], environ: Environ) -> dict[str, object]:
    """Replace references by the stored secrets, because an editor's file may contain the values."""
    if "${secret:" not in str(definition):
        return dict(definition)
    try:
        secrets = read_secrets(environ)
    except BadSpec:
        secrets = {}  # reported where the secrets are needed
    for name, value in secrets.items():
        definition = replace_text(definition, secret_reference(name), value.replace("${", "$${"))
    return replace_text(definition, "${secret:", "$${secret:")


def replace_text(value: Mapping[str, object], old: str, new: str) -> dict[str, object]:
    """Replace `old` by `new` in all strings of a definition."""

    def walk(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: walk(below) for key, below in inner.items()}
        if isinstance(inner, list):
            return [walk(below) for below in inner]
        return inner.replace(old, new) if isinstance(inner, str) else inner

    return {key: walk(inner) for key, inner in value.items()}


class _UnsetFilled(dict[str, str]):
    """An environment in which an unset variable has its own name as its value."""

    def __init__(self, environ: Environ, form: str) -> None:
        super().__init__(environ)
        self.form = form

    def get(self, name: str, default: object = None) -> str:
        value = super().get(name)
        return self.form.format(name) if value is None else value


def _cwd(one: ImportCandidate) -> str | None:
    written = one.definition.get("cwd")
    return written if isinstance(written, str) else one.implied_cwd


def _effective_cwd(one: ImportCandidate) -> str | None:
    """Return its directory if it matters: without relative paths in its arguments, it runs anywhere."""
    if "cwd" in one.definition or one.implied_cwd is None:
        return _cwd(one)
    args = one.definition.get("args")
    words = [one.definition.get("command"), *(args if isinstance(args, list) else [])]
    relative = any(
        isinstance(word, str)
        and not os.path.isabs(word)
        and ("/" in word or "." in word)
        and os.path.exists(os.path.join(one.implied_cwd, word))
        for word in words
    )
    return one.implied_cwd if relative else None


def _merged_definition(best: ImportCandidate, group: list[ImportCandidate]) -> dict[str, object]:
    """Merge a group, with the implied directory if they all agree."""
    definition = for_all_editors(best.definition, [one.definition for one in group])
    implied = {one.implied_cwd for one in group}
    if "cwd" not in definition and len(implied) == 1 and best.implied_cwd is not None:
        definition["cwd"] = best.implied_cwd
    return definition


def for_all_editors(
    definition: Mapping[str, object], group: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    """Return the definition of a server that stands for a group of definitions, so that no editor loses
    anything by the settings of another one.

    It is enabled if any of them is. Lists of tools that differ are dropped, and the longest timeouts are
    used; a definition without a timeout has mcpd's default.
    """
    shared = dict(definition)
    if any(is_enabled(one) for one in group):
        shared.pop("enabled", None)
    if len({filters_of(one) for one in group}) > 1:
        shared = without_filters(shared)
    for name, default in _TIMEOUTS.items():
        values = [value if isinstance(value := one.get(name), (int, float)) else default for one in group]
        if any(name in one for one in group):
            shared[name] = max(values)
        if shared.get(name) == default and not all(name in one for one in group):
            del shared[name]
    return shared


def notes_about_filters(entries: Iterable[tuple[Mapping[str, object], EntrySource]]) -> list[str]:
    """Return how to keep the lists of tools that `for_all_editors` drops from these definitions."""
    found = [(filters_of(definition), source) for definition, source in entries]
    if len({filters for filters, _ in found}) < 2:
        return []
    notes = (note_about(filters, source.editor, source.title, source.scope) for filters, source in found)
    return [note for note in notes if note]


def _free_name(one: ImportCandidate, names: set[str]) -> str:
    ends = ["", f"-{one.source.editor}", *(f"-{one.source.editor}-{n}" for n in range(2, 1000))]
    return next(name for end in ends if (name := one.name[: MAX_NAME_LENGTH - len(end)] + end) not in names)
