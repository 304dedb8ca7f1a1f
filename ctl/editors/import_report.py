"""The report of `mcpctl import`, as text and as JSON. It never contains secrets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ctl.cli.output import Line, paint
from ctl.cli.text import count
from ctl.daemon.client import Json
from ctl.editors.discovery import IS_MCPD, EntrySource
from ctl.editors.editor_paths import UserContext
from ctl.editors.import_drift import ServerUpdate
from ctl.editors.import_target import ImportTarget
from ctl.editors.importing import ImportPlan
from ctl.editors.inline_secrets import masked_definition
from ctl.editors.merging import MergedServer
from ctl.editors.similar_servers import SimilarServer
from mcpd.config.masking import mask_definition
from mcpd.model.server_spec import definition_parts


def plan_lines(plan: ImportPlan, context: UserContext, only_here: Sequence[str]) -> list[Line]:
    """Return the report: new servers with what would run, changes, known servers and skipped entries."""
    lines: list[Line] = []
    for server in plan.merged.servers:
        lines += _server_lines(plan, server) + _detail_lines(plan, server, server.notes, context)
    for update in plan.drift.updates:
        lines += _update_lines(plan, update, context)
    if plan.merged.known:
        lines.append([paint("already in mcpd", "bold")])
        sources: dict[str, list[str]] = {}
        for name, source in plan.merged.known:
            since = " (changed in mcpd since)" if source in plan.drift.changed_here else ""
            sources.setdefault(name, []).append(_describe_source(source, context, name) + since)
        for name, found in sources.items():
            lines.append([f"  {name}: {'; '.join(found)}"])
            entries = (source for known, source in plan.merged.known if known == name)
            notes = (note for source in entries for note in plan.known_notes[source])
            lines += [["    note: ", note] for note in dict.fromkeys(notes)]
        lines.append([])
    if only_here:
        lines += [[paint("only in mcpd", "bold")], [f"  {', '.join(only_here)}"], []]
    skipped = [
        [f"  {one.source.name}: {one.reason} ({_describe_source(one.source, context)})"]
        for one in plan.discovered.skipped
        if one.reason != IS_MCPD
    ]
    if skipped:
        lines += [[paint("not imported", "bold")], *skipped, []]
    rules = plan.new_rules((one.name for one in plan.new_servers), {})
    if rules or plan.rules.skipped:
        lines.append([paint("rules to import", "bold"), " into settings.policies, after the existing ones"])
        for one in rules:
            paths = ", ".join(context.display_path(path) for path in one.paths)
            lines.append([f"  {one.title}: {one.describe(context)} ({paths})"])
        lines += [["  not imported: ", note] for note in plan.rules.skipped]
        lines.append([])
    files = count(len(plan.discovered.files), "file")
    updates = f", {count(len(plan.updates), 'change')} to apply" if plan.drift.updates else ""
    also = f", {count(len(rules), 'rule')}" if rules else ""
    blocked = f", {len(plan.blocked)} blocked ({', '.join(plan.blocked)})" if plan.blocked else ""
    lines.append(
        [f"{count(len(plan.new_servers), 'server')} to import{updates}{also}, from {files}{blocked}"]
    )
    return lines


def as_json(plan: ImportPlan, only_here: Sequence[str]) -> dict[str, object]:
    """Return the report for `--json`."""
    return {
        "files": [str(path) for path in plan.discovered.files],
        "servers": [_server_json(server, plan) for server in plan.merged.servers],
        "changed": [
            _server_json(one.server, plan)
            | {
                "parts": [
                    {"part": part, "here": here, "there": there, "changed_here": part in one.changed_here}
                    for part, here, there in _part_values(plan, one)
                ]
            }
            for one in plan.drift.updates
        ],
        "known": [
            {
                "server": name,
                "name": name,
                "source": _source_json(source),
                "changed_here": source in plan.drift.changed_here,
                "notes": list(plan.known_notes[source]),
            }
            for name, source in plan.merged.known
        ],
        "only_here": list(only_here),
        "skipped": [
            {"source": _source_json(one.source), "reason": one.reason} for one in plan.discovered.skipped
        ],
        "rules": [one.to_json() for one in plan.new_rules((one.name for one in plan.new_servers), {})],
        "warnings": list(plan.discovered.warnings),
    }


def servers_only_in_mcpd(target: ImportTarget, plan: ImportPlan) -> list[str]:
    """Return the servers that no editor has."""
    elsewhere = {name for name, _ in plan.merged.known} | {one.server.name for one in plan.drift.updates}
    return [name for name in target.servers if name not in elsewhere]


def describe_update(update: ServerUpdate) -> str:
    return f"{', '.join(update.parts)} from {_titles(update)}"


def _titles(update: ServerUpdate) -> str:
    return " and ".join(dict.fromkeys(source.title for source in update.server.sources))


def describe_target(definition: Mapping[str, object]) -> str:
    """Return the command line or URL of a definition."""
    if "url" in definition:
        kind = definition.get("type")
        return f"{definition['url']}{f' ({kind})' if kind else ''}"
    args = definition.get("args")
    words = [definition.get("command"), *(args if isinstance(args, list) else [])]
    return shlex.join([str(word) for word in words])


def context_of(plan: ImportPlan, server: MergedServer) -> str:
    """Return where a server comes from and which one it resembles, for a question."""
    titles = " and ".join(dict.fromkeys(source.title for source in server.sources))
    similar = plan.similar.get(server.name)
    return f"from {titles}{f'; similar to {similar.describe()}' if similar else ''}"


def _server_lines(plan: ImportPlan, server: MergedServer) -> list[Line]:
    definition = masked_definition(plan.lifted[server.name])
    disabled = ", disabled" if definition.get("enabled") is False else ""
    label = "  url: " if "url" in definition else "  runs: "
    lines: list[Line] = [[paint(server.name, "bold"), disabled], [label, describe_target(definition)]]
    for key, label in (("env", "environment"), ("headers", "headers")):
        values = definition.get(key)
        if isinstance(values, dict):
            lines.append([f"  {label}: ", ", ".join(f"{name}={value}" for name, value in values.items())])
    if "cwd" in definition:
        lines.append(["  directory: ", str(definition["cwd"])])
    return lines


def _update_lines(plan: ImportPlan, update: ServerUpdate, context: UserContext) -> list[Line]:
    server = update.server
    heading = f", changed in {_titles(update)} since it was imported"
    lines: list[Line] = [[paint(server.name, "bold"), heading]]
    for part, here, there in _part_values(plan, update):
        new = f"{_format_value(there)} (another value)" if here == there else _format_value(there)
        lines.append([f"  {part}: ", f"{_format_value(here)} -> {new}"])
    conflicts = [] if plan.blocked.get(server.name) else update.conflicts
    return lines + _detail_lines(plan, server, [*server.notes, *conflicts], context)


def _detail_lines(
    plan: ImportPlan, server: MergedServer, notes: Sequence[str], context: UserContext
) -> list[Line]:
    """Return the sources, notes, secrets and problems of a server."""
    secrets, reason = plan.lifted[server.name].secrets, plan.blocked.get(server.name)
    return [
        ["  from: ", "; ".join(_describe_source(one, context, server.name) for one in server.sources)],
        *(["  note: ", note] for note in notes),
        *(["  similar to: ", one.describe()] for one in [plan.similar.get(server.name)] if one),
        *(["  secret: ", f"{one.location} is in plain text in the file"] for one in secrets),
        *(["  needs: ", f"the secret {one.name} ({one.prompt})"] for one in server.needed_secrets),
        *([[paint("  blocked: ", "yellow"), reason]] if reason else []),
        [],
    ]


def _part_values(plan: ImportPlan, update: ServerUpdate) -> list[tuple[str, object, object]]:
    """Return each part that differs, with the values in mcpd and in the editor. Secrets are masked."""
    on = {"enabled": True}
    here = on | definition_parts(mask_definition(update.current))
    there = on | definition_parts(masked_definition(plan.lifted[update.server.name]))
    return [(part, here.get(part), there.get(part)) for part in update.parts]


def _format_value(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return shlex.join([str(word) for word in value]) or "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _server_json(server: MergedServer, plan: ImportPlan) -> dict[str, object]:
    safe = plan.lifted[server.name]
    return {
        "server": server.name,
        "name": server.name,  # the former name of `server`, kept for one version
        "definition": masked_definition(safe),
        "sources": [_source_json(one) for one in server.sources],
        "notes": list(server.notes),
        "secrets": [{"name": one.name, "place": one.location} for one in safe.secrets],
        "needs": [one.name for one in server.needed_secrets],
        "problem": plan.blocked.get(server.name),
        "similar_to": _similar_json(plan.similar.get(server.name)),
    }


def _similar_json(similar: SimilarServer | None) -> Json | None:
    return None if similar is None else {"server": similar.name, "differs_in": list(similar.differs_in)}


def _describe_source(source: EntrySource, context: UserContext, name: str = "") -> str:
    """Describe the location of an entry, and its name there if that is not `name`."""
    scope = f", {source.scope}" if source.scope != "user" else ""
    called = f" as '{source.name}'" if name and source.name != name else ""
    return f"{source.title}{scope}, {context.display_path(source.path)}{called}"


def _source_json(source: EntrySource) -> Json:
    return {
        "editor": source.editor,
        "path": str(source.path),
        "scope": source.scope,
        "name": source.name,
        "project": None if source.project is None else str(source.project),
    }
