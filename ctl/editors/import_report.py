"""What `mcpctl import` found, for people and for programs. No secret is ever in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ctl.daemon_client import Json
from ctl.editors.discovery import IS_MCPD, EntrySource
from ctl.editors.editor_paths import UserContext
from ctl.editors.import_history import ServerUpdate
from ctl.editors.import_target import ImportTarget
from ctl.editors.importing import ImportPlan
from ctl.editors.inline_secrets import LiftedDefinition, masked_definition
from ctl.editors.merging import MergedServer
from ctl.output import Line, paint
from ctl.status_view import shell_join
from ctl.terminal_text import count
from mcpd.config.masking import mask_definition
from mcpd.model.server_spec import definition_parts


def plan_lines(made: ImportPlan, around: UserContext, only_here: Sequence[str]) -> list[Line]:
    """Every server with exactly what would run, what has changed in the editors, what is here already, only
    here (`only_here`), and what is left out."""
    lines: list[Line] = []
    for server in made.merged.servers:
        lines += _server_lines(server, made.lifted[server.name], made.blocked.get(server.name, ""), around)
    for change in made.drift.updates:
        name = change.server.name
        lines += _update_lines(change, made.lifted[name], made.blocked.get(name, ""), around)
    if made.merged.known:
        lines.append([paint("already in mcpd", "bold")])
        places: dict[str, list[str]] = {}
        for name, source in made.merged.known:
            since = " (changed here since)" if source in made.drift.changed_here else ""
            places.setdefault(name, []).append(_describe_source(source, around, name) + since)
        lines += [[f"  {name}: {'; '.join(found)}"] for name, found in places.items()]
        lines.append([])
    if only_here:
        lines += [[paint("only in mcpd", "bold")], [f"  {', '.join(only_here)}"], []]
    passed = [one for one in made.discovered.skipped if one.reason != IS_MCPD]
    if passed:
        lines.append([paint("left where they are", "bold")])
        lines += [
            [f"  {one.source.name}: {one.reason} ({_describe_source(one.source, around)})"] for one in passed
        ]
        lines.append([])
    looked = count(len(made.discovered.files), "file")
    changes = f", {count(len(made.updates), 'change')} to take over" if made.drift.updates else ""
    later = f", {len(made.blocked)} not now ({', '.join(made.blocked)})" if made.blocked else ""
    lines.append([f"{count(len(made.new_servers), 'server')} to import{changes}, from {looked}{later}"])
    return lines


def as_json(made: ImportPlan, only_here: Sequence[str]) -> dict[str, object]:
    """The same as the answer under `--json`."""
    return {
        "files": [str(path) for path in made.discovered.files],
        "servers": [_server_json(server, made) for server in made.merged.servers],
        "changed": [
            _server_json(one.server, made)
            | {
                "parts": [
                    {"part": part, "here": here, "there": there, "changed_here": part in one.changed_here}
                    for part, here, there in _part_values(one, made.lifted[one.server.name])
                ]
            }
            for one in made.drift.updates
        ],
        "known": [
            {"name": name, "source": _source_json(source), "changed_here": source in made.drift.changed_here}
            for name, source in made.merged.known
        ],
        "only_here": list(only_here),
        "skipped": [
            {"source": _source_json(one.source), "reason": one.reason} for one in made.discovered.skipped
        ],
        "warnings": list(made.discovered.warnings),
    }


def servers_only_in_mcpd(home: ImportTarget, made: ImportPlan) -> list[str]:
    """The servers of ours that no editor has."""
    elsewhere = {name for name, _ in made.merged.known} | {one.server.name for one in made.drift.updates}
    return [name for name in home.servers if name not in elsewhere]


def describe_update(change: ServerUpdate) -> str:
    """What taking it over does, in a few words."""
    titles = dict.fromkeys(source.title for source in change.server.sources)
    return f"{', '.join(change.parts)} from {' and '.join(titles)}"


def describe_target(definition: Mapping[str, object]) -> str:
    """The command line or URL of a definition."""
    if "url" in definition:
        kind = definition.get("type")
        return f"{definition['url']}{f' ({kind})' if kind else ''}"
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [])]
    return shell_join([str(word) for word in words])


def _server_lines(
    server: MergedServer, safe: LiftedDefinition, trouble: str, around: UserContext
) -> list[Line]:
    definition = masked_definition(safe)
    off = ", switched off" if definition.get("enabled") is False else ""
    lines: list[Line] = [[paint(server.name, "bold"), off], ["  runs: ", describe_target(definition)]]
    if "url" in definition:
        lines[-1] = ["  is at: ", describe_target(definition)]
    for key, word in (("env", "with"), ("headers", "sends")):
        values = definition.get(key)
        if isinstance(values, dict):
            lines.append([f"  {word}: ", ", ".join(f"{name}={value}" for name, value in values.items())])
    if "cwd" in definition:
        lines.append(["  in: ", str(definition["cwd"])])
    return lines + _detail_lines(server, server.notes, safe, trouble, around)


def _update_lines(
    change: ServerUpdate, safe: LiftedDefinition, trouble: str, around: UserContext
) -> list[Line]:
    server = change.server
    titles = dict.fromkeys(source.title for source in server.sources)
    lines: list[Line] = [
        [paint(server.name, "bold"), f", changed in {' and '.join(titles)} since it was imported"]
    ]
    for part, here, there in _part_values(change, safe):
        new = f"{_format_value(there)} (another value)" if here == there else _format_value(there)
        lines.append([f"  {part}: ", f"{_format_value(here)} -> {new}"])
    notes = [*server.notes, *([] if trouble else change.conflicts)]
    return lines + _detail_lines(server, notes, safe, trouble, around)


def _detail_lines(
    server: MergedServer, notes: Sequence[str], safe: LiftedDefinition, trouble: str, around: UserContext
) -> list[Line]:
    """Where it comes from, and what has to be known before it is taken."""
    lines: list[Line] = [
        ["  from: ", "; ".join(_describe_source(one, around, server.name) for one in server.sources)]
    ]
    lines += [["  note: ", note] for note in notes]
    lines += [["  secret: ", f"{one.location} is written out in the file"] for one in safe.secrets]
    lines += [["  needs: ", f"the secret {one.name} ({one.prompt})"] for one in server.needed_secrets]
    if trouble:
        lines.append([paint("  not now: ", "yellow"), trouble])
    lines.append([])
    return lines


def _part_values(change: ServerUpdate, safe: LiftedDefinition) -> list[tuple[str, object, object]]:
    """Each part that differs, here and there; secrets masked."""
    on = {"enabled": True}
    here, there = (
        on | definition_parts(mask_definition(change.current)),
        on | definition_parts(masked_definition(safe)),
    )
    return [(part, here.get(part), there.get(part)) for part in change.parts]


def _format_value(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return shell_join([str(word) for word in value]) or "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _server_json(server: MergedServer, made: ImportPlan) -> dict[str, object]:
    safe = made.lifted[server.name]
    return {
        "name": server.name,
        "definition": masked_definition(safe),
        "sources": [_source_json(one) for one in server.sources],
        "notes": list(server.notes),
        "secrets": [{"name": one.name, "place": one.location} for one in safe.secrets],
        "needs": [one.name for one in server.needed_secrets],
        "problem": made.blocked.get(server.name),
    }


def _describe_source(source: EntrySource, around: UserContext, name: str = "") -> str:
    """Where it stands, and as what, if that is not `name`."""
    scope = f", {source.scope}" if source.scope != "user" else ""
    called = f" as '{source.name}'" if name and source.name != name else ""
    return f"{source.title}{scope}, {around.display_path(source.path)}{called}"


def _source_json(source: EntrySource) -> Json:
    return {
        "editor": source.editor,
        "path": str(source.path),
        "scope": source.scope,
        "name": source.name,
        "project": None if source.project is None else str(source.project),
    }
