"""The report of `mcpctl import`, as text and as JSON. It never contains secrets."""

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
    """Return the report: new servers with what would run, changes, known servers and skipped entries."""
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
            since = " (changed in mcpd since)" if source in made.drift.changed_here else ""
            places.setdefault(name, []).append(_describe_source(source, around, name) + since)
        lines += [[f"  {name}: {'; '.join(found)}"] for name, found in places.items()]
        lines.append([])
    if only_here:
        lines += [[paint("only in mcpd", "bold")], [f"  {', '.join(only_here)}"], []]
    passed = [one for one in made.discovered.skipped if one.reason != IS_MCPD]
    if passed:
        lines.append([paint("not imported", "bold")])
        lines += [
            [f"  {one.source.name}: {one.reason} ({_describe_source(one.source, around)})"] for one in passed
        ]
        lines.append([])
    looked = count(len(made.discovered.files), "file")
    changes = f", {count(len(made.updates), 'change')} to apply" if made.drift.updates else ""
    later = f", {len(made.blocked)} blocked ({', '.join(made.blocked)})" if made.blocked else ""
    lines.append([f"{count(len(made.new_servers), 'server')} to import{changes}, from {looked}{later}"])
    return lines


def as_json(made: ImportPlan, only_here: Sequence[str]) -> dict[str, object]:
    """Return the report for `--json`."""
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
    """Return the servers that no editor has."""
    elsewhere = {name for name, _ in made.merged.known} | {one.server.name for one in made.drift.updates}
    return [name for name in home.servers if name not in elsewhere]


def describe_update(change: ServerUpdate) -> str:
    """Summarize an update."""
    titles = dict.fromkeys(source.title for source in change.server.sources)
    return f"{', '.join(change.parts)} from {' and '.join(titles)}"


def describe_target(definition: Mapping[str, object]) -> str:
    """Return the command line or URL of a definition."""
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
    off = ", disabled" if definition.get("enabled") is False else ""
    lines: list[Line] = [[paint(server.name, "bold"), off], ["  runs: ", describe_target(definition)]]
    if "url" in definition:
        lines[-1] = ["  url: ", describe_target(definition)]
    for key, label in (("env", "environment"), ("headers", "headers")):
        values = definition.get(key)
        if isinstance(values, dict):
            lines.append([f"  {label}: ", ", ".join(f"{name}={value}" for name, value in values.items())])
    if "cwd" in definition:
        lines.append(["  directory: ", str(definition["cwd"])])
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
    """Return the sources, notes, secrets and problems of a server."""
    lines: list[Line] = [
        ["  from: ", "; ".join(_describe_source(one, around, server.name) for one in server.sources)]
    ]
    lines += [["  note: ", note] for note in notes]
    lines += [["  secret: ", f"{one.location} is in plain text in the file"] for one in safe.secrets]
    lines += [["  needs: ", f"the secret {one.name} ({one.prompt})"] for one in server.needed_secrets]
    if trouble:
        lines.append([paint("  blocked: ", "yellow"), trouble])
    lines.append([])
    return lines


def _part_values(change: ServerUpdate, safe: LiftedDefinition) -> list[tuple[str, object, object]]:
    """Return each part that differs, with the values in mcpd and in the editor. Secrets are masked."""
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
    """Describe the location of an entry, and its name there if that is not `name`."""
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
