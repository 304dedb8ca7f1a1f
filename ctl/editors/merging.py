"""The same server from several files → one, with its sources; two servers with one name → two names."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from ctl.editors.discovery import EntrySource, ImportCandidate
from ctl.editors.variables import NeededSecret, secret_reference
from mcpd.config.definition import MAX_NAME_LENGTH, parse_servers
from mcpd.config.secret_store import read_secrets
from mcpd.config.settings import Settings
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, StdioSpec

Identity = tuple[object, ...]
Environ = Mapping[str, str]


@attrs.frozen
class MergedServer:
    """One server to be, from one file or several."""

    name: str
    definition: dict[str, object] = attrs.field(repr=False)
    sources: tuple[EntrySource, ...]
    notes: tuple[str, ...] = ()
    needed_secrets: tuple[NeededSecret, ...] = ()


@attrs.frozen
class MergeResult:
    """What there is to take over, and what is here already."""

    servers: tuple[MergedServer, ...]
    known: tuple[tuple[str, EntrySource], ...]
    """Our server's name, and where else it stands."""


def merge_candidates(
    candidates: list[ImportCandidate],
    ours: Mapping[str, Mapping[str, object]],
    environ: Environ,
    secrets_in: Callable[[ImportCandidate], int],
) -> MergeResult:
    """Group by what makes a server this one and no other, nearest scope first.

    Two definitions that differ in a credential are two servers. Of equal ones, the one with the fewest
    literal secrets (`secrets_in`) is taken.
    """
    here = server_identities(ours, environ)
    groups: dict[Identity, list[ImportCandidate]] = {}
    known: list[tuple[str, EntrySource]] = []
    for one in candidates:
        key = identity(one.definition, _effective_cwd(one), environ)
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
        servers.append(
            MergedServer(
                name,
                _merged_definition(best, group),
                tuple(one.source for one in group),
                tuple(dict.fromkeys(note for one in group for note in one.notes)),
                best.needed_secrets,
            )
        )
    return MergeResult(tuple(servers), tuple(known))


def server_identities(ours: Mapping[str, Mapping[str, object]], environ: Environ) -> dict[Identity, str]:
    """The identities of our servers → their names."""
    return {identity(definition, None, environ): name for name, definition in ours.items()}


def matching_server(one: ImportCandidate, ours: Mapping[Identity, str], environ: Environ) -> str | None:
    """The name of the server of ours that it is, if it is one."""
    keys = (identity(one.definition, cwd, environ) for cwd in (_effective_cwd(one), _cwd(one)))
    return next((ours[key] for key in keys if key in ours), None)


def identity(definition: Mapping[str, object], cwd: str | None, environ: Environ) -> Identity:
    """What makes it this server: the program, its words, variables and directory, or the URL and headers.

    `cwd` is where it runs when it does not say so. A variable that is not set, or a secret that
    is not stored, stands for itself.
    """
    definition = fill_in_secrets(definition, environ)
    for form in ("{}.unset", "http://{}.unset"):  # the second for a URL that begins with one
        try:
            parsed = parse_servers(
                {"x": definition},
                environ=_UnsetFilled(environ, form),
                settings=Settings(),
                base_dir=Path("/"),
                path="$",
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
    """With the values of stored secrets in the place of references: elsewhere they may be written out."""
    if "${secret:" not in str(definition):
        return dict(definition)
    try:
        secrets = read_secrets(environ)
    except BadSpec:
        secrets = {}  # whoever needs them will say so
    for name, value in secrets.items():
        definition = replace_text(definition, secret_reference(name), value.replace("${", "$${"))
    return replace_text(definition, "${secret:", "$${secret:")


def replace_text(value: Mapping[str, object], old: str, new: str) -> dict[str, object]:
    """A definition with `new` for `old` in each of its texts."""

    def walk(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: walk(below) for key, below in inner.items()}
        if isinstance(inner, list):
            return [walk(below) for below in inner]
        return inner.replace(old, new) if isinstance(inner, str) else inner

    return {key: walk(inner) for key, inner in value.items()}


class _UnsetFilled(dict[str, str]):
    """An environment in which no variable is unset."""

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
    """Where it runs, if that matters: a program whose words name nothing there is the same anywhere."""
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
    """The definition of the whole group: on where it is on anywhere; in a directory when all agree on one."""
    definition = dict(best.definition)
    if any(one.definition.get("enabled") is not False for one in group):
        definition.pop("enabled", None)
    implied = {one.implied_cwd for one in group}
    if "cwd" not in definition and len(implied) == 1 and best.implied_cwd is not None:
        definition["cwd"] = best.implied_cwd
    return definition


def _free_name(one: ImportCandidate, names: set[str]) -> str:
    tails = ["", f"-{one.source.editor}", *(f"-{one.source.editor}-{n}" for n in range(2, 1000))]
    return next(
        name for tail in tails if (name := one.name[: MAX_NAME_LENGTH - len(tail)] + tail) not in names
    )
